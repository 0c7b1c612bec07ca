#pragma once
// The rows of a chunk in shared memory, and 16 x 16 operands from them: what a warp of warp_chunks.cuh multiplies.
#include <glade/core/cuda/instructions.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/rows.cuh>

namespace glade::cuda::recurrent::warp_chunks {

constexpr int kLanes = 32;
constexpr int kTokens = 16;   ///< positions of a chunk
constexpr int kPadding = 16;  ///< bytes between rows, against bank conflicts

/// Bytes of a row of so many channels in shared memory, and of the rows of a chunk.
constexpr int row_bytes(int channels, int element) { return channels * element + kPadding; }
constexpr int rows_bytes(int channels, int element) { return kTokens * row_bytes(channels, element); }

/// Two elements of a matrix [8, 8], in the registers of a lane: neighbors in 16 bits, and four columns apart in float32.
template <class E>
using Pair = std::conditional_t<sizeof(E) == 2, std::uint32_t, uint2>;

/// The inner channel that lies in column n of a matrix of 8 inner channels. In float32, products over them then find each row in
/// shared memory in the order of memory.
template <class E>
__device__ __forceinline__ int channel_of_column(int n) {
  return sizeof(E) == 2 ? n : n / 2 + n % 2 * 4;
}

/// Rounds two values to what the tensor cores multiply: to 16 bits, or to TF32 numbers of 11 bits.
template <class E>
__device__ __forceinline__ Pair<E> round_pair(float x, float y) {
  if constexpr (sizeof(E) == 2) {
    return pack<E>(x, y);
  } else {
    const auto round = [](float value) { return (__float_as_uint(value) + 0x1000u) & ~0x1fffu; };
    return {round(x), round(y)};
  }
}
template <class E>
__device__ __forceinline__ float2 values_of(const Pair<E>& pair) {
  if constexpr (sizeof(E) == 2) return unpack<E>(pair);
  else return make_float2(__uint_as_float(pair.x), __uint_as_float(pair.y));
}
/// The low parts of a pair of values: what rounding to `high` left.
template <class E>
__device__ __forceinline__ Pair<E> low_pair(float x, float y, const Pair<E>& high) {
  if constexpr (sizeof(E) == 2) return pack_low<E>(x, y, high);
  else return {__float_as_uint(x - __uint_as_float(high.x)), __float_as_uint(y - __uint_as_float(high.y))};
}

/// c += a b for a [16, 16] and b [16, 8], whose halves are b0 and b1.
template <class E>
__device__ __forceinline__ void multiply_add(float (&c)[4], const Pair<E> (&a)[4], const Pair<E>& b0, const Pair<E>& b1) {
  if constexpr (sizeof(E) == 2) {
    mma<E>(c, a, b0, b1);
  } else {
    const std::uint32_t first[4] = {a[0].x, a[1].x, a[0].y, a[1].y}, second[4] = {a[2].x, a[3].x, a[2].y, a[3].y};
    mma<float>(c, first, b0.x, b0.y);
    mma<float>(c, second, b1.x, b1.y);
  }
}

/// Four matrices [8, 8] of 16-bit elements from the rows of a chunk: its first and second 8 positions of the first 8 channels at
/// `rows`, and of the next 8. A lane has two channels of a position, or two positions of a channel if kTransposed.
template <bool kTransposed, bool kInner = true>
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const unsigned char* rows, int row_bytes) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  ldmatrix<kTransposed>(r, shared_address(rows) + static_cast<std::uint32_t>(lane % 16 * row_bytes + lane / 16 * 16));
}
/// The same of floats. A lane has channels as WarpState::channel() says, or two neighboring positions of channel_of_column(), or
/// of channels in order if not kInner, if kTransposed.
template <bool kTransposed, bool kInner = true>
__device__ __forceinline__ void load_matrices(uint2 (&r)[4], const unsigned char* rows, int row_bytes) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  if constexpr (kTransposed) {
    const int channel = kInner ? channel_of_column<float>(lane / 4) : lane / 4;
    const unsigned char* at = rows + lane % 4 * 2 * row_bytes + channel * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned char* first = at + i % 2 * 8 * row_bytes + i / 2 * 32;
      r[i] = {*reinterpret_cast<const std::uint32_t*>(first), *reinterpret_cast<const std::uint32_t*>(first + row_bytes)};
    }
  } else {
    const auto at = shared_address(rows) + static_cast<std::uint32_t>(lane % 16 * row_bytes + lane / 16 * 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t quads[4];
      ldmatrix<false>(quads, at + static_cast<std::uint32_t>(32 * i));
      r[2 * i] = {quads[0], quads[2]};
      r[2 * i + 1] = {quads[1], quads[3]};
    }
  }
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
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  unsigned char* at = rows + lane / 4 * row_bytes + lane % 4 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) *reinterpret_cast<std::uint32_t*>(at + i % 2 * 8 * row_bytes + i / 2 * 16) = r[i];
}
__device__ __forceinline__ void store_matrices(const uint2 (&r)[4], unsigned char* rows, int row_bytes) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  unsigned char* at = rows + lane / 4 * row_bytes + lane % 4 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned char* first = at + i % 2 * 8 * row_bytes + i / 2 * 32;
    *reinterpret_cast<std::uint32_t*>(first) = r[i].x;
    *reinterpret_cast<std::uint32_t*>(first + 16) = r[i].y;
  }
}

/// A copy of registers that the compiler cannot undo: `zero` is 0, which it does not know. Where an operand is a right one first
/// and a left one later, whose registers are in another order, it would copy them for every product.
__device__ __forceinline__ std::uint32_t copy_of(std::uint32_t pair, std::uint32_t zero) { return pair ^ zero; }
__device__ __forceinline__ uint2 copy_of(const uint2& pair, std::uint32_t zero) { return {pair.x ^ zero, pair.y ^ zero}; }

/// Of a pair, the elements that are to be kept; the others become 0.
__device__ __forceinline__ std::uint32_t keep(std::uint32_t pair, bool first, bool second) {
  return pair & ((first ? 0x0000ffffu : 0u) | (second ? 0xffff0000u : 0u));
}
__device__ __forceinline__ uint2 keep(const uint2& pair, bool first, bool second) {
  return {first ? pair.x : 0u, second ? pair.y : 0u};
}

/// Two neighboring elements of a row in shared memory.
template <class E>
__device__ __forceinline__ float2 row_pair(const unsigned char* row, int channel) {
  if constexpr (sizeof(E) == 2) return unpack<E>(*reinterpret_cast<const std::uint32_t*>(row + 2 * channel));
  else return *reinterpret_cast<const float2*>(row + 4 * channel);
}

/// A lane's part of an operand [16, 16]: its 8 x 8 matrices above each other, then those to their right. If kLow, the operand is
/// the sum of two rounded parts; else it has no low part.
template <class E, bool kLow>
struct Operand {
  Pair<E> high[4], low[4];

  __device__ __forceinline__ void set(int i, float x, float y) {
    high[i] = round_pair<E>(x, y);
    if constexpr (kLow) low[i] = low_pair<E>(x, y, high[i]);
  }
  /// The same for products alone, in fewer instructions: in float32 the tensor cores cut `high` as they cut all that they
  /// multiply. The other operand has to be rounded, so that the product of low parts, which is left out, is 0 on average.
  __device__ __forceinline__ void set_cut(int i, float x, float y) {
    if constexpr (sizeof(E) == 2) {
      set(i, x, y);
    } else {
      const auto rest = [](float value) { return __float_as_uint(value - __uint_as_float(__float_as_uint(value) & ~0x1fffu)); };
      high[i] = {__float_as_uint(x), __float_as_uint(y)};
      low[i] = {rest(x), rest(y)};
    }
  }
  __device__ __forceinline__ float2 get(int i) const {
    float2 sum = values_of<E>(high[i]);
    if constexpr (kLow) {
      const float2 rest = values_of<E>(low[i]);
      sum.x += rest.x, sum.y += rest.y;
    }
    return sum;
  }
  /// A pair of sums of both parts, which float32 holds exactly.
  __device__ __forceinline__ Pair<E> whole(int i) const {
    const float2 sum = get(i);
    return {__float_as_uint(sum.x), __float_as_uint(sum.y)};
  }
  /// copy_of() its pairs.
  __device__ __forceinline__ Operand copy(std::uint32_t zero) const {
    Operand other;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      other.high[i] = copy_of(high[i], zero);
      if constexpr (kLow) other.low[i] = copy_of(low[i], zero);
    }
    return other;
  }
  /// Splits what load_matrices() has left in `high`, as float32 needs it.
  template <bool kCut = false>
  __device__ __forceinline__ void split() {
    if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 both = values_of<E>(high[i]);
        if constexpr (kCut) set_cut(i, both.x, both.y);
        else set(i, both.x, both.y);
      }
    }
  }
};

/// c += a b for all parts but the product of the low ones. b [16, 8] is what the pairs `first` and `second` of its operand hold.
template <class E, bool kLowA, bool kLowB>
__device__ __forceinline__ void multiply_add(float (&c)[4], const Operand<E, kLowA>& a, const Operand<E, kLowB>& b, int first,
                                             int second) {
  if constexpr (kLowA) multiply_add<E>(c, a.low, b.high[first], b.high[second]);
  if constexpr (kLowB) multiply_add<E>(c, a.high, b.low[first], b.low[second]);
  multiply_add<E>(c, a.high, b.high[first], b.high[second]);
}

/// Whether every 16 bytes of the rows are aligned, and within a row.
__device__ inline bool has_pieces(const Rows& rows) {
  const int element = rows.dtype == DType::float32 ? 4 : 2;
  return (reinterpret_cast<std::uintptr_t>(rows.data) | static_cast<unsigned>(rows.size * element)) % 16 == 0;
}

/// x, which the compiler keeps in a register instead of computing it again at each use, as it does with what follows from the
/// thread's index.
__device__ inline int kept(int x) { return __shfl_sync(~0u, x, static_cast<int>(threadIdx.x % kLanes)); }

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
    const int piece = static_cast<int>(threadIdx.x % kPieces), channel = first + piece * kPieceChannels;
    row_ = static_cast<int>(threadIdx.x / kPieces);
    count_ = max(min(rows.size - channel, kPieceChannels), 0);
    const std::int64_t stride = static_cast<std::int64_t>(rows.heads) * rows.size * kElement * (sequence.reverse ? -1 : 1);
    from_ = static_cast<const unsigned char*>(rows.data) +
            (rows.row(sequence.token(position), h) * rows.size + channel) * kElement + row_ * stride;
    step_ = uniform(static_cast<int>(kRowStep * stride));
    next_ = uniform(static_cast<int>((reverse ? -kTokens : kTokens) * stride));
    offset_ = kept(row_ * row_bytes(kChannels, kElement) + piece * 16);
  }
  /// Writes zeros to the pieces beyond the rows' channels, which copy() leaves alone.
  __device__ void clear(unsigned char* to) const {
    if (count_ == 0)
      for (int i = 0; i < kCopies; ++i) *reinterpret_cast<uint4*>(to + offset_ + i * kStep) = make_uint4(0, 0, 0, 0);
  }
  /// Starts to copy the next chunk. All its positions exist, and all pieces are whole.
  __device__ __forceinline__ void copy(unsigned char* to) {
    auto shared = shared_address(to) + static_cast<std::uint32_t>(offset_);
    if (count_ > 0) {
      const unsigned char* from = from_;
#pragma unroll
      for (int i = 0; i < kCopies; ++i, from += step_)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared + static_cast<std::uint32_t>(i * kStep)), "l"(from)
                     : "memory");
    }
    advance();
  }
  /// Copies any chunk, of `count` positions; the others become zeros.
  __device__ __forceinline__ void copy_any(unsigned char* to, int count) {
    using Bits = std::conditional_t<kElement == 2, std::uint16_t, std::uint32_t>;
#pragma unroll 1
    for (int copy = 0; copy < kCopies; ++copy) {
      const int elements = row_ + copy * kRowStep < count ? count_ : 0;
      const auto* from = reinterpret_cast<const Bits*>(from_ + std::int64_t{copy} * step_);
#pragma unroll 1
      for (int i = 0; i < kPieceChannels; ++i)
        reinterpret_cast<Bits*>(to + offset_ + copy * kStep)[i] = i < elements ? from[i] : Bits{0};
    }
    advance();
  }

 private:
  __device__ void advance() {
    from_ += next_;
    asm("" : "+l"(from_));  // otherwise the compiler keeps two such pointers, one for each function
  }

  const unsigned char* from_;
  int step_, next_;  ///< bytes from one of the thread's rows to its next one, and to the next chunk
  int row_, offset_, count_;
};

/// Loads the gates of a head, one for each of the first lanes: those of one chunk after the other.
class GateLoader {
 public:
  __device__ GateLoader(const Rows& gates, int h, const Sequence& sequence, int position, bool reverse)
      : is_float_(gates.dtype == DType::float32) {
    const int bytes = is_float_ ? 4 : 2, stride = gates.heads * bytes * (sequence.reverse ? -1 : 1);
    from_ = static_cast<const unsigned char*>(gates.data) +
            gates.row(sequence.token(position + static_cast<int>(threadIdx.x % kLanes)), h) * bytes;
    next_ = uniform((reverse ? -kTokens : kTokens) * stride);
  }
  /// The bits of this lane's gate of the next chunk, if there is one.
  __device__ std::uint32_t load(bool exists) {
    const unsigned char* const at = from_;
    from_ += next_;
    if (!exists) return 0;
    return is_float_ ? *reinterpret_cast<const std::uint32_t*>(at) : *reinterpret_cast<const std::uint16_t*>(at);
  }

 private:
  const unsigned char* from_;
  int next_;  ///< bytes to the next chunk
  bool is_float_;
};

}  // namespace glade::cuda::recurrent::warp_chunks
