#pragma once
#include <string>

#include <glade/core/tensor.h>

namespace glade {

/// Einstein's summation: "ik,kj->ij" is the matrix product. Every dimension of every operand has a letter; letters that the
/// result does not have are summed over, and without "->" those that occur once are the result's, in alphabetical order. "..."
/// stands for leading dimensions that broadcast, and a letter that an operand has twice takes its diagonal. Two operands are one
/// batched matrix product; more are taken from the left to the right. Differentiable, twice. ValueError for an equation that is
/// not understood, ShapeError where sizes do not fit, DTypeError for integers.
Tensor einsum(const std::string& equation, const Tensors& operands);

}  // namespace glade
