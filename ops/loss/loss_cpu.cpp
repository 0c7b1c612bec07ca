#include <cmath>

#include <glade/core/cpu_loops.h>
#include <glade/core/math.h>
#include <glade/core/parallel.h>
#include <glade/ops/loss/loss_kernels.h>
#include <glade/ops/reduce/cpu_fold.h>

namespace glade::cpu {

namespace {

/// Calls f(row) for every row that counts and ignored(row) for the others.
template <class F, class G>
void for_each_row(const ClassLossOptions& options, const Tensor& targets, std::int64_t classes, const F& f, const G& ignored) {
  const std::int64_t* target = targets.data<std::int64_t>();
  parallel_for(targets.numel(), std::max<std::int64_t>(1, kGrain / 4 / classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      if (target[row] == options.ignore_index) ignored(row);
      else f(row);
  });
}

/// A row's softmax is e^(x - shift) share.
template <class Acc>
struct RowSoftmax {
  Acc shift = 0, share = 0;
};

/// What a row loses, and its gradient.
template <class T>
struct ClassRow {
  using Acc = compute_t<T>;
  const ClassLossOptions& options;
  std::int64_t n;

  /// Sets the softmax too, of logits.
  double loss(const T* x, std::int64_t target, RowSoftmax<Acc>& softmax) const {
    double loss = -(1 - options.label_smoothing) * static_cast<double>(x[target]);
    if (options.normalized) return loss;
    const auto larger = [=](Acc a, std::int64_t i) { return nan_max(a, Acc(x[i])); };
    const Acc largest = fold_run(n, -std::numeric_limits<Acc>::infinity(), larger, nan_max<Acc>);
    const double sum = sum_run<Acc>(n, [=](std::int64_t i) { return math::exp(Acc(x[i]) - largest); });
    softmax = {largest, static_cast<Acc>(1 / sum)};
    loss += static_cast<double>(largest) + std::log(sum);
    if (options.label_smoothing > 0)
      loss -= options.label_smoothing * sum_run<Acc>(n, [=](std::int64_t i) { return Acc(x[i]); }) / static_cast<double>(n);
    return loss;
  }

  /// Times scale; dx may be x.
  void gradient(const T* x, std::int64_t target, RowSoftmax<Acc> softmax, Acc scale, T* dx) const {
    if (options.normalized) {
      std::fill_n(dx, n, T(0));
      dx[target] = T(-scale);
      return;
    }
    const auto spread = static_cast<Acc>(options.label_smoothing / static_cast<double>(n)),
               own = static_cast<Acc>(1 - options.label_smoothing);
    const Acc at_target = Acc(x[target]);  // read first: dx may be x
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) dx[i] = T(scale * (math::exp(Acc(x[i]) - softmax.shift) * softmax.share - spread));
    dx[target] = T(scale * (math::exp(at_target - softmax.shift) * softmax.share - spread - own));
  }
};

template <class T, class Acc>
void class_loss_rows(const ClassLossOptions& options, const Tensor& input, const Tensor& targets, const ClassLoss& out) {
  const std::int64_t n = input.shape().back(), rows = targets.numel();
  const std::int64_t* target = targets.data<std::int64_t>();
  Acc* softmax = options.normalized ? nullptr : out.softmax.data<Acc>();
  std::vector<double> losses(static_cast<std::size_t>(rows), 0.0);
  const auto row_loss = [&, of = ClassRow<T>{options, n}, data = input.data<T>()](std::int64_t row) {
    RowSoftmax<Acc> found;
    losses[static_cast<std::size_t>(row)] = of.loss(data + row * n, target[row], found);
    if (softmax == nullptr) return;
    softmax[2 * row] = found.shift;
    softmax[2 * row + 1] = found.share;
  };
  for_each_row(options, targets, n, row_loss, [](std::int64_t) {});
  const auto counted = static_cast<double>(rows - std::count(target, target + rows, options.ignore_index));
  const double scale = options.mean ? 1 / counted : 1;
  const double sum = sum_run<double>(rows, [&](std::int64_t i) { return losses[static_cast<std::size_t>(i)]; });
  *out.scale.data<Acc>() = static_cast<Acc>(scale);
  *out.loss.data<Acc>() = static_cast<Acc>(options.mean ? sum / counted : sum);
}

template <class T, class Acc>
void class_loss_backward_rows(const ClassLossOptions& options, const Tensor& input, const Tensor& targets, const ClassLoss& saved,
                              Acc scale, T* gradient) {
  const std::int64_t n = input.shape().back(), *target = targets.data<std::int64_t>();
  const Acc* softmax = options.normalized ? nullptr : saved.softmax.data<Acc>();
  const auto row_gradient = [&, of = ClassRow<T>{options, n}, x = input.data<T>()](std::int64_t row) {
    const RowSoftmax<Acc> of_row =
        softmax == nullptr ? RowSoftmax<Acc>() : RowSoftmax<Acc>{softmax[2 * row], softmax[2 * row + 1]};
    of.gradient(x + row * n, target[row], of_row, scale, gradient + row * n);
  };
  for_each_row(options, targets, n, row_gradient, [&](std::int64_t row) { std::fill_n(gradient + row * n, n, T(0)); });
}

}  // namespace

void class_loss(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const ClassLoss& out) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { class_loss_rows<T, compute_t<T>>(options, x, targets, out); });
}

void class_loss_backward(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const ClassLoss& saved,
                         const Tensor& grad, const Tensor& dx) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Acc = compute_t<T>;
    class_loss_backward_rows(options, x, targets, saved, *grad.data<Acc>() * *saved.scale.data<Acc>(), dx.data<T>());
  });
}

void class_losses(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const Tensor& losses,
                  const Tensor& factor) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Acc = compute_t<T>;
    const std::int64_t n = x.shape().back(), *target = targets.data<std::int64_t>();
    T* data = x.data<T>();
    Acc* out = losses.data<Acc>();
    const Acc* scale = factor.defined() ? factor.data<Acc>() : nullptr;
    const ClassRow<T> of{options, n};
    const auto row_loss = [&](std::int64_t row) {
      RowSoftmax<Acc> softmax;
      out[row] = static_cast<Acc>(of.loss(data + row * n, target[row], softmax));
      if (scale != nullptr) of.gradient(data + row * n, target[row], softmax, *scale, data + row * n);
    };
    const auto ignored = [&](std::int64_t row) {
      out[row] = 0;
      if (scale != nullptr) std::fill_n(data + row * n, n, T(0));
    };
    for_each_row(options, targets, n, row_loss, ignored);
  });
}

}  // namespace glade::cpu
