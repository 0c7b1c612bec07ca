#pragma once
// Reading and adding by position. Indices are int64 or int32, on the tensor's device; IndexError for one out of range
// (checked on the CPU always; on CUDA a position out of range is reported at the next synchronisation point of the
// operation that needs the host, see docs/design.md). Gradients are deterministic: positions are sorted, equal ones
// summed in order.
#include <glade/core/tensor.h>

namespace glade {

/// Rows of weight [n, d] for indices of any shape: [..., d]. No gradient flows to row `padding_index` where it is >= 0.
Tensor embedding(const Tensor& weight, const Tensor& indices, std::int64_t padding_index = -1);
/// Slices of x along dim, one for each of indices [m].
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& indices);
/// out[i][j][k] = x[i][index[i][j][k]][k] for dim 1, and so on; index has x's number of dimensions.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& indices);
/// A copy of x with source added at the positions that gather(x, dim, indices) reads.
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);
/// int64 [..., classes] with a 1 at each index.
Tensor one_hot(const Tensor& indices, std::int64_t classes);

}  // namespace glade
