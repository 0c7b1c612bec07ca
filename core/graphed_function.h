#pragma once
// A function that is called over and over with tensors of the same shapes, as a CUDA graph.
#include <functional>
#include <optional>
#include <vector>

#include <glade/core/graph.h>
#include <glade/core/tensor.h>

namespace glade {

/// Calls a function of tensors on a GPU, a training step for instance, the second time with the same shapes and dtypes as a
/// capture, and from then on by replaying that. Other shapes are a first time again. On the CPU it always just calls it.
///
///     GraphedFunction step(device, [&](const Tensors& batch) {
///       const Tensor loss = model.loss(batch[0], batch[1]);
///       loss.backward();
///       optimizer.step({.max_norm = 1});
///       optimizer.zero_grad();
///       return Tensors{loss.detach()};
///     });
///     Tensor loss = step({inputs, targets})[0];
///
/// What cuda::Graph says of captures goes for the function: what cannot be captured is a CudaError that says why, and all but
/// its arguments must stay where it is in memory (parameters, for instance, must not be moved).
class GraphedFunction {
 public:
  /// Calls nothing yet. What `function` refers to must live as long as this.
  GraphedFunction(Device device, std::function<Tensors(const Tensors&)> function)
      : device_(device), function_(std::move(function)) {}

  /// The function's results, as tensors that later calls leave alone. The arguments are copied in, from any device.
  Tensors operator()(const Tensors& arguments);
  /// Whether the last call was a replay.
  bool is_replaying() const { return graph_ && graph_->is_captured(); }

 private:
  bool fit(const Tensors& arguments) const;

  Device device_;
  std::function<Tensors(const Tensors&)> function_;
  std::optional<cuda::Graph> graph_;
  Tensors arguments_, results_;  // of the capture; arguments_ also of the call before it
};

}  // namespace glade
