#pragma once
// Orders along a dimension. NaN counts as the largest number, and equal elements keep their order: the results are the same on
// every device. Values are differentiable, twice. Errors: IndexError for a dimension that x does not have, ValueError.
#include <glade/ops/reduce/reduce.h>

namespace glade {

/// The elements along dim in rising order (falling, where `descending`), and the positions that they had.
ValuesAndIndices sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// The positions alone.
Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// The k largest elements along dim in falling order, or the k smallest in rising order, and their positions. ValueError where
/// dim has fewer.
ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true);

}  // namespace glade
