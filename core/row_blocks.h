#pragma once
// Matrices one after the other in memory, which are one matrix to a product.
#include <vector>

#include <glade/core/tensor.h>

namespace glade {

/// A row-major matrix in blocks of so many rows. Each has a storage of its own: in-place changes of it are counted for it alone.
Tensors split_rows(const Tensor& matrix, const std::vector<std::int64_t>& rows);
/// The row-major matrix that the blocks are, where they follow each other in memory; else undefined.
Tensor join_rows(const Tensors& blocks);

}  // namespace glade
