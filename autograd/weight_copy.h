#pragma once
// Copies of weights in the dtype of the activations, for training with float32 weights and 16-bit products.
#include <glade/core/tensor.h>

namespace glade::autograd {

/// A leaf's values as `dtype`, row-major, not on the tape; x itself where nothing changes. Made once and kept with the leaf until
/// its values change or another dtype is asked for; made anew while others share the leaf's memory (Storage::is_lent).
Tensor weight_copy(const Tensor& x, DType dtype);
/// The same of leaves of float32 with as many columns, row-major matrices, so that the copies follow each other in memory
/// (core/row_blocks.h).
Tensors weight_copies_joined(const Tensors& leaves, DType dtype);
/// The copy that is kept, if its values are x's; else undefined.
Tensor find_weight_copy(const Tensor& x);
/// Makes `copy` the one that is kept, with x's values where it has others.
void keep_weight_copy(const Tensor& x, const Tensor& copy);
/// Makes `copy` the one that is kept, as it is.
void set_weight_copy(const Tensor& x, const Tensor& copy);
/// Forgets the copy that is kept, and so lets go of its memory.
void drop_weight_copy(const Tensor& x);
/// Counts an in-place change of x, after which the copy that is kept counts as changed alike where `copied`.
void weight_changed(const Tensor& x, bool copied);

}  // namespace glade::autograd
