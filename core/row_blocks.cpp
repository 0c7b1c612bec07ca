#include <glade/core/row_blocks.h>

namespace glade {

namespace {

std::size_t bytes_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype()); }

}  // namespace

Tensors split_rows(const Tensor& matrix, const std::vector<std::int64_t>& rows) {
  Tensors blocks;
  char* at = static_cast<char*>(matrix.raw_data());
  for (const std::int64_t count : rows) {
    blocks.push_back(Tensor::from_blob(at, {count, matrix.size(1)}, matrix.options(), [matrix] {}));
    at += bytes_of(blocks.back());
  }
  return blocks;
}

Tensor join_rows(const Tensors& blocks) {
  const Tensor& first = blocks[0];
  const char* at = static_cast<const char*>(first.raw_data());
  std::int64_t rows = 0;
  for (const Tensor& x : blocks) {
    const bool follows = x.raw_data() == at && x.is_contiguous() && x.dtype() == first.dtype() && x.size(1) == first.size(1);
    if (!follows) return {};
    at += bytes_of(x);
    rows += x.size(0);
  }
  return Tensor::from_blob(first.raw_data(), {rows, first.size(1)}, first.options(), [blocks] {});
}

}  // namespace glade
