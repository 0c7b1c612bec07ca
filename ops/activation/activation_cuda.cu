#include <glade/core/cuda/loops.cuh>
#include <glade/core/philox.h>
#include <glade/ops/activation/activation_kernels.h>

namespace glade::cuda {

namespace {

using detail::Vector;

constexpr int kThreads = 256;

/// The first `n` elements from `from` on; in one access where all of them are wanted and `aligned`.
template <int Width, class T>
__device__ Vector<T, Width> load(const T* from, std::int64_t n, bool aligned) {
  if (aligned && n >= Width) return *reinterpret_cast<const Vector<T, Width>*>(from);
  Vector<T, Width> values;
#pragma unroll
  for (int j = 0; j < Width; ++j) values.x[j] = j < n ? from[j] : T();
  return values;
}

template <int Width, class T>
__device__ void store(T* to, const Vector<T, Width>& values, std::int64_t n, bool aligned) {
  if (aligned && n >= Width) {
    *reinterpret_cast<Vector<T, Width>*>(to) = values;
    return;
  }
#pragma unroll
  for (int j = 0; j < Width; ++j)
    if (j < n) to[j] = values.x[j];
}

/// Operands as rows of contiguous elements: row r of operand i starts r * strides[i] elements in.
struct Rows {
  std::int64_t columns;
  unsigned blocks_a_row;
  std::int64_t strides[5];
};

/// One thread `Width` elements of every operand.
template <class T, int Width>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(Rows rows, T* grad_gate, T* grad_up, T* grad, const T* gate, const T* up, bool again) {
  using C = compute_t<T>;
  using Loaded = Vector<T, Width>;
  const unsigned row = blockIdx.x / rows.blocks_a_row, block = blockIdx.x % rows.blocks_a_row;
  const std::int64_t column = (std::int64_t{block} * kThreads + threadIdx.x) * Width;
  if (column >= rows.columns) return;
  const auto at = [&](int operand) { return row * rows.strides[operand] + column; };
  const Loaded dy = *reinterpret_cast<const Loaded*>(grad + at(2)), x = *reinterpret_cast<const Loaded*>(gate + at(3)),
               u = *reinterpret_cast<const Loaded*>(up + at(4));
  Loaded dx, du, y;
#pragma unroll
  for (int j = 0; j < Width; ++j) {
    C grad_x, grad_u;
    swiglu_gradients<T>(C(dy.x[j]), C(x.x[j]), C(u.x[j]), grad_x, grad_u);
    dx.x[j] = T(grad_x);
    du.x[j] = T(grad_u);
    y.x[j] = T(Swiglu{}(x.x[j], u.x[j]));
  }
  detail::store(grad_gate + at(0), dx);
  detail::store(grad_up + at(1), du);
  if (again) detail::store(grad + at(2), y);
}

/// One thread one counter, which is four elements.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(std::int64_t n, bool aligned, float p, compute_t<T> scale, Generator::State state,
                   const Generator::State* of_replay, T* out, const T* x) {
  using C = compute_t<T>;
  if (of_replay != nullptr) state = *of_replay;
  const std::int64_t counter = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, first = 4 * counter;
  if (first >= n) return;
  const Philox4 bits = philox(state.seed, state.offset + static_cast<std::uint64_t>(counter));
  auto values = load<4>(x + first, n - first, aligned);
#pragma unroll
  for (int lane = 0; lane < 4; ++lane)
    values.x[lane] = T(uniform_from_bits(bits.x[lane]) >= p ? C(values.x[lane]) * scale : C(0));
  store(out + first, values, n - first, aligned);
}

bool is_aligned(const Tensor& x, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(x.raw_data()) % bytes == 0; }

}  // namespace

void normalized_logsigmoid(const Tensor& out, const Tensor& x, double normalizer) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    elementwise(out.device(), plan_loop(x.shape(), out, x), NormalizedLogsigmoid<T>{compute_t<T>(1 / normalizer)}, out.data<T>(),
                static_cast<const T*>(x.data<T>()));
  });
}

void normalized_logsigmoid_backward(const Tensor& dx, const Tensor& grad, const Tensor& x, double normalizer) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    elementwise(dx.device(), plan_loop(x.shape(), dx, grad, x), NormalizedLogsigmoidBackward<T>{compute_t<T>(1 / normalizer)},
                dx.data<T>(), static_cast<const T*>(grad.data<T>()), static_cast<const T*>(x.data<T>()));
  });
}

void swiglu(const LoopPlan<3>& plan, const Tensor& out, const Tensor& gate, const Tensor& up) {
  visit_floating(out.dtype(), [&]<class T>(TypeTag<T>) {
    elementwise(out.device(), plan, Swiglu{}, out.data<T>(), static_cast<const T*>(gate.data<T>()),
                static_cast<const T*>(up.data<T>()));
  });
}

void swiglu_backward(const LoopPlan<5>& plan, const Tensor& grad_gate, const Tensor& grad_up, const Tensor& grad,
                     const Tensor& gate, const Tensor& up, bool again) {
  DeviceGuard guard(gate.device());
  visit_floating(gate.dtype(), [&]<class T>(TypeTag<T>) {
    constexpr int kWidth = 16 / sizeof(T);
    const Tensor* operands[] = {&grad_gate, &grad_up, &grad, &gate, &up};
    bool vectors = plan.shape[0] % kWidth == 0;
    Rows rows{plan.shape[0], 0, {}};
    for (int i = 0; i < 5; ++i) {
      if (plan.ndim == 2) rows.strides[i] = plan.strides[i][1];
      vectors = vectors && is_aligned(*operands[i], 16) && rows.strides[i] % kWidth == 0;
    }
    rows.blocks_a_row = blocks_for(plan.shape[0], kThreads * (vectors ? kWidth : 1));
    const auto blocks = static_cast<unsigned>(plan.numel / rows.columns * rows.blocks_a_row);
    const auto kernel = vectors ? swiglu_backward_kernel<T, kWidth> : swiglu_backward_kernel<T, 1>;
    kernel<<<blocks, kThreads, 0, stream(gate.device())>>>(rows, grad_gate.data<T>(), grad_up.data<T>(), grad.data<T>(),
                                                           gate.data<T>(), up.data<T>(), again);
    GLADE_CUDA_LAUNCHED();
  });
}

void dropout(const Tensor& out, const Tensor& x, double p, const Draw& place) {
  DeviceGuard guard(x.device());
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    const bool aligned = is_aligned(x, 4 * sizeof(T)) && is_aligned(out, 4 * sizeof(T));
    dropout_kernel<<<blocks_for(x.numel(), 4 * kThreads), kThreads, 0, stream(x.device())>>>(
        x.numel(), aligned, static_cast<float>(p), compute_t<T>(1 / (1 - p)), place.state, place.of_replay(), out.data<T>(),
        static_cast<const T*>(x.data<T>()));
    GLADE_CUDA_LAUNCHED();
  });
}

}  // namespace glade::cuda
