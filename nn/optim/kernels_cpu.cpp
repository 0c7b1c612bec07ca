#include <cmath>

#include <glade/core/parallel.h>
#include <glade/nn/optim/kernels.h>

namespace glade::cpu {

void adamw(const std::vector<AdamWTensors>& tensors, const AdamWStep& step) {
  for (const AdamWTensors& x : tensors)
    visit_floating(x.parameter.dtype(), [&]<class T>(TypeTag<T>) {
      using C = compute_t<T>;
      T* __restrict p = x.parameter.data<T>();
      const T* __restrict g = x.gradient.data<T>();
      C* __restrict m = x.exp_avg.data<C>();
      C* __restrict v = x.exp_avg_sq.data<C>();
      const C beta1(step.beta1), beta2(step.beta2), rest1(1 - step.beta1), rest2(1 - step.beta2);
      const C eps(step.eps), lr(step.lr), correction(step.inverse_sqrt_correction), decay(step.decay);
      parallel_for(x.parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) {
          const C gradient(g[i]);
          m[i] = beta1 * m[i] + rest1 * gradient;
          v[i] = beta2 * v[i] + rest2 * gradient * gradient;
          p[i] = T(C(p[i]) * decay - lr * m[i] / (std::sqrt(v[i]) * correction + eps));
        }
      });
    });
}

void sum_of_squares(const Tensors& tensors, const Tensor& total) {
  // Blocks of a fixed size, so that the sum does not depend on the number of threads.
  constexpr std::int64_t kBlock = 4096;
  double sum = 0;
  for (const Tensor& x : tensors)
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
      using C = compute_t<T>;
      const T* data = x.data<T>();
      const std::int64_t n = x.numel();
      std::vector<double> partial(static_cast<std::size_t>((n + kBlock - 1) / kBlock));
      parallel_for(static_cast<std::int64_t>(partial.size()), kGrain / kBlock, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) {
          const std::int64_t last = std::min(n, (block + 1) * kBlock);
          C s = 0;
#pragma omp simd reduction(+ : s)
          for (std::int64_t i = block * kBlock; i < last; ++i) s += C(data[i]) * C(data[i]);
          partial[static_cast<std::size_t>(block)] = s;
        }
      });
      for (const double s : partial) sum += s;
    });
  *total.data<double>() = sum;
}

void scale(const Tensors& tensors, const Tensor& factor) {
  const double f = *factor.data<double>();
  if (f == 1) return;
  for (const Tensor& x : tensors)
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
      using C = compute_t<T>;
      T* data = x.data<T>();
      parallel_for(x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) data[i] = T(C(data[i]) * C(f));
      });
    });
}

}  // namespace glade::cpu
