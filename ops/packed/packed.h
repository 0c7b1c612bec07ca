#pragma once
// Sequences of different lengths, one after the other in a batch of one.
#include <vector>

#include <glade/core/tensor.h>

namespace glade {

/// Where the packed sequences of x begin and end, on the host: `cu_seqlens`, int32 or int64 [sequences + 1], rising from 0 to
/// `tokens`, the tokens of x in a batch of 1. Reading it from a GPU waits for it. DTypeError, ShapeError, ValueError name
/// `operation` and the argument that x is, `name`.
std::vector<std::int64_t> read_cu_seqlens(const char* operation, const Tensor& cu_seqlens, const char* name, const Tensor& x,
                                          std::int64_t batch, std::int64_t tokens);

}  // namespace glade
