#pragma once
// Reading and adding by position. Indices are int64 or int32, on the tensor's device. On the CPU a position out of range
// is an IndexError. On CUDA the host does not wait to look: such a position reads NaN (0 for integers) and adds nothing,
// and no memory outside of the tensors is touched. Gradients are deterministic: what goes to one place is summed in a
// fixed order. All are differentiable, twice. Errors: ShapeError, IndexError for dimensions, DTypeError for other types
// of indices, DeviceError.
#include <glade/core/tensor.h>

namespace glade {

/// Rows of weight [n, d] for indices of any shape: [..., d]. No gradient flows to row `padding_idx` where it is >= 0;
/// ValueError where it is no row.
Tensor embedding(const Tensor& indices, const Tensor& weight, std::int64_t padding_idx = -1);
/// Slices of x along dim, one for each of indices [m].
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& indices);
/// x[..., indices[0], indices[1], ..., ...]: x along the dimensions from dim on, of which each has its index tensor. These
/// broadcast, and their dimensions take the place of those that they index. A negative index counts from the end.
Tensor index_at(const Tensor& x, std::int64_t dim, const Tensors& indices);
/// out[i][j][k] = x[i][indices[i][j][k]][k] for dim 1, and so on; indices has as many dimensions as x, and outside of dim at most
/// its sizes.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& indices);
/// A copy of x with source added at the positions that gather(x, dim, indices) reads; source has x's dtype, floating-point,
/// int64 or int32, and at least the sizes of indices: the rest of it is not read.
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);
/// A copy of x with source, as for scatter_add, or one number, at the positions that gather(x, dim, indices) reads; where several
/// elements of source go to one place, the last one along dim stays.
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& indices, Scalar value);
/// A copy of x with the slices of source along dim, one for each of indices [m], added at these positions. Source has x's shape
/// but for its size m along dim, and x's dtype, floating-point, int64 or int32.
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);
// The same in x itself, by the rules of ops/elementwise/inplace.h: not recorded.
const Tensor& scatter_add_(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);  ///< As scatter_add.
const Tensor& scatter_(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);      ///< As scatter.
const Tensor& scatter_(const Tensor& x, std::int64_t dim, const Tensor& indices, Scalar value);              ///< As scatter.
const Tensor& index_add_(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source);    ///< As index_add.
/// Writes source, of x's dtype and broadcast, to what index_at(x, dim, indices) reads; the last element of several for one place.
const Tensor& index_put_(const Tensor& x, std::int64_t dim, const Tensors& indices, const Tensor& source);
/// Where x is not 0 (NaN is not 0), in row-major order: int64 [number, dimensions of x]. Waits for the device.
Tensor nonzero(const Tensor& x);
/// The elements of x where `mask` (bool) holds, in row-major order: one dimension. Both broadcast. Waits for the device.
/// DTypeError for another mask.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// Writes source, which has as many elements as `mask` (bool, of x's shape) holds at, to these elements of x in row-major order,
/// by the rules of ops/elementwise/inplace.h: not recorded. Waits for the device, unless source has one element for all of them.
const Tensor& masked_assign_(const Tensor& x, const Tensor& mask, const Tensor& source);
/// int64 [..., classes] with a 1 at each index.
Tensor one_hot(const Tensor& indices, std::int64_t classes);

}  // namespace glade
