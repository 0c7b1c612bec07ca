#include <cmath>

#include <glade/core/accumulate.h>
#include <glade/core/math.h>
#include <glade/core/parallel.h>
#include <glade/ops/norm/norm_kernels.h>
#include <glade/ops/reduce/cpu_fold.h>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade::cpu {

namespace {

constexpr std::int64_t kParts = 64;  // partial sums of the parameters' gradients, whatever the number of threads

/// A parameter as numbers to compute with; `otherwise` in each place where it is undefined.
template <class Acc>
std::vector<Acc> parameter(const Tensor& p, std::int64_t d, Acc otherwise) {
  return p.defined() ? p.to_vector<Acc>() : std::vector<Acc>(static_cast<std::size_t>(d), otherwise);
}

template <class T, class Acc>
void norm_rows(const NormInputs& in, Acc* means, Acc* rstds, T* result) {
  const std::int64_t d = in.x.shape().back(), rows = in.x.numel() / d;
  const auto weights = parameter<Acc>(in.weight, d, 1), biases = parameter<Acc>(in.bias, d, 0);
  parallel_for(rows, std::max<std::int64_t>(1, kGrain / 4 / d), [&](std::int64_t begin, std::int64_t end) {
    const Acc *w = weights.data(), *b = biases.data();
    for (std::int64_t row = begin; row < end; ++row) {
      const T* x = in.x.data<T>() + row * d;
      T* y = result + row * d;
      Acc mean = 0;
      if (in.centered) {  // from the first element, so that the mean of equal ones is exact
        const Acc first = Acc(x[0]);
        const double above = sum_run<Acc>(d, [=](std::int64_t i) { return Acc(x[i]) - first; }) / static_cast<double>(d);
        mean = static_cast<Acc>(static_cast<double>(first) + above);
      }
      const double squares = sum_run<Acc>(d, [=](std::int64_t i) { return (Acc(x[i]) - mean) * (Acc(x[i]) - mean); });
      const auto rstd = static_cast<Acc>(1 / std::sqrt(squares / static_cast<double>(d) + in.eps));
      if (in.centered) means[row] = mean;
      rstds[row] = rstd;
      if (in.gate.defined()) {
        const T* gate = in.gate.data<T>() + row * d;
#pragma GCC ivdep
        for (std::int64_t i = 0; i < d; ++i) y[i] = T(((Acc(x[i]) - mean) * rstd * w[i] + b[i]) * math::silu(Acc(gate[i])));
      } else {
#pragma GCC ivdep
        for (std::int64_t i = 0; i < d; ++i) y[i] = T((Acc(x[i]) - mean) * rstd * w[i] + b[i]);
      }
    }
  });
}

template <class T, class Acc>
void norm_backward_rows(const NormInputs& in, const Acc* means, const Acc* rstds, const T* grad, const T* grad_sum,
                        const NormGradients& out) {
  const std::int64_t d = in.x.shape().back(), rows = in.x.numel() / d;
  const auto weights = parameter<Acc>(in.weight, d, 1), biases = parameter<Acc>(in.bias, d, 0);
  const std::int64_t size = std::max<std::int64_t>((rows + kParts - 1) / kParts, 8), parts = (rows + size - 1) / size;
  const Tensor weight_parts = zeros({parts, d}, {dtype_of<Acc>(), kCPU}), bias_parts = zeros({parts, d}, {dtype_of<Acc>(), kCPU});
  parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Acc> normal(static_cast<std::size_t>(d)), inner(normal);
    const Acc *w = weights.data(), *b = biases.data();
    Acc *h = normal.data(), *g = inner.data();  // the normalised row, and the gradient of h * weight + bias
    for (std::int64_t row = begin * size; row < std::min(rows, end * size); ++row) {
      const T *x = in.x.data<T>() + row * d, *gy = grad + row * d;
      T* dx = out.x.data<T>() + row * d;
      Acc *dw = weight_parts.data<Acc>() + row / size * d, *db = bias_parts.data<Acc>() + row / size * d;
      const Acc mean = in.centered ? means[row] : Acc(0), rstd = rstds[row];
#pragma GCC ivdep
      for (std::int64_t i = 0; i < d; ++i) {
        h[i] = (Acc(x[i]) - mean) * rstd;
        g[i] = Acc(gy[i]);
      }
      if (in.gate.defined()) {
        const T* gate = in.gate.data<T>() + row * d;
        T* dgate = out.gate.data<T>() + row * d;
#pragma GCC ivdep
        for (std::int64_t i = 0; i < d; ++i) {
          const Acc z = Acc(gate[i]), sigmoid = math::sigmoid(z);
          dgate[i] = T(g[i] * (h[i] * w[i] + b[i]) * sigmoid * (1 + z * (1 - sigmoid)));
          g[i] *= z * sigmoid;
        }
      }
      const double n = static_cast<double>(d);
      const auto along = static_cast<Acc>(sum_run<Acc>(d, [=](std::int64_t i) { return g[i] * w[i] * h[i]; }) / n);
      const auto level =
          in.centered ? static_cast<Acc>(sum_run<Acc>(d, [=](std::int64_t i) { return g[i] * w[i]; }) / n) : Acc(0);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < d; ++i) {
        dx[i] = T(rstd * (g[i] * w[i] - level - h[i] * along));
        dw[i] += g[i] * h[i];
        db[i] += g[i];
      }
      if (grad_sum == nullptr) continue;
      const T* more = grad_sum + row * d;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < d; ++i) dx[i] = T(Acc(dx[i]) + Acc(more[i]));
    }
  });
  const ReduceGeometry columns{1, parts, d};
  if (out.weight.defined()) reduce(ReduceOp::sum, columns, weight_parts, out.weight);
  if (out.bias.defined()) reduce(ReduceOp::sum, columns, bias_parts, out.bias);
}

}  // namespace

void norm(const NormInputs& given, const NormStatistics& statistics, const Tensor& y, const Tensor& sum) {
  NormInputs in = given;
  if (in.residual.defined()) add_data(in.x = sum, given.x, given.residual);
  visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
    using Acc = compute_t<T>;
    norm_rows(in, in.centered ? statistics.mean.data<Acc>() : nullptr, statistics.rstd.data<Acc>(), y.data<T>());
  });
}

void norm_backward(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const Tensor& grad_sum,
                   const NormGradients& gradients) {
  visit_floating(grad.dtype(), [&]<class T>(TypeTag<T>) {
    using Acc = compute_t<T>;
    norm_backward_rows(in, in.centered ? statistics.mean.data<Acc>() : nullptr, statistics.rstd.data<Acc>(), grad.data<T>(),
                       grad_sum.defined() ? grad_sum.data<T>() : nullptr, gradients);
  });
  if (gradients.y.defined()) norm(in, statistics, gradients.y, {});
}

}  // namespace glade::cpu
