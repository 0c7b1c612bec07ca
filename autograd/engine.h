#pragma once
// Running the tape backwards.
#include <glade/autograd/node.h>

namespace glade::autograd {

/// Adds the gradients of sum(outputs[i] * gradients[i]) to the grad() of every leaf below. An undefined gradient counts
/// as 1 and is allowed for outputs of one element only. Frees what was saved unless `retain_graph`; with `create_graph`
/// the computation of the gradients is itself recorded (and retain_graph is implied). AutogradError where nothing
/// requires a gradient or where the tape was freed by an earlier backward.
void backward(const Tensors& outputs, const Tensors& gradients = {}, bool retain_graph = false, bool create_graph = false);

/// The gradients of sum(outputs[i] * gradients[i]) with respect to `inputs`, without touching any grad(). AutogradError
/// for an input the outputs do not depend on, unless `allow_unused` (then its gradient is undefined).
Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& gradients = {}, bool retain_graph = false,
             bool create_graph = false, bool allow_unused = false);

/// Keeps the gradient of x, a result of recorded operations, in x.grad() too. Does nothing for a leaf. AutogradError where x
/// requires no gradient.
void retain_grad(const Tensor& x);

}  // namespace glade::autograd
