#pragma once
// What blocks of parameters and blocks of gradients have in common: every rank has an equal piece of each. Not public.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <glade/core/process_group.h>
#include <glade/ops/collective/average_pieces.h>

namespace glade::nn::distributed {

/// So many elements, rounded up to where the next parameter may begin: kernels read rows of parameters in vectors.
inline std::int64_t aligned(std::int64_t count) {
  constexpr std::int64_t kAligned = 64;
  return (count + kAligned - 1) / kAligned * kAligned;
}

/// The elements of each rank's piece of `count`.
inline std::int64_t piece_of(std::int64_t count, const ProcessGroup& group) {
  return aligned((count + group.size() - 1) / group.size());
}

inline Tensor elements(const Tensor& block, std::int64_t begin, std::int64_t count) {
  return block.as_strided({count}, {1}, block.offset() + begin);
}

/// Notes a stream on which a gradient is final.
inline void add_stream(std::vector<Stream>& streams, const Stream& stream) {
  const auto is_same = [&](const Stream& other) { return other.device == stream.device && other.handle == stream.handle; };
  if (std::ranges::none_of(streams, is_same)) streams.push_back(stream);
}

/// out = this rank's piece of the average of the ranks' blocks. `block` and `memory`, which is as large at least, are of
/// ProcessGroup::empty_shared.
inline void average_by_copies(const ProcessGroup& group, const Tensor& out, const Tensor& block, const Tensor& memory) {
  const Tensor received = elements(memory, 0, block.numel());
  group.all_to_all(received, block).wait();
  average_pieces(out, received, group.size());
}

}  // namespace glade::nn::distributed
