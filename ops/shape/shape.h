#pragma once
// Views and rearrangements. Views share memory; all are differentiable, twice. Dimensions count from the end where
// negative. Errors: ShapeError, IndexError, ValueError, naming the operation and what was given.
#include <optional>

#include <glade/core/tensor.h>

namespace glade {

/// The same elements in row-major order; one size may be -1. A view where the strides allow, else a copy.
Tensor reshape(const Tensor& x, const Shape& shape);
/// The same, but a view always: ShapeError where the strides do not allow one.
Tensor view(const Tensor& x, const Shape& shape);
/// Dimensions `start` to `end`, included, as one.
Tensor flatten(const Tensor& x, std::int64_t start = 0, std::int64_t end = -1);
/// Dimension i of the result is dimension dims[i] of x; dims names each once.
Tensor permute(const Tensor& x, const std::vector<std::int64_t>& dims);
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);  ///< x with two dimensions exchanged.
Tensor unsqueeze(const Tensor& x, std::int64_t dim);  ///< A view with a new dimension of size 1 at `dim`, which may be ndim().
Tensor squeeze(const Tensor& x, std::int64_t dim);    ///< x itself where size(dim) is not 1
Tensor squeeze(const Tensor& x);                      ///< without any dimension of size 1
/// Broadcasts without copying; -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& shape);
/// x[..., start:stop:step, ...] along `dim`, Python's rules for negative and out-of-range bounds; step may be negative
/// (that copies). Absent bounds mean the ends.
Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> stop,
             std::int64_t step = 1);
/// x[..., index, ...]: the dimension goes.
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
/// x[..., start:start + length, ...] along `dim`; IndexError where that goes beyond x.
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
/// The tensors one after the other along dim. dtypes promote; tensors of shape [0] go with all others.
Tensor cat(const Tensors& tensors, std::int64_t dim = 0);
Tensor stack(const Tensors& tensors, std::int64_t dim = 0);  ///< Tensors of one shape along a new dimension.
/// Views of `size` along dim, the last one smaller where it does not divide.
Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
/// Views of the given sizes, which must add up.
Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
/// At most `chunks` views of one size along dim, the last one smaller where it does not divide; all of them empty where dim is.
Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);
/// The slices along dim, without that dimension.
Tensors unbind(const Tensor& x, std::int64_t dim = 0);
/// x as often as `repeats` says along each dimension, of which there may be more than x has.
Tensor repeat(const Tensor& x, const Shape& repeats);
/// Every element `repeats` times in a row along dim.
Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim);
/// The elements in reverse order along each of dims; a copy.
Tensor flip(const Tensor& x, const std::vector<std::int64_t>& dims);
/// The elements along each of dims moved on by its shift; those that leave at one end come in at the other. Without dims in
/// row-major order.
Tensor roll(const Tensor& x, const std::vector<std::int64_t>& shifts, const std::vector<std::int64_t>& dims = {});
/// The matrices in the last two dimensions with 0 above (below) the given diagonal, counted upwards from the main one.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);  ///< The matrices with 0 below the given diagonal.
/// x itself where row-major already, else a row-major copy.
Tensor contiguous(const Tensor& x);

}  // namespace glade
