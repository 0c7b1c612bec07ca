#include <algorithm>
#include <cmath>
#include <limits>

#include <glade/core/parallel.h>
#include <glade/nn/optim/kernels.h>

namespace glade::cpu {

namespace {

/// The values after a step as copies in another dtype.
template <class T>
void write_copy(const T* p, const Tensor& copy) {
  if (!copy.defined()) return;
  visit_floating(copy.dtype(), [&]<class Copy>(TypeTag<Copy>) {
    Copy* to = copy.data<Copy>();
    parallel_for(copy.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = Copy(compute_t<T>(p[i]));
    });
  });
}

double sum_of_squares(const Tensors& tensors) {
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
  return sum;
}

}  // namespace

void adamw(const std::vector<AdamWTensors>& tensors, const AdamWSettings& settings) {
  const double factor = settings.factor.defined() ? *settings.factor.data<double>() : 1;
  if (settings.skip && !std::isfinite(factor)) return;
  for (const AdamWTensors& x : tensors)
    visit_floating(x.parameter.dtype(), [&]<class T>(TypeTag<T>) {
      using C = compute_t<T>;
      const AdamWStep& step = reinterpret_cast<const AdamWStep*>(settings.values.data<double>())[x.group];
      T* __restrict p = x.parameter.data<T>();
      const T* __restrict g = x.gradient.data<T>();
      C* __restrict m = x.exp_avg.data<C>();
      C* __restrict v = x.exp_avg_sq.data<C>();
      const C beta1(step.beta1), beta2(step.beta2), rest1(1 - step.beta1), rest2(1 - step.beta2);
      const C eps(step.eps), lr(step.lr), correction(step.inverse_sqrt_correction), decay(step.decay), l2(step.l2), scale(factor);
      parallel_for(x.parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) {
          const C gradient = C(g[i]) * scale + l2 * C(p[i]);
          m[i] = beta1 * m[i] + rest1 * gradient;
          v[i] = beta2 * v[i] + rest2 * gradient * gradient;
          p[i] = T(C(p[i]) * decay - lr * m[i] / (std::sqrt(v[i]) * correction + eps));
        }
      });
      write_copy(p, x.copy);
    });
}

void write_numbers(const Tensor& out, const std::vector<double>& values) {
  std::copy(values.begin(), values.end(), out.data<double>());
}

void gradient_norm(const Tensors& gradients, const GradientNorm& result) {
  const double scale = result.scale.defined() ? static_cast<double>(*result.scale.data<float>()) : 1;
  const double norm = std::sqrt(sum_of_squares(gradients)) / scale;
  *result.norm.data<double>() = norm;
  const double clip = result.max_norm > 0 ? result.max_norm / (norm + 1e-6) : 1;
  *result.factor.data<double>() = std::isfinite(norm) ? std::min(clip, 1.0) / scale : std::numeric_limits<double>::quiet_NaN();
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
