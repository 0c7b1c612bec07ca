#pragma once
// Kernels of ops/index: both directions between x [outer, n, inner] and y [outer, m, inner], all tensors row-major.
#include <glade/core/tensor.h>

namespace glade {

/// y[o][j][k] belongs to x[o][p][k], where p is indices[j] with `rows`, else indices[o][j][k]; int64. The CPU kernels
/// rely on 0 <= p < n; the CUDA kernels read NaN (0 for integers) and add nothing where that is not so.
struct IndexGeometry {
  std::int64_t outer, n, m, inner;
  bool rows;
};

namespace detail {
/// Slices of x at the positions along d, which are not checked; on the tape.
Tensor select_rows(const Tensor& x, int d, const Tensor& positions);
/// The derivative of select_rows: zeros of `shape` with the slices of x added at the positions along d.
Tensor add_rows(const Tensor& x, const Shape& shape, int d, const Tensor& positions);
/// `read` row-major, and in memory of its own where it shares x's, which is to be written.
Tensor row_major_apart(const Tensor& x, const Tensor& read);
/// Calls change(y), which changes y in place, for x itself where it is row-major, else for a copy that is written back.
template <class F>
void change_row_major(const Tensor& x, const F& change) {
  x.storage()->bump_version();
  const Tensor y = contiguous_data(x);
  change(y);
  if (!y.is_same(x)) copy_data(x, y);
}
}  // namespace detail

namespace cpu {
/// y = x at the positions.
void gather(const Tensor& y, const Tensor& x, const Tensor& indices, const IndexGeometry& geometry);
/// x += y at the positions, equal ones in a fixed order; floating-point, int64 or int32.
void scatter_add(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& geometry);
/// x = y at the positions, the last j of several for one place.
void put(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& geometry);
/// For every element of x the last j whose position it is, -1 where there is none; int64. `rows` is false.
void last_writers(const Tensor& x, const Tensor& indices, const IndexGeometry& geometry);
/// Whether all of n positions lie in [0, limit).
bool all_within(const std::int64_t* positions, std::int64_t n, std::int64_t limit);
/// The coordinates [number, ndim], int64, of the elements of a row-major bool tensor that hold, in their order.
Tensor nonzero(const Tensor& holds);
}  // namespace cpu

namespace cuda {
void gather(const Tensor& y, const Tensor& x, const Tensor& indices, const IndexGeometry& geometry);
/// The same with `rows`, where x's n slices are those of dimensions of these `sizes`, and every dimension has its index tensor:
/// int64 or int32, row-major, of m elements; below 0 they count from the end.
void gather_together(const Tensor& y, const Tensor& x, const Tensors& indices, const Shape& sizes, const IndexGeometry& geometry);
/// The positions in [0, n) that gather_together() reads, -1 for those out of range.
void positions_together(const Tensor& positions, const Tensors& indices, const Shape& sizes);
void scatter_add(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& geometry);
void put(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& geometry);
void last_writers(const Tensor& x, const Tensor& indices, const IndexGeometry& geometry);
/// How many elements of a row-major bool tensor hold before each tile of it, and in all: int64, for the functions below. Waits
/// for the device where `total` is given, which becomes the number in all.
Tensor count_held(const Tensor& holds, std::int64_t* total);
/// Writes the coordinates of the elements that hold, in row-major order.
void nonzero(const Tensor& positions, const Tensor& holds, const Tensor& before);
/// y = the elements of x, of the mask's shape and row-major, at which the mask holds; at least one.
void masked_select(const Tensor& y, const Tensor& x, const Tensor& holds, const Tensor& before);
/// Writes y to these elements of x.
void masked_place(const Tensor& x, const Tensor& y, const Tensor& holds, const Tensor& before);
}  // namespace cuda

}  // namespace glade
