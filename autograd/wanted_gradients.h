#pragma once
#include <glade/autograd/node.h>

namespace glade::autograd {

/// For the backward of a node that has computed `outputs` again on the tape: from their gradients, the gradients of those of
/// `sources` that the node wants, in their places.
Tensors wanted_gradients(const Node& node, const Tensors& outputs, const Tensors& sources, const Tensors& gradients,
                         bool create_graph);

}  // namespace glade::autograd
