#pragma once
// Sequences in parts that are computed side by side, where there are too few heads to fill a GPU.
#include <cuda_runtime.h>

#include <cstdint>

namespace glade::cuda::chunk {

/// What a first pass leaves of every part, in the order of the recurrence (backward: against it).
struct Parts {
  float* between;      ///< [sequences, parts, heads, K, V]: of the second part the state before it, of the others what the part
                       ///< before each adds to zeros; what stands for the first does not matter
  const float* decay;  ///< [sequences, parts, heads, channels]: decays of the parts
  std::int64_t sequences;
  int parts, heads, channels, K, V;  ///< channels: K, or 1 where all share a gate
};
/// Replaces `between` by the states before each part.
void join_parts(const Parts& p, cudaStream_t stream);

}  // namespace glade::cuda::chunk
