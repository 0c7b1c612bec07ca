#pragma once
// Sequences of different lengths, one after the other in a batch of one.
#include <vector>

#include <glade/core/tensor.h>

namespace glade {

/// Where packed sequences begin and end.
struct PackedSequences {
  std::vector<std::int64_t> boundaries;
  Tensor cu_seqlens;  ///< the same, int64, on the device of what is packed
};

/// `cu_seqlens`, int32 or int64 [sequences + 1], rising from 0 to `tokens`, the tokens of x in a batch of 1, read and checked.
/// Reading it from a GPU waits for it; the boundaries that a thread asked for last are not copied to x's device again.
/// DTypeError, ShapeError, ValueError name `operation` and the argument that x is, `name`.
PackedSequences packed_sequences(const char* operation, const Tensor& cu_seqlens, const char* name, const Tensor& x,
                                 std::int64_t batch, std::int64_t tokens);

}  // namespace glade
