#pragma once
// The kernels of warp_chunks.cuh: how they divide their work, and the part of a state that a warp holds.
#include <glade/ops/linear_attention/recurrent_cuda/gate_gradients.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/pass.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/warp_rows.cuh>

namespace glade::cuda::recurrent::warp_chunks {

constexpr int kColumns = kStripChannels;  ///< of a warp

/// Whether there are gates: that all channels share alone, or, perhaps beside those, of the inner or outer channels.
enum class Gates { none, head, inner, outer, both };

/// A kernel for up to I inner channels, with elements of type E and per-channel gates of type G. `kGateGradients`: for a reverse
/// scan that sums up gradients of gates, or with per-head gates for all scans that they follow from.
template <class E_, class G_, int I_, Gates kGates_, bool kGateGradients_ = false>
struct Variant {
  using E = E_;
  using G = G_;
  static constexpr int I = I_, kTiles = I / 16, kWarps = kTiles < 4 ? kTiles : 4, kThreads = kLanes * kWarps;
  static constexpr int kElementBytes = sizeof(E);
  static constexpr bool kIsFloat = kElementBytes == 4;
  static constexpr int kStages = kIsFloat ? 2 : 3;         ///< chunks in shared memory: that in use, and the next ones
  static constexpr int kBlockColumns = kColumns * kWarps;  ///< of a block
  static constexpr Gates kGates = kGates_;
  static constexpr bool kGateGradients = kGateGradients_;
  static constexpr bool kInner = kGates == Gates::inner || kGates == Gates::both, kOuter = kGates >= Gates::outer;
  static constexpr int kGateBytes = sizeof(G), kRow = row_bytes(I, kElementBytes), kGateRow = row_bytes(I, kGateBytes),
                       kOuterRow = row_bytes(kBlockColumns, kElementBytes), kOuterGateRow = row_bytes(kBlockColumns, kGateBytes);
  /// Which operands have low parts: rows of the inner channels, and those of the outer ones. In float32 all have.
  static constexpr bool kLowRows = kInner || kIsFloat,
                        kLowColumns = kOuter || kIsFloat || (kGates == Gates::head && kGateGradients);
  /// Blocks on a multiprocessor, as registers allow it.
  static constexpr int kBlocks = (I <= 32 || !(kInner || kOuter || kIsFloat) ? 16 : I == 64 ? 12 : 8) / kWarps;

  /// Whether each warp computes a part of the scores, for all. Else all compute all of them, which takes no memory.
  static constexpr bool kShareScores = I == 128;

  // Where the rows of a chunk lie in its part of shared memory.
  static constexpr int kC = 0, kD = kC + rows_bytes(I, kElementBytes), kE = kD + rows_bytes(I, kElementBytes),
                       kInnerGates = kE + rows_bytes(kBlockColumns, kElementBytes),
                       kOuterGates = kInnerGates + (kInner ? rows_bytes(I, kGateBytes) : 0),
                       kStageBytes = kOuterGates + (kOuter ? rows_bytes(kBlockColumns, kGateBytes) : 0);
  // After the stages: c' and d' with their low parts (if they are not split when they are loaded, which takes less memory), the
  // decays of the inner channels to the middle of a chunk and from there on, and the products c . d of a position and of pairs
  // of positions, by warp.
  static constexpr bool kStoresLow = !kIsFloat || I >= 64;
  static constexpr int kScaledBytes = kInner ? rows_bytes(I, kElementBytes) : 0, kLowBytes = kStoresLow ? kScaledBytes : 0;
  static constexpr int kScaledC = kStages * kStageBytes, kLowC = kScaledC + kScaledBytes, kScaledD = kLowC + kLowBytes,
                       kLowD = kScaledD + kScaledBytes, kStateDecays = kLowD + kLowBytes,
                       kSelf = kStateDecays + (kInner ? 2 * I * static_cast<int>(sizeof(float)) : 0),
                       kScores = kSelf + (kInner ? kWarps * kTokens * static_cast<int>(sizeof(float)) : 0),
                       kTerms = kScores + (kShareScores ? kWarps * kTokens * kTokens * static_cast<int>(sizeof(float)) : 0);
  // Last, for gradients of gates, by warp: elements of y and past_x of a chunk, and a number for each column.
  static constexpr int kY = 0, kPastX = kY + kTokens * kColumns * kElementBytes,
                       kLater = kPastX + kTokens * kColumns * static_cast<int>(sizeof(float)),
                       kTermBytes = kLater + kColumns * static_cast<int>(sizeof(float)),
                       kBytes = kTerms + (kGateGradients ? kWarps * kTermBytes : 0);
};

/// The positions of a chunk.
struct Chunk {
  const unsigned char* rows;
  int first, count;         ///< positions
  bool whole;               ///< all positions, and columns of the results, exist
  std::int64_t results;     ///< offset of this lane's first result
  int eight_rows;           ///< from a row of results to the one 8 positions later
  std::int64_t checkpoint;  ///< the number of its last position's, or -1
  std::uint32_t head_gate;  ///< the bits of this lane's position's, as no load is waited for before they are needed
};

/// The checkpoints of a scan's chunks, which follow each other, in either direction. Intervals are multiples of kTokens.
class Checkpoints {
 public:
  __device__ Checkpoints(const Sequence& sequence, int interval, int first)
      : sequence_(sequence), interval_(interval), index_(first / interval), end_((index_ + 1) * interval) {}
  /// The number of the checkpoint that the chunk from position `first` on ends at, or -1.
  __device__ std::int64_t of_chunk(int first) {
    if (first >= end_) ++index_, end_ += interval_;
    if (first < end_ - interval_) --index_, end_ -= interval_;
    const int end = first + kTokens;
    return end >= sequence_.length || end == end_ ? sequence_.first_checkpoint + index_ : -1;
  }

 private:
  const Sequence& sequence_;
  const int interval_;
  int index_, end_;  ///< of the interval, and its end
};

/// A warp of a block, and its part of the state.
template <class V>
struct WarpState {
  using E = typename V::E;
  static constexpr int I = V::I, kTiles = V::kTiles;
  static constexpr bool kInner = V::kInner, kOuter = V::kOuter;

  const Pass<float>& pass;
  unsigned char* const memory;
  const std::int64_t n;
  const int h, block_column, segment;
  const float factor;         ///< of results
  const float update_factor;  ///< of d e^T; the warp leaves it out, and has the state divided by it
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kLanes, 0), column = block_column + kColumns * warp;
  const int lane = static_cast<int>(threadIdx.x % kLanes), row = lane / 4,
            pair = lane % 4 * 2;  ///< of its part of a matrix [8, 8]
  const Sequence sequence = Sequence(pass.sequences, n);
  const float gamma = pass.gamma_gate(n, h);          ///< part of the log decay of all positions
  const float sign = pass.reverse_scan ? -1.f : 1.f;  ///< of log decays
  /// The state, transposed: of each 8 inner channels a lane has columns `row` and `row` + 8, and two channels (channel()).
  float x[2 * kTiles][4] = {};

  /// `pair_of_heads`: of a sequence and a head.
  __device__ WarpState(const Pass<float>& pass, unsigned char* memory, int pair_of_heads, int block_column, int segment,
                       float factor, float update_factor)
      : pass(pass),
        memory(memory),
        n(pair_of_heads / pass.heads),
        h(pair_of_heads % pass.heads),
        block_column(block_column),
        segment(segment),
        factor(factor),
        update_factor(update_factor) {}

  /// 0, as the compiler does not know. See copy_of().
  __device__ std::uint32_t zero() const { return static_cast<std::uint32_t>(pass.heads) >> 31; }
  /// Of each 8 inner channels, the one of this lane's element i of a pair.
  __device__ int channel(int i) const { return V::kIsFloat ? pair / 2 + 4 * i : pair + i; }
  /// Calls f(offset, element) for the lane's elements within the state.
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) {
#pragma unroll
    for (int k = 0; k < 2 * kTiles; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int inner = 8 * k + channel(i % 2), outer = column + row + i / 2 * 8;
        if (inner < pass.inner() && outer < pass.outer()) f(inner * pass.inner_stride + outer * pass.outer_stride, x[k][i]);
      }
  }
  __device__ void load_state() {
    if (pass.initial.data == nullptr) return;
    const float* from = pass.initial.data + n * pass.initial.sequence + segment * pass.initial.segment + h * pass.state_size();
    for_each([&](std::int64_t at, float& element) { element = from[at] / update_factor; });
  }
  __device__ void store_state() {
    float* to = pass.final.data + n * pass.final.sequence + segment * pass.final.segment + h * pass.state_size();
    for_each([&](std::int64_t at, float element) { to[at] = element * update_factor; });
  }

  /// Decays of a chunk's columns, and where those of its inner channels lie; those of an element multiply.
  struct StateDecay {
    const float* inner;
    float outer[2];
  };
  /// Calls f(elements, their decays) for the elements of each 8 inner channels.
  template <class F>
  __device__ __forceinline__ void for_each_decay(const StateDecay& decay, F&& f) {
#pragma unroll
    for (int k = 0; k < 2 * kTiles; ++k) {
      float2 inner = make_float2(1, 1);
      if constexpr (kInner) inner = make_float2(decay.inner[8 * k + channel(0)], decay.inner[8 * k + channel(1)]);
      float decays[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) decays[i] = (i % 2 == 0 ? inner.x : inner.y) * (kOuter ? decay.outer[i / 2] : 1.f);
      f(k, decays);
    }
  }
  __device__ __forceinline__ void decay(const StateDecay& decay) {
    for_each_decay(decay, [&](int k, const float(&decays)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[k][i] *= decays[i];
    });
  }
  /// The place of x[k] in a checkpoint.
  __device__ float4& saved(std::int64_t checkpoint, int k) const {
    constexpr int kBlock = V::kBlockColumns;
    const std::int64_t strips = (pass.outer() + kBlock - 1) / kBlock,
                       block = (checkpoint * pass.heads + h) * strips + block_column / kBlock;
    return reinterpret_cast<float4*>(pass.states + block * (I * kBlock))[(warp * 2 * kTiles + k) * kLanes + lane];
  }
  /// Saves the state times `decay`.
  __device__ void save(std::int64_t checkpoint, const StateDecay& decay) {
    for_each_decay(decay, [&](int k, const float(&d)[4]) {
      saved(checkpoint, k) = make_float4(x[k][0] * d[0], x[k][1] * d[1], x[k][2] * d[2], x[k][3] * d[3]);
    });
  }
  /// Multiplies the state by that of a checkpoint, and leaves the sums over the inner channels in pass.products.
  __device__ void multiply_saved(std::int64_t checkpoint) const {
    float sums[2] = {};
#pragma unroll
    for (int k = 0; k < 2 * kTiles; ++k) {
      const float4 other = saved(checkpoint, k);
      sums[0] += x[k][0] * other.x + x[k][1] * other.y;
      sums[1] += x[k][2] * other.z + x[k][3] * other.w;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = quad_sum(sums[i]) * update_factor;
      const int outer = column + row + 8 * i;
      if (pair == 0 && outer < pass.outer()) pass.products[(checkpoint * pass.heads + h) * pass.outer() + outer] = sum;
      if (V::kGateGradients && pair == 0) later()[row + 8 * i] = sum;
    }
  }
  __device__ bool sums_terms() const { return V::kGateGradients && pass.past_x != nullptr; }
  __device__ unsigned char* term_memory() const { return memory + V::kTerms + warp * V::kTermBytes; }
  /// The sums over later positions of the terms of the gates' gradients, of the warp's columns.
  __device__ float* later() const { return reinterpret_cast<float*>(term_memory() + V::kLater); }
  /// The same, without decay.
  __device__ void save_undecayed(std::int64_t checkpoint) const {
#pragma unroll
    for (int k = 0; k < 2 * kTiles; ++k) saved(checkpoint, k) = make_float4(x[k][0], x[k][1], x[k][2], x[k][3]);
  }
};

}  // namespace glade::cuda::recurrent::warp_chunks
