#include <glade/core/graphed_function.h>

#include <algorithm>

namespace glade {

bool GraphedFunction::fit(const Tensors& arguments) const {
  return std::ranges::equal(arguments, arguments_, [](const Tensor& a, const Tensor& b) {
    return a.defined() == b.defined() && (!a.defined() || (a.shape() == b.shape() && a.dtype() == b.dtype()));
  });
}

Tensors GraphedFunction::operator()(const Tensors& arguments) {
  if (device_.is_cpu()) return function_(arguments);
  if (!fit(arguments)) {  // for the first time: everything that is made at a first use is made outside of the capture
    graph_.reset();
    results_.clear();
    arguments_.clear();
    for (const Tensor& x : arguments) arguments_.push_back(x.defined() ? empty(x.shape(), {x.dtype(), device_}) : x);
  }
  const bool first = !graph_;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].defined()) copy_data(arguments_[i], arguments[i]);
  if (first) {
    graph_.emplace(device_.index);
    return function_(arguments_);
  }
  if (!graph_->is_captured()) graph_->capture([&] { results_ = function_(arguments_); });
  graph_->replay();
  Tensors results;
  for (const Tensor& x : results_) {
    results.push_back(x.defined() ? empty(x.shape(), x.options()) : x);
    if (x.defined()) copy_data(results.back(), x);
  }
  return results;
}

}  // namespace glade
