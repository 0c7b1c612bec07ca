#pragma once
// A pass over states in float32 on Hopper's tensor cores, in chunks of 64 positions. With the names of pass.cuh, let a_p and b_p
// be the sums of the inner and outer log decays of a chunk up to position p, M its middle and E its end. With all decays measured
// from the middle, a forward scan is
//     X' = e^{a_M} X e^{b_M}
//     c'_p = c_p e^{a_p - a_M},    d'_p = d_p e^{a_M - a_p},    e'_p = e_p e^{b_M - b_p}
//     past_p = e^{b_p - b_M} [ c'_p X' + sum_{s<p} (c'_p . d'_s) e'_s ]
//     X = e^{a_E - a_M} [ X' + sum_s d'_s e'_s^T ] e^{b_E - b_M}
// A reverse scan has the opposite signs, and sums over s > p.
//
// With gates of heads alone, decays multiply other things, and are at most 1: the scores, by those between two positions, c X, by
// those from before the chunk, and e in the update, by those to the chunk's end. Any decay is safe then.
//
// An operand is the sum of three numbers in bfloat16, which hold all digits of a float32. Of their nine products six are added,
// all but those below 2^-26 of the result. The tensor cores cut their sums instead of rounding them. Therefore the largest
// product has an accumulator of its own, both start from 0 in every chunk, and ordinary instructions add them to the state.
//
// A block has 64 columns of a state in the registers of one warp group, transposed. Another one computes the scores c' . d', and
// producers prepare the operands of the next chunk. A chunk with large decay (its exponents would leave the safe range) is
// computed step by step, in the same registers. Blocks take items: a segment of a sequence, a head and 64 columns each.
#include <glade/core/cuda/hopper/wgmma.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/segments.cuh>

namespace glade::cuda::recurrent::float_chunks {

using bf16 = __nv_bfloat16;
using Tile = SwizzledTile<bf16>;

constexpr int kRows = kTile;  ///< of a chunk: its positions, and rows of zeros behind them
constexpr int kInner = 128;   ///< inner channels; those that a pass lacks are zeros
constexpr int kInnerTiles = kInner / kTile;
constexpr int kColumns = kTile;  ///< outer channels of a block
constexpr int kParts = 3;        ///< of an operand
constexpr int kProducers = 256, kGroup = 128, kThreads = 2 * kGroup + kProducers;

/// The largest safe exponent of a factor. The rounding of the exponents limits the error of a decay, as decays between positions
/// are quotients of factors.
constexpr float kSafeRange = 40;

/// The positions of a chunk.
struct Chunk {
  int first, count;         ///< none: the item ends here
  bool has_large_decay;     ///< it is computed step by step
  std::int64_t checkpoint;  ///< the number of its last position's, or -1

  __device__ bool has_row(int r) const { return r < count; }
};

/// Decays of the state in a chunk: to the middle, and from there on, in the order of the scan.
struct StateDecays {
  float inner[2][kInner], outer[2][kColumns];
};

/// Decays of a chunk that all channels share. a_p is the sum of the chunk's log decays up to position p.
struct alignas(16) HeadDecays {
  float high[kRows], low[kRows];           ///< a_p, base 2, in two parts
  float of_state[kRows], to_state[kRows];  ///< from the state before the chunk to each position, and from there to the next state
  float all;                               ///< of the state, over the whole chunk
};

/// Where an item's rows of an operand lie.
struct Place {
  const float* first;  ///< that of position 0; null: there are none
  std::int64_t step;   ///< elements from one position to the next
  __device__ const float* row(int position) const { return first + position * step; }
};

/// The same of all operands, and where the results lie.
struct ItemRows {
  Place operands[kOperands];
  std::int64_t results, results_step;  ///< the first element of position 0, and from one position to the next
};

struct Shared {
  Tile c[kParts][kInnerTiles];                    ///< c', [position][inner channel]
  Tile d[2][kParts][kInnerTiles];                 ///< d', of two chunks
  Tile e[kParts];                                 ///< e', [position][column]
  Tile scores[kParts];                            ///< [position of c'][position of d']
  static constexpr int kDecayRow = kColumns + 4;  ///< against bank conflicts
  float result_decays[kRows][kDecayRow];          ///< e^{b_p - b_M}
  float self[2][kRows];                           ///< c . d at each position, of two chunks
  StateDecays decays[2];                          ///< of two chunks
  HeadDecays head[2];                             ///< instead, where all channels share them
  Chunk chunks[2];
  ItemRows items[2];
  float inner_totals[2][4][kInner], outer_totals[2][8][kColumns];  ///< log decays of 16 and of 8 rows, of two chunks

  // A chunk with large decay has rows of floats in place of c', d' and e', and behind them the decays of the inner channels at
  // each position, or a row of zeros. The decays of the outer channels are the results' decays.
  __device__ float* plain_c(int r) { return reinterpret_cast<float*>(c) + r * kInner; }
  __device__ float* plain_d(int stage, int r) { return reinterpret_cast<float*>(d[stage]) + r * kInner; }
  __device__ float* plain_e(int r) { return reinterpret_cast<float*>(e) + r * kColumns; }
  __device__ float* zeros() { return plain_e(kRows); }
  __device__ float* step_decays(int stage, int r) { return r < kRows / 2 ? plain_c(kRows + r) : plain_d(stage, kRows / 2 + r); }

  // Chunk by chunk: c', d', the decays and what `chunks` says are there, e' is, the scores are; and these may be overwritten.
  std::uint64_t rows_full[2], e_full, scores_full, c_empty, d_empty[2], e_empty, scores_empty;
};

static_assert(sizeof(Shared::c) == 3 * kRows / 2 * kInner * sizeof(float));

/// What a block computes at a time.
struct Item {
  int n, h, segment, block_column;
  Sequence sequence;
  int low, high;  ///< positions of the segment: low .. high - 1

  /// `strips`: blocks' columns of a head.
  __device__ Item(const Pass<float>& pass, int item, int strips)
      : n(item / strips / pass.segments / pass.heads),
        h(item / strips / pass.segments % pass.heads),
        segment(item / strips % pass.segments),
        block_column(item % strips * kColumns),
        sequence(pass.sequences, n),
        low(static_cast<int>(segment * pass.segment)),
        high(max(low, static_cast<int>(min(low + pass.segment, sequence.length)))) {}
  __device__ Place place(const Rows& rows) const {
    if (rows.data == nullptr) return {nullptr, 0};
    return {static_cast<const float*>(rows.data) + rows.row(sequence.token(0), h) * rows.size,
            std::int64_t{rows.heads} * rows.size * (sequence.reverse ? -1 : 1)};
  }
  __device__ const float* initial_state(const Pass<float>& pass) const {
    return pass.initial.data + n * pass.initial.sequence + segment * pass.initial.segment + h * pass.state_size();
  }
  __device__ std::int64_t results(const Pass<float>& pass) const {
    return (sequence.token(0) * pass.heads + h) * pass.outer() + block_column;
  }
  __device__ std::int64_t results_step(const Pass<float>& pass) const {
    return std::int64_t{pass.heads} * pass.outer() * (sequence.reverse ? -1 : 1);
  }
};

/// Splits two neighbors into three parts each.
__device__ __forceinline__ void split(std::uint32_t (&parts)[kParts], float x, float y) {
  parts[0] = pack<bf16>(x, y);
  const float2 first = unpack<bf16>(parts[0]);
  x -= first.x, y -= first.y;
  parts[1] = pack<bf16>(x, y);
  const float2 second = unpack<bf16>(parts[1]);
  parts[2] = pack<bf16>(x - second.x, y - second.y);
}
/// The same for 16 columns of values as accumulators have them, those that begin with column 16 step.
__device__ __forceinline__ void split(LeftOperand (&parts)[kParts], const Accumulator<kTile>& x, int step) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int at = x.element(step, j);
    std::uint32_t pair[kParts];
    split(pair, x[at], x[at + 1]);
    for (int p = 0; p < kParts; ++p) parts[p][j] = pair[p];
  }
}

/// Sums of products: the largest ones, and all others.
struct Sums {
  Accumulator<kTile> large, small;

  __device__ float operator[](int i) const { return large[i] + small[i]; }
  /// Starts to add the products of 16 columns of a and 16 columns of b, or rows if kTransposeB. `b`: descriptor of its first
  /// part, whose next one lies kPartStep further on. `add` false: the sums start from 0.
  template <int kTransposeB, int kPartStep>
  __device__ __forceinline__ void multiply(const LeftOperand (&a)[kParts], std::uint64_t b, bool add) {
    wgmma<bf16, kTransposeB>(small, a[2], b, add);
    wgmma<bf16, kTransposeB>(small, a[0], b + 2 * kPartStep, 1);
    wgmma<bf16, kTransposeB>(small, a[1], b + kPartStep, 1);
    wgmma<bf16, kTransposeB>(small, a[1], b, 1);
    wgmma<bf16, kTransposeB>(small, a[0], b + kPartStep, 1);
    wgmma<bf16, kTransposeB>(large, a[0], b, add);
  }
  /// The same with both operands in shared memory. `a`: as b.
  template <int kPartStep>
  __device__ __forceinline__ void multiply(std::uint64_t a, std::uint64_t b, bool add) {
    wgmma<bf16>(small, a + 2 * kPartStep, b, add);
    wgmma<bf16>(small, a, b + 2 * kPartStep, 1);
    wgmma<bf16>(small, a + kPartStep, b + kPartStep, 1);
    wgmma<bf16>(small, a + kPartStep, b, 1);
    wgmma<bf16>(small, a, b + kPartStep, 1);
    wgmma<bf16>(large, a, b, add);
  }
  /// Waits for all products.
  __device__ __forceinline__ void wait() {
    wgmma_wait<0>();
    pin(large), pin(small);
  }
};

__device__ __forceinline__ void pin_parts(LeftOperand (&a)[kParts]) {
  for (auto& part : a) pin(part);
}

}  // namespace glade::cuda::recurrent::float_chunks
