#include <cmath>

#include <glade/core/math.h>
#include <glade/core/parallel.h>
#include <glade/ops/reduce/cpu_fold.h>
#include <glade/ops/reduce/softmax_kernels.h>

namespace glade::cpu {

namespace {

/// Calls row(offset, buffer) for the offset of every row of x, with `n` values of scratch memory.
template <class Acc, class F>
void for_each_row(const Tensor& x, const F& row) {
  const std::int64_t n = x.shape().back(), rows = x.numel() / n;
  parallel_for(rows, std::max<std::int64_t>(1, kGrain / 4 / n), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Acc> buffer(static_cast<std::size_t>(n));
    for (std::int64_t r = begin; r < end; ++r) row(r * n, buffer.data());
  });
}

template <class T>
void softmax_rows(SoftmaxForm form, const Tensor& input, T* result) {
  using Acc = compute_t<T>;
  const std::int64_t n = input.shape().back();
  for_each_row<Acc>(input, [&, data = input.data<T>()](std::int64_t offset, Acc* buffer) {
    const T* x = data + offset;
    T* y = result + offset;
    const auto largest = [&](Acc a, std::int64_t i) { return nan_max(a, Acc(x[i])); };
    const Acc shift = fold_run(n, -std::numeric_limits<Acc>::infinity(), largest, nan_max<Acc>);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = math::exp(Acc(x[i]) - shift);
    const double sum = sum_run<Acc>(n, [&](std::int64_t i) { return buffer[i]; });
    if (form == SoftmaxForm::log) {
      const auto log_sum = static_cast<Acc>(std::log(sum));  // apart from the shift, beside which it may be small
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) y[i] = T(Acc(x[i]) - shift - log_sum);
    } else {
      const auto scale = static_cast<Acc>(1 / sum);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) y[i] = T(buffer[i] * scale);
    }
  });
}

template <class T>
void softmax_backward_rows(SoftmaxForm form, const Tensor& grad, const T* result, T* input_gradient) {
  using Acc = compute_t<T>;
  const std::int64_t n = grad.shape().back();
  for_each_row<Acc>(grad, [&, data = grad.data<T>()](std::int64_t offset, Acc*) {
    const T *g = data + offset, *y = result + offset;
    T* dx = input_gradient + offset;
    if (form == SoftmaxForm::log) {
      const auto sum = static_cast<Acc>(sum_run<Acc>(n, [&](std::int64_t i) { return Acc(g[i]); }));
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) dx[i] = T(Acc(g[i]) - math::exp(Acc(y[i])) * sum);
    } else {
      const auto sum = static_cast<Acc>(sum_run<Acc>(n, [&](std::int64_t i) { return Acc(g[i]) * Acc(y[i]); }));
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) dx[i] = T(Acc(y[i]) * (Acc(g[i]) - sum));
    }
  });
}

}  // namespace

void softmax(SoftmaxForm form, const Tensor& x, const Tensor& y) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { softmax_rows(form, x, y.data<T>()); });
}

void softmax_backward(SoftmaxForm form, const Tensor& grad, const Tensor& y, const Tensor& dx) {
  visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) { softmax_backward_rows(form, grad, y.data<T>(), dx.data<T>()); });
}

}  // namespace glade::cpu
