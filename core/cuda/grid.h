#pragma once
// Sizes of grids.
#include <cstdint>

namespace glade::cuda {

/// Blocks of `threads` that cover n, as a grid's first dimension. ShapeError for more than it can have: an unsigned number would
/// cut them off without a word.
unsigned blocks_for(std::int64_t n, int threads);

}  // namespace glade::cuda
