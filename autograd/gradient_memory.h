#pragma once
// Where backward computes the gradients of leaves: in memory that somebody who sends them on has set aside.
#include <cstddef>

#include <glade/autograd/node.h>

namespace glade::autograd {

/// From now on the gradient of a leaf is computed in `memory`, as many contiguous elements of its dtype, where its operation can
/// do so and no earlier gradient is there; grad() is elsewhere else. An undefined tensor ends it.
void reserve_gradient_memory(const Tensor& leaf, const Tensor& memory);

/// A row-major tensor for the gradients of inputs `first` and following of `node`, `count` leaves, one after the other: the
/// memory reserved for them, if it is free and follows one another, else new memory.
Tensor empty_leaf_gradients(const Node& node, std::size_t first, std::size_t count, const Shape& shape,
                            const TensorOptions& options);

}  // namespace glade::autograd
