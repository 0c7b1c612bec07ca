#pragma once
// The rows of a chunk in shared memory, and 16 x 16 operands from them: what a warp of warp_chunks.cuh multiplies.
#include <glade/core/cuda/instructions.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/rows.cuh>

namespace glade::cuda::recurrent::warp_chunks {

constexpr int kLanes = 32;
constexpr int kTokens = 16;  ///< positions of a chunk
constexpr int kPadding = 8;  ///< elements between rows, against bank conflicts

/// Bytes of a row of so many channels in shared memory, and of the rows of a chunk.
constexpr int row_bytes(int channels, int element) { return (channels + kPadding) * element; }
constexpr int rows_bytes(int channels, int element) { return kTokens * row_bytes(channels, element); }

/// Four matrices [8, 8] of 16-bit elements from the rows of a chunk: its first and second 8 positions of the first 8 channels at
/// `rows`, and of the next 8. A lane has two channels of a position, or two positions of a channel if kTransposed.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const unsigned char* rows, int row_bytes) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  ldmatrix<kTransposed>(r, static_cast<std::uint32_t>(__cvta_generic_to_shared(rows)) +
                               static_cast<std::uint32_t>(lane % 16 * row_bytes + lane / 16 * 16));
}

/// The larger of two values of 16 bits and `least`, in both halves; NaN stays.
template <class E>
__device__ __forceinline__ std::uint32_t at_least_pair(std::uint32_t pair, std::uint32_t least) {
  std::uint32_t out;
  if constexpr (kIsBfloat16<E>) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(least));
  else asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(least));
  return out;
}

/// Writes a lane's part of a 16 x 16 operand, as load_matrices<false>() returns it, to rows in shared memory.
__device__ __forceinline__ void store_matrices(const std::uint32_t (&r)[4], unsigned char* rows, int row_bytes) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  unsigned char* at = rows + lane / 4 * row_bytes + lane % 4 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) *reinterpret_cast<std::uint32_t*>(at + i % 2 * 8 * row_bytes + i / 2 * 16) = r[i];
}

/// A lane's part of an operand [16, 16]: its 8 x 8 matrices above each other, then those to their right. If kLow, the operand is
/// the sum of two parts of 16 bits; else it has no low part.
template <class E, bool kLow>
struct Operand {
  std::uint32_t high[4], low[4];

  __device__ __forceinline__ void set(int i, float x, float y) {
    high[i] = pack<E>(x, y);
    if constexpr (kLow) low[i] = pack_low<E>(x, y, high[i]);
  }
};

/// Whether every 16 bytes of the rows are aligned, and within a row.
__device__ inline bool has_pieces(const Rows& rows) {
  const int element = rows.dtype == DType::float32 ? 4 : 2;
  return (reinterpret_cast<std::uintptr_t>(rows.data) | static_cast<unsigned>(rows.size * element)) % 16 == 0;
}

/// Copies the rows of an operand, with elements of so many bytes, to shared memory: one chunk after the other. A thread of the
/// kThreads copies pieces of 16 bytes, all of the same channels.
template <int kChannels, int kElement, int kThreads>
class Copier {
  static constexpr int kPieceChannels = 16 / kElement, kPieces = kChannels / kPieceChannels, kRowStep = kThreads / kPieces,
                       kCopies = kTokens / kRowStep, kStep = kRowStep * row_bytes(kChannels, kElement);
  static_assert(kCopies > 0);

 public:
  /// The rows of head h from channel `first` on. The first chunk begins at `position`; `reverse`: the next ones lie before it.
  __device__ Copier(const Rows& rows, int h, int first, const Sequence& sequence, std::int64_t position, bool reverse) {
    const int thread = static_cast<int>(threadIdx.x), channel = first + thread % kPieces * kPieceChannels;
    row_ = thread / kPieces;
    count_ = max(min(rows.size - channel, kPieceChannels), 0);
    const std::int64_t stride = static_cast<std::int64_t>(rows.heads) * rows.size * kElement * (sequence.reverse ? -1 : 1);
    from_ = static_cast<const unsigned char*>(rows.data) +
            (rows.row(sequence.token(position), h) * rows.size + channel) * kElement + row_ * stride;
    step_ = kRowStep * stride;
    next_ = (reverse ? -kTokens : kTokens) * stride;
    offset_ = row_ * row_bytes(kChannels, kElement) + thread % kPieces * 16;
  }
  /// Writes zeros to the pieces beyond the rows' channels, which copy() leaves alone.
  __device__ void clear(unsigned char* to) const {
    if (count_ == 0)
      for (int i = 0; i < kCopies; ++i) *reinterpret_cast<uint4*>(to + offset_ + i * kStep) = make_uint4(0, 0, 0, 0);
  }
  /// Starts to copy the next chunk. All its positions exist, and all pieces are whole.
  __device__ __forceinline__ void copy(unsigned char* to) {
    auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(to)) + static_cast<std::uint32_t>(offset_);
    if (count_ > 0) {
      const unsigned char* from = from_;
#pragma unroll
      for (int i = 0; i < kCopies; ++i, from += step_)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared + static_cast<std::uint32_t>(i * kStep)), "l"(from)
                     : "memory");
    }
    from_ += next_;
  }
  /// Copies any chunk, of `count` positions; the others become zeros.
  __device__ __forceinline__ void copy_any(unsigned char* to, int count) {
    using Bits = std::conditional_t<kElement == 2, std::uint16_t, std::uint32_t>;
#pragma unroll 1
    for (int copy = 0; copy < kCopies; ++copy) {
      const int elements = row_ + copy * kRowStep < count ? count_ : 0;
      const auto* from = reinterpret_cast<const Bits*>(from_ + copy * step_);
#pragma unroll 1
      for (int i = 0; i < kPieceChannels; ++i)
        reinterpret_cast<Bits*>(to + offset_ + copy * kStep)[i] = i < elements ? from[i] : Bits{0};
    }
    from_ += next_;
  }

 private:
  const unsigned char* from_;
  std::int64_t step_, next_;  ///< bytes from one of the thread's rows to its next one, and to the next chunk
  int row_, offset_, count_;
};

}  // namespace glade::cuda::recurrent::warp_chunks
