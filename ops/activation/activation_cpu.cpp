#include <glade/core/cpu_loops.h>
#include <glade/core/philox.h>
#include <glade/core/philox_block.h>
#include <glade/ops/activation/activation_kernels.h>

namespace glade::cpu {

void normalized_logsigmoid(const Tensor& out, const Tensor& x, double normalizer) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    elementwise(plan_loop(x.shape(), out, x), NormalizedLogsigmoid<T>{compute_t<T>(1 / normalizer)}, out.data<T>(),
                static_cast<const T*>(x.data<T>()));
  });
}

void normalized_logsigmoid_backward(const Tensor& dx, const Tensor& grad, const Tensor& x, double normalizer) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    elementwise(plan_loop(x.shape(), dx, grad, x), NormalizedLogsigmoidBackward<T>{compute_t<T>(1 / normalizer)}, dx.data<T>(),
                static_cast<const T*>(grad.data<T>()), static_cast<const T*>(x.data<T>()));
  });
}

void swiglu(const LoopPlan<3>& plan, const Tensor& out, const Tensor& gate, const Tensor& up) {
  visit_floating(out.dtype(), [&]<class T>(TypeTag<T>) {
    elementwise(plan, Swiglu{}, out.data<T>(), static_cast<const T*>(gate.data<T>()), static_cast<const T*>(up.data<T>()));
  });
}

void swiglu_backward(const LoopPlan<5>& plan, const Tensor& grad_gate, const Tensor& grad_up, const Tensor& grad,
                     const Tensor& gate, const Tensor& up, bool again) {
  visit_floating(gate.dtype(), [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const std::int64_t columns = plan.shape[0];
    const auto row = [&](const Tensor& x, int operand, std::int64_t r) {
      return x.data<T>() + (plan.ndim == 2 ? r * plan.strides[operand][1] : 0);
    };
    parallel_for(plan.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end;) {
        const std::int64_t r = i / columns, first = i % columns, n = std::min(columns - first, end - i);
        T* __restrict to_gate = row(grad_gate, 0, r) + first;
        T* __restrict to_up = row(grad_up, 1, r) + first;
        T* __restrict dys = row(grad, 2, r) + first;
        const T *from_gate = row(gate, 3, r) + first, *from_up = row(up, 4, r) + first;
#pragma GCC ivdep
        for (std::int64_t j = 0; j < n; ++j) {
          const C dy = C(dys[j]), x = C(from_gate[j]), s = math::sigmoid(x);
          to_gate[j] = T(dy * C(from_up[j]) * s * (1 + x * (1 - s)));
          to_up[j] = T(dy * x * s);
        }
        if (again) {
#pragma GCC ivdep
          for (std::int64_t j = 0; j < n; ++j) dys[j] = T(Swiglu{}(from_gate[j], from_up[j]));
        }
        i += n;
      }
    });
  });
}

void dropout(const Tensor& out, const Tensor& x, double p, const Draw& place) {
  const Generator::State state = place.state;
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const T* from = x.data<T>();
    T* to = out.data<T>();
    const std::int64_t n = x.numel();
    const C scale = C(1 / (1 - p));
    const float threshold = static_cast<float>(p);
    parallel_for((n + 3) / 4, kGrain / 4, [&](std::int64_t begin, std::int64_t end) {
      std::uint32_t numbers[4][kPhiloxBlock];
      float uniform[4 * kPhiloxBlock];  // the mask first, so that both loops are vectorised
      for (std::int64_t first = begin; first < end; first += kPhiloxBlock) {
        const std::int64_t counters = std::min<std::int64_t>(kPhiloxBlock, end - first),
                           count = std::min(4 * counters, n - 4 * first);
        philox_block(state.seed, state.offset + static_cast<std::uint64_t>(first), numbers);
#pragma GCC ivdep
        for (std::int64_t i = 0; i < kPhiloxBlock; ++i)
          for (int j = 0; j < 4; ++j) uniform[4 * i + j] = uniform_from_bits(numbers[j][i]);
#pragma GCC ivdep
        for (std::int64_t i = 0; i < count; ++i) {
          const C value = C(from[4 * first + i]) * scale;
          to[4 * first + i] = T(uniform[i] >= threshold ? value : C(0));
        }
      }
    });
  });
}

}  // namespace glade::cpu
