#pragma once
// Finds a sequence of a recurrence, its tokens and its chunks.
#include <glade/ops/linear_attention/common/recurrence_arguments.h>

namespace glade::cuda::linear_attention {

/// One sequence. Positions and chunks are counted in the order of the recurrence. Length: int saves registers.
template <class Length = std::int64_t>
struct Sequence {
  std::int64_t begin;  ///< the first token in memory
  Length length;
  bool reverse;

  __device__ Sequence(const Sequences& all, std::int64_t n)
      : begin(all.cu_seqlens ? all.cu_seqlens[n] : n * all.length),
        length(static_cast<Length>(all.cu_seqlens ? all.cu_seqlens[n + 1] - begin : all.length)),
        reverse(all.reverse) {}
  __device__ std::int64_t token(std::int64_t position) const {
    return reverse ? begin + length - 1 - position : begin + position;
  }

  // Chunks of kChunkTokens tokens.
  __device__ int chunks() const { return static_cast<int>((length + kTokens - 1) / kTokens); }
  __device__ int chunk_tokens(int chunk) const {
    return static_cast<int>(min(static_cast<Length>(length - static_cast<Length>(chunk) * kTokens), kTokens));
  }
  /// The number of the first chunk of sequence n among all chunks; the others follow. Every chunk of all sequences has a number
  /// of its own, below chunk_slots(), which indexes arrays by chunk. The same for groups of so many chunks of a sequence.
  __device__ std::int64_t first_slot(const Sequences& all, std::int64_t n, int group = 1) const {
    return all.cu_seqlens ? begin / (group * kTokens) + n : n * ((chunks() + group - 1) / group);
  }

 private:
  static constexpr Length kTokens = kChunkTokens;
};

/// The tokens of all sequences.
__device__ inline std::int64_t all_tokens(const Sequences& all) {
  return all.cu_seqlens ? all.cu_seqlens[all.count] : all.count * all.length;
}

}  // namespace glade::cuda::linear_attention
