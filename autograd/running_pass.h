#pragma once
// What a backward function may ask of the pass that runs it.
#include <functional>

#include <glade/autograd/node.h>

namespace glade::autograd {

/// The node whose backward is running on this thread; null outside.
Node* running_node();

/// Hands the engine work that nothing in the pass waits for: f(out), which queues the kernels that fill `out`, the gradient of a
/// leaf. In a pass on a GPU the engine calls f later, with a side stream as the current one, when a node comes whose kernels
/// leave multiprocessors idle; else it calls f at once. f's captures keep what f reads; `out` must not be among them, because a
/// leaf takes its gradient without a copy only where nobody else holds it.
void defer(const Tensor& out, std::function<void(const Tensor& out)> f);

/// Memory for the gradient of input i of `node`, with the shape, dtype and device of `like`. It has gaps between its rows where
/// the operation that made the input takes the gradients of all its outputs as one matrix (GradientColumns); else it is
/// row-major. Use empty_like() for kernels that write row-major gradients only.
Tensor empty_gradient_with_gaps(const Node& node, std::size_t i, const Tensor& like);

/// For a node that declared GradientColumns: the gradients of its outputs as one matrix [rows, sum of columns], after copying the
/// few that lie elsewhere. Undefined where too many do.
Tensor gather_gradients(const Node& node, const Tensors& gradients);

}  // namespace glade::autograd
