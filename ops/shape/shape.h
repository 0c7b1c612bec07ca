#pragma once
// Views and rearrangements. Views share memory; all are differentiable, twice. Dimensions count from the end where
// negative. Errors: ShapeError, IndexError, ValueError, naming the operation and what was given.
#include <optional>

#include <glade/core/tensor.h>

namespace glade {

/// The same elements in row-major order; one size may be -1. A view where the strides allow, else a copy.
Tensor reshape(const Tensor& x, const Shape& shape);
Tensor flatten(const Tensor& x, std::int64_t start = 0, std::int64_t end = -1);
Tensor permute(const Tensor& x, const std::vector<std::int64_t>& dims);
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
Tensor squeeze(const Tensor& x, std::int64_t dim);  ///< x itself where size(dim) is not 1
/// Broadcasts without copying; -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& shape);
/// x[..., start:stop:step, ...] along `dim`, Python's rules for negative and out-of-range bounds; step may be negative
/// (that copies). Absent bounds mean the ends.
Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> stop,
             std::int64_t step = 1);
/// x[..., index, ...]: the dimension goes.
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
Tensor cat(const Tensors& tensors, std::int64_t dim = 0);  ///< dtypes promote
Tensor stack(const Tensors& tensors, std::int64_t dim = 0);
/// Views of `size` along dim, the last one smaller where it does not divide.
Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
/// Views of the given sizes, which must add up.
Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
/// Every element `repeats` times in a row along dim.
Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim);
Tensor flip(const Tensor& x, const std::vector<std::int64_t>& dims);
/// x itself where row-major already, else a row-major copy.
Tensor contiguous(const Tensor& x);

}  // namespace glade
