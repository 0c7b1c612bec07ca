#pragma once
// Where a chunk's tokens lie, and its gates: what the three chunk kernels have in common.
#include <glade/ops/linear_attention/chunk_tile.cuh>

namespace glade::cuda::chunk {

/// A Recurrence as the kernels take it; see linear_attention_kernels.h.
struct Arguments {
  const bf16 *q, *k, *v;
  const void *g, *gk;      ///< float where wide_gates, else bfloat16; null: no such gate
  bool wide_gates;
  const float* g_gamma;
  const std::int64_t* cu_seqlens;
  std::int64_t sequences, length;
  int heads, kv_heads, K, V;
  float scale;
  bool reverse;
};

/// One sequence's tokens in the order in which the recurrence runs.
struct Sequence {
  std::int64_t begin, count;
  bool reverse;

  __device__ Sequence(const Arguments& a, std::int64_t n)
      : begin(a.cu_seqlens ? a.cu_seqlens[n] : n * a.length),
        count(a.cu_seqlens ? a.cu_seqlens[n + 1] - begin : a.length),
        reverse(a.reverse) {}
  __device__ std::int64_t token(std::int64_t position) const { return reverse ? begin + count - 1 - position : begin + position; }
  __device__ int chunks() const { return static_cast<int>((count + kTile - 1) / kTile); }
  /// A number for chunk c of sequence n, different for all chunks and below tokens / 64 + sequences + 1.
  __device__ std::int64_t slot(std::int64_t n, int c) const { return begin / kTile + n + c; }
};

/// A chunk of a sequence: positions first to first + count.
struct Chunk {
  const Sequence& sequence;
  std::int64_t first;
  int count;

  __device__ Chunk(const Sequence& s, int c)
      : sequence(s), first(std::int64_t{c} * kTile), count(static_cast<int>(min(static_cast<std::int64_t>(kTile), s.count - first))) {}
  __device__ std::int64_t token(int t) const { return sequence.token(first + t); }
};

/// 64 rows of 64 (or 128) columns on their way from global memory, 8 columns at a time; what lies outside is 0.
template <int Columns>
struct Rows {
  static constexpr int vectors = kTile * Columns / 8 / kThreads;
  uint4 x[vectors];

  __device__ static int row(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) / (Columns / 8); }
  __device__ static int column(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) % (Columns / 8) * 8; }

  /// Columns first_column on of head `head` of a [tokens, heads, size] tensor.
  __device__ void load(const bf16* source, const Chunk& chunk, int heads, int head, int size, int first_column) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int r = row(i), c = first_column + column(i);
      x[i] = make_uint4(0, 0, 0, 0);
      if (r < chunk.count && c < size) x[i] = __ldg(reinterpret_cast<const uint4*>(source + (chunk.token(r) * heads + head) * size + c));
    }
  }
  /// A [K, V] state from row first_row and column first_column on.
  __device__ void load(const bf16* state, int K, int V, int first_row, int first_column) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int r = first_row + row(i), c = first_column + column(i);
      x[i] = make_uint4(0, 0, 0, 0);
      if (r < K && c < V) x[i] = __ldg(reinterpret_cast<const uint4*>(state + static_cast<std::int64_t>(r) * V + c));
    }
  }
  __device__ void store(Tile<Columns>& tile) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) *reinterpret_cast<uint4*>(tile.at(row(i), column(i))) = x[i];
  }
  /// Stores f(row, column) times each element.
  template <class F>
  __device__ void store_scaled(Tile<Columns>& tile, F&& f) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int r = row(i), c = column(i);
      uint4 result;
      const std::uint32_t* in = reinterpret_cast<const std::uint32_t*>(&x[i]);
      std::uint32_t* out = reinterpret_cast<std::uint32_t*>(&result);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&in[j]));
        out[j] = pack(pair.x * f(r, c + 2 * j), pair.y * f(r, c + 2 * j + 1));
      }
      *reinterpret_cast<uint4*>(tile.at(r, c)) = result;
    }
  }
};

/// Log decays below this are taken as this: e^-200 is 0 in float32, and sums of 64 stay finite.
inline constexpr float kLeastGate = -200;
/// Steps whose decay is 0 in float32: no gradient flows to their gates.
inline constexpr float kDeadGate = -104;
/// The factored form is used while every decay measured from the middle of the chunk is within e^+-this. Both factors of a
/// product are then normal numbers, with room for the values they multiply.
inline constexpr float kSafeRange = 60;

__device__ inline float load_gate(const void* gate, bool wide, std::int64_t i) {
  return wide ? __ldg(static_cast<const float*>(gate) + i) : __bfloat162float(static_cast<const bf16*>(gate)[i]);
}

/// Cumulative log decays of a chunk: b[t] is that of the steps up to and including t. With per-channel gates for 64 channels,
/// otherwise one column.
template <bool kPerChannel>
struct Gates {
  static constexpr int stride = kPerChannel ? kTile + 1 : 1;
  float b[kTile * stride];
  float totals[kWarps][kPerChannel ? kTile : 1];
  unsigned long long dead[kPerChannel ? kTile : 1];  ///< bit t: step t's decay is 0

  __device__ float at(int t, int channel) const { return b[t * stride + (kPerChannel ? channel : 0)]; }
  __device__ float end(int channel) const { return at(kTile - 1, channel); }
  __device__ float middle(int channel) const { return at(kTile / 2 - 1, channel); }

  /// Reads and sums the gates of channels first_channel on; tokens past the end of the sequence do not decay. All threads
  /// of the block take part. Returns whether the factored form may be used.
  __device__ bool load(const Arguments& a, const Chunk& chunk, std::int64_t n, int head, int first_channel) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    constexpr int kSteps = kTile / kWarps;
    const float gamma = a.g_gamma ? a.g_gamma[n * a.heads + head] : 0.f;
    constexpr int kWidth = kPerChannel ? 2 : 1;
    if (thread < (kPerChannel ? kTile : 1)) dead[thread] = 0;
    __syncthreads();
    // A warp sums 16 steps, a lane two channels (or, with one gate a head, lane 0 all: 16 loads in flight either way).
    float sum[kWidth] = {}, local[kSteps][kWidth];
    const bool active = kPerChannel || lane == 0;
    if (active) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int t = warp * kSteps + s;
        const bool inside = t < chunk.count;
        const std::int64_t row = inside ? chunk.token(t) * a.heads + head : 0;
        const float shared = inside ? gamma + (a.g ? load_gate(a.g, a.wide_gates, row) : 0.f) : 0.f;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const int channel = first_channel + 2 * lane + j;
          float step = shared;
          if (kPerChannel && inside && channel < a.K) step += load_gate(a.gk, a.wide_gates, row * a.K + channel);
          local[s][j] = step < kLeastGate ? kLeastGate : step;  // NaN stays
        }
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          if (local[s][j] < kDeadGate) atomicOr(&dead[kPerChannel ? 2 * lane + j : 0], 1ull << (warp * kSteps + s));
          sum[j] += local[s][j];
          local[s][j] = sum[j];
        }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) totals[warp][kPerChannel ? 2 * lane + j : 0] = sum[j];
    }
    __syncthreads();
    bool safe = true;
    if (active) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const int channel = kPerChannel ? 2 * lane + j : 0;
        float before = 0;
        for (int w = 0; w < warp; ++w) before += totals[w][channel];
        const float center = totals[0][channel] + totals[1][channel];
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const float value = before + local[s][j];
          safe = safe && !(fabsf(value - center) > kSafeRange);
          b[(warp * kSteps + s) * stride + channel] = value;
        }
      }
    }
    return !__syncthreads_or(kPerChannel && !safe);
  }
};

}  // namespace glade::cuda::chunk
