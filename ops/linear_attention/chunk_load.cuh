#pragma once
// Where a chunk's tokens lie, and its gates: what the three chunk kernels have in common.
#include <glade/ops/linear_attention/chunk_tile.cuh>

namespace glade::cuda::chunk {

/// A Recurrence as the kernels take it; see linear_attention_kernels.h.
struct Arguments {
  const bf16 *q, *k, *v;
  const void *g, *gk;  ///< float where wide_gates, else bfloat16; null: no such gate
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
      : sequence(s),
        first(std::int64_t{c} * kTile),
        count(static_cast<int>(min(static_cast<std::int64_t>(kTile), s.count - first))) {}
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
      if (r < chunk.count && c < size)
        x[i] = __ldg(reinterpret_cast<const uint4*>(source + (chunk.token(r) * heads + head) * size + c));
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
        const float2 pair = unpack(in[j]);
        out[j] = pack(pair.x * f(r, c + 2 * j), pair.y * f(r, c + 2 * j + 1));
      }
      *reinterpret_cast<uint4*>(tile.at(r, c)) = result;
    }
  }
};

/// Copies past the registers: 64 rows of Columns values into a tile, asynchronously; address(row, column) is null outside.
template <int Columns, class F>
__device__ void copy_async(Tile<Columns>& tile, F&& address) {
#pragma unroll
  for (int i = 0; i < Rows<Columns>::vectors; ++i) {
    const int r = Rows<Columns>::row(i), c = Rows<Columns>::column(i);
    const bf16* source = address(r, c);
    const auto target = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile.at(r, c)));
    // With a size of 0 the 16 bytes are filled with zeros.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(source ? 16 : 0) : "memory");
  }
}
/// Head `head` of a [tokens, heads, size] tensor, from column first_column on.
template <int Columns>
__device__ void copy_rows(Tile<Columns>& tile, const bf16* x, const Chunk& chunk, int heads, int head, int size,
                          int first_column) {
  copy_async(tile, [&](int r, int c) {
    return r < chunk.count && first_column + c < size ? x + (chunk.token(r) * heads + head) * size + first_column + c : nullptr;
  });
}
/// A [K, V] state from row first_row and column first_column on.
template <int Columns>
__device__ void copy_state(Tile<Columns>& tile, const bf16* state, int K, int V, int first_row, int first_column) {
  copy_async(tile, [&](int r, int c) {
    return first_row + r < K && first_column + c < V ? state + static_cast<std::int64_t>(first_row + r) * V + first_column + c
                                                     : nullptr;
  });
}
/// Waits for this thread's copies.
__device__ inline void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Log decays below this are taken as this: e^-200 is 0 in float32, and sums of 64 stay finite.
inline constexpr float kLeastGate = -200;
/// Steps whose decay is 0 in float32: no gradient flows to their gates.
inline constexpr float kDeadGate = -104;
/// The factored form is used while every decay measured from the middle of the chunk is within e^+-this. Both factors of a
/// product are then normal numbers, with room for the values they multiply.
inline constexpr float kSafeRange = 60;

/// Tokens whose gates a warp sums.
inline constexpr int kSteps = kTile / kWarps;

/// The gates of a chunk on their way from global memory: one a token (thread t holds token t), or 64 channels a token (a warp
/// holds 8 tokens, a lane two channels). Every load is issued before the first value is used.
template <bool kPerChannel>
struct GateRows;

template <>
struct GateRows<false> {
  float step = 0;
  __device__ void load(const Arguments& a, const Chunk& chunk, std::int64_t n, int head, int) {
    load_token(a, chunk, n, head, static_cast<int>(threadIdx.x));
  }
  __device__ void load_token(const Arguments& a, const Chunk& chunk, std::int64_t n, int head, int t) {
    step = 0;
    if (t >= chunk.count) return;
    if (a.g_gamma) step = __ldg(a.g_gamma + n * a.heads + head);
    const std::int64_t at = chunk.token(t) * a.heads + head;
    if (a.g)
      step +=
          a.wide_gates ? __ldg(static_cast<const float*>(a.g) + at) : __bfloat162float(__ldg(static_cast<const bf16*>(a.g) + at));
  }
};

template <>
struct GateRows<true> {
  float2 step[kSteps];
  __device__ void load(const Arguments& a, const Chunk& chunk, std::int64_t n, int head, int first_channel) {
    const int first = static_cast<int>(threadIdx.x) / 32 * kSteps,
              channel = first_channel + static_cast<int>(threadIdx.x) % 32 * 2;
    const bool inside = channel < a.K;
    auto at = [&](int s) { return (chunk.token(first + s) * a.heads + head) * a.K + channel; };
    if (a.wide_gates) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        step[s] = make_float2(0, 0);
        if (inside && first + s < chunk.count)
          step[s] = __ldg(reinterpret_cast<const float2*>(static_cast<const float*>(a.gk) + at(s)));
      }
    } else {
      std::uint32_t pairs[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        pairs[s] = 0;
        if (inside && first + s < chunk.count)
          pairs[s] = __ldg(reinterpret_cast<const std::uint32_t*>(static_cast<const bf16*>(a.gk) + at(s)));
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) step[s] = unpack(pairs[s]);
    }
    if (!a.g && !a.g_gamma) return;
    // One more for all channels: lane s reads that of token s.
    GateRows<false> shared;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kSteps) shared.load_token(a, chunk, n, head, first + lane);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const float value = __shfl_sync(0xffffffffu, shared.step, s);
      step[s].x += value;
      step[s].y += value;
    }
  }
};

__device__ inline float limit_gate(float step) { return step < kLeastGate ? kLeastGate : step; }  // NaN stays

/// Cumulative log decays of a chunk: b[t] is that of the steps up to and including t; steps past the end of the sequence do
/// not decay. With per-channel gates for 64 channels, otherwise one column.
template <bool kPerChannel>
struct Gates {
  static constexpr int kColumns = kPerChannel ? kTile : 1, stride = kPerChannel ? kTile + 1 : 1;
  float b[kTile * stride];
  float totals[kWarps][kColumns];
  unsigned long long dead[kColumns];  ///< bit t: step t's decay is 0
  float decay[kColumns];              ///< of the whole chunk: e^{end}
  float to_middle[kColumns];          ///< e^{middle}
  float from_middle[kColumns];        ///< e^{end - middle}

  __device__ float at(int t, int channel) const { return b[t * stride + (kPerChannel ? channel : 0)]; }
  __device__ float end(int channel) const { return at(kTile - 1, channel); }
  __device__ float middle(int channel) const { return at(kTile / 2 - 1, channel); }

  /// Sums up the gates; all threads of the block take part. Returns whether the factored form may be used.
  __device__ bool sum(const GateRows<kPerChannel>& rows) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    if (thread < kColumns) dead[thread] = 0;
    if constexpr (!kPerChannel) {
      const float step = thread < kTile ? limit_gate(rows.step) : 0.f;
      float total = step;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, total, distance);
        if (lane >= distance) total += before;
      }
      if (lane == 31) totals[warp][0] = total;
      __syncthreads();
      if (thread < kTile) b[thread] = warp == 0 ? total : total + totals[0][0];
      if (step < kDeadGate) atomicOr(&dead[0], 1ull << thread);
      __syncthreads();
      if (thread == 0) set_weights(0, b[kTile / 2 - 1], b[kTile - 1]);
      __syncthreads();
      return true;
    } else {
      float2 total[kSteps];
      float2 running = make_float2(0, 0);
      unsigned forgets[2] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const float2 step = make_float2(limit_gate(rows.step[s].x), limit_gate(rows.step[s].y));
        forgets[0] |= static_cast<unsigned>(step.x < kDeadGate) << s;
        forgets[1] |= static_cast<unsigned>(step.y < kDeadGate) << s;
        running.x += step.x;
        running.y += step.y;
        total[s] = running;
      }
      *reinterpret_cast<float2*>(&totals[warp][2 * lane]) = running;
      __syncthreads();
      float2 before = make_float2(0, 0), center = make_float2(0, 0), all = make_float2(0, 0);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(&totals[w][2 * lane]);
        if (w < warp) before = make_float2(before.x + other.x, before.y + other.y);
        if (w < kWarps / 2) center = make_float2(center.x + other.x, center.y + other.y);
        all = make_float2(all.x + other.x, all.y + other.y);
      }
      if (warp == 0) set_weights(2 * lane, center.x, all.x);
      if (warp == 1) set_weights(2 * lane + 1, center.y, all.y);
      bool safe = true;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const float2 value = make_float2(before.x + total[s].x, before.y + total[s].y);
        safe = safe && !(fabsf(value.x - center.x) > kSafeRange) && !(fabsf(value.y - center.y) > kSafeRange);
        b[(warp * kSteps + s) * stride + 2 * lane] = value.x;
        b[(warp * kSteps + s) * stride + 2 * lane + 1] = value.y;
      }
      for (int j = 0; j < 2; ++j)
        if (forgets[j]) atomicOr(&dead[2 * lane + j], static_cast<unsigned long long>(forgets[j]) << (warp * kSteps));
      return !__syncthreads_or(!safe);
    }
  }

 private:
  __device__ void set_weights(int column, float middle_value, float end_value) {
    decay[column] = __expf(end_value);
    to_middle[column] = __expf(middle_value);
    from_middle[column] = __expf(end_value - middle_value);
  }
};

}  // namespace glade::cuda::chunk
