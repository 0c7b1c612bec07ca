#pragma once
// Memory in which backward computes the gradients of leaves, so that they can be sent on without a copy.
#include <cstddef>

#include <glade/autograd/node.h>

namespace glade::autograd {

/// From now on backward computes the gradient of a leaf in `memory`, which has as many contiguous elements of its dtype, if the
/// leaf's operation can do so and `memory` holds no earlier gradient; otherwise the gradient lies elsewhere. An undefined tensor
/// ends this.
void reserve_gradient_memory(const Tensor& leaf, const Tensor& memory);

/// A row-major tensor for the gradients of `count` inputs of `node` from `first` on, one after the other; they are leaves. It
/// lies in the memory reserved for them if that is free and in one piece, else in new memory.
Tensor empty_leaf_gradients(const Node& node, std::size_t first, std::size_t count, const Shape& shape,
                            const TensorOptions& options);

}  // namespace glade::autograd
