#pragma once
// Applies per-channel gates of keys to a tile of 64 channels of a chunk: the work of a warp group, for
// chunk_sm90/gated_rows.cuh, which leaves the results in global memory, and chunk_sm90/shared_gates.cuh, in shared memory. With
// c_t the log decay from a chunk's start to token t, and C that of the whole chunk, the results are
//     q_t e^{c_t},     k_j e^{C - c_j},     A_tj = sum over the channels of q_t k_j e^{c_t - c_j}   (j <= t),     e^C.
// No exponent is positive where gates decay, whatever they are.
//
// A warp has 16 tokens, and a lane two channels. So a lane sums up the gates of its tokens by itself. The scores A are
// products of q e^{c_t - r} and k e^{r - c_j}, which have low parts in bfloat16 (the latter only where they are for global
// memory); r is half of the chunk's decay. Where that is outside the safe range, the scores of pairs in different sub-chunks of
// 16 tokens are products with the start of the query's sub-chunk as reference, and those of pairs in the same sub-chunk are sums
// of their channels, one decay after another, as in the recurrence.
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

struct MappedGatedRows : GatedRows {
  CUtensorMap q_map, k_map, gates_map;
  explicit MappedGatedRows(const GatedRows& a)
      : GatedRows(a),
        q_map(map_of(a.q, a.tokens)),
        k_map(map_of(a.k, a.tokens)),
        gates_map(a.float_gates ? CUtensorMap{} : map_of({a.gk, a.heads, 1, a.k.size}, a.tokens)) {}
};

template <class E>
struct GatedRowsGroup {
  using Tile = SwizzledTile<E>;
  /// Rows as TMA copies them, and then with their factors. Gates of 16 bits give way to low parts, of the queries and then of the
  /// keys.
  Tile q, k, gates_or_low;
};
using GatedRowsScores = float[kTile][kTile + 8];  ///< [token of the query][token of the key]
/// The per-head gates of a chunk.
struct HeadGatesOfChunk {
  alignas(16) float b[kTile];  ///< base 2
  alignas(16) float c[kTile];  ///< their sums since the chunk's start, less half of their total
  float total;                 ///< that total
  bool decay;                  ///< whether none of them is above 0
};
using SubChunkDecays = float2[4][kTile / 2];  ///< sums of the gates of each sub-chunk, by pair of channels

/// Applies the gates to 64 channels of a chunk, and finds their part of the scores: the work of a warp group. kManyRegisters:
/// where it has more than 64 a thread, it keeps gates and addresses there. Gates in float32 are always kept. kAhead: rows that
/// run_safe() loads ahead, as none is loaded before what the one ahead of it stores.
template <class E, bool kFloatGates, bool kManyRegisters = false, int kAhead = 0>
struct GatedTile {
  using Tile = SwizzledTile<E>;
  static constexpr bool kLowParts = std::is_same_v<E, __nv_bfloat16>;
  /// Whether keys have low parts, too. Measured: without them heads of 129 to 256 keys take 3% less time at most, but errors of
  /// their outputs are up to 2% above fla's instead of a third below.
  static constexpr bool kLowKeys = kLowParts && !kManyRegisters;
  static constexpr bool kSumsFirstScore = kLowParts && !kLowKeys;  ///< in float32, see run_safe()
  static constexpr bool kKeepsGates = kManyRegisters || kFloatGates;
  static constexpr int kSubChunk = 16, kSubChunks = kTile / kSubChunk;
  using Scaled = ScaledPair<E, kLowParts>;
  using GateElement = std::conditional_t<kFloatGates, float, E>;
  using GateBits = std::conditional_t<kFloatGates, float2, std::uint32_t>;  ///< a pair of gates as it lies in memory

  const MappedGatedRows& a;
  GatedRowsGroup<E>& own;
  HeadGatesOfChunk& head_gates;
  SubChunkDecays& decays;
  Tile &queries, &keys;                ///< the results
  const int head, count;               ///< count: tokens of the chunk
  const std::int64_t sequence, first;  ///< first: token in memory
  const int tile, thread, barrier;     ///< tile: of keys; barrier: of the warp group
  const int sub_chunk = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32, channel = tile * kTile + 2 * lane,
            first_row = sub_chunk * kSubChunk, rows = count - first_row;

  __device__ void sync() const { sync_group<kGroup>(barrier); }

  // Pairs of channels.
  /// Loads those of kCount tokens from token t on as they lie in memory; behind the chunk's end they are 0.
  template <class T, int kCount, class Pair>
  __device__ void load(Pair (&to)[kCount], const void* data, int heads, int of_head, int t) const {
    const std::int64_t step = std::int64_t{heads} * a.k.size;
    const T* at = static_cast<const T*>(data) + (first + first_row + t) * step + std::int64_t{of_head} * a.k.size + channel;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = t + i < rows && channel < a.k.size ? __ldg(reinterpret_cast<const Pair*>(at)) : Pair{};
      forget(at += step);  // otherwise the addresses of all rows would occupy registers at once
    }
  }
  template <int kCount>
  __device__ void load(std::uint32_t (&to)[kCount], const Rows& from, int t) const {
    load<E>(to, from.data, from.heads, from.head_of(head), t);
  }
  template <int kCount>
  __device__ void load_gates(GateBits (&to)[kCount], int t) const {
    load<GateElement>(to, a.gk, a.heads, head, t);
  }
  /// A pair of gates, base e.
  __device__ static float2 unpack_gates(const GateBits& bits) {
    if constexpr (kFloatGates) return bits;
    else return unpack<E>(bits);
  }
  /// The larger gates of two pairs; numbers where others are none.
  static __device__ float2 larger(float2 x, float2 y) { return make_float2(fmaxf(x.x, y.x), fmaxf(x.y, y.y)); }
  static __device__ std::uint32_t larger(std::uint32_t x, std::uint32_t y) { return larger_pair<E>(x, y); }
  /// The log decays, base 2, of token t.
  __device__ float2 log_decays(const GateBits& bits, int t) const {
    const float2 gate = unpack_gates(bits);
    const float of_head = head_gates.b[first_row + t];
    return make_float2(at_least(fmaf(gate.x, kLog2e, of_head), kLeastGate), at_least(fmaf(gate.y, kLog2e, of_head), kLeastGate));
  }
  /// Where the pair of token t lies in a tile, in bytes; i: t % 8, a constant.
  __device__ int offset(int t, int i) const {
    int pair = 4 * lane;
    if constexpr (!kManyRegisters) forget(pair);  // as above
    return (first_row + t) * (kTile * static_cast<int>(sizeof(E))) + (pair ^ i * 16);
  }
  __device__ static void put(Tile& tile, int offset, std::uint32_t pair) {
    *reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(tile.data) + offset) = pair;
  }
  __device__ static std::uint32_t get(const Tile& tile, int offset) {
    return *reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const char*>(tile.data) + offset);
  }
  __device__ static float2 exp2(float2 x) { return make_float2(exp2_approx(x.x), exp2_approx(x.y)); }
  __device__ static float2 sum(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
  __device__ static float2 product(float2 x, float2 y) { return make_float2(x.x * y.x, x.y * y.y); }
  __device__ static std::uint32_t round(float2 x) { return pack<E>(x.x, x.y); }
  __device__ static std::uint32_t low_part(float2 x, std::uint32_t rounded) { return pack_low<E>(x.x, x.y, rounded); }

  /// The log decay of the sub-chunks from `begin` on, up to `end`.
  __device__ float2 decay_of(int begin, int end) const {
    float2 total{};
#pragma unroll
    for (int i = 0; i < kSubChunks; ++i)
      if (i >= begin && i < end) total = sum(total, decays[i][lane]);
    return total;
  }

  __device__ static void multiply(Accumulator<kTile>& scores, const Tile& q, const Tile& k, int add) {
    const std::uint32_t left = operand(q), right = operand(k);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma<E>(scores, descriptor(left, i * kColumnStep), descriptor(right, i * kColumnStep), add + i);
    wgmma_commit();
  }
  /// Starts to add the scores of the tiles of queries and keys, for wait_for_scores(). put_low_parts() replaces the low parts of
  /// the queries by those of the keys.
  template <class F>
  __device__ void start_scores(Accumulator<kTile>& scores, int add, F&& put_low_parts) const {
    fence_for_wgmma();
    sync();
    multiply(scores, own.q, own.k, add);
    if constexpr (kLowParts) multiply(scores, own.gates_or_low, own.k, 1);
    if constexpr (kLowKeys) {
      wait_for_scores(scores);
      sync();
      put_low_parts();
      fence_for_wgmma();
      sync();
      multiply(scores, own.q, own.gates_or_low, 1);
    }
  }
  __device__ static void wait_for_scores(Accumulator<kTile>& scores) {
    wgmma_wait<0>();
    pin(scores);
  }

  /// The sums of the gates of channels before the sub-chunk and of the chunk, and its log decay, base 2, with those of heads.
  struct Sums {
    GateBits gates[kKeepsGates ? kSubChunk : 0];  ///< of the rows
    float2 before, total, decay;
    bool is_large;  ///< whether the decay is outside the safe range
  };
  /// Where all factors are in the safe range. Calls put_row(t, offset in a tile, query, key) with the results of a token.
  template <class Put>
  __device__ void run_safe(const Sums& sums, Accumulator<kTile>& scores, Put&& put_row) const {
    const float2 before = sums.before, total = sums.total, to_end = exp2(make_float2(sums.decay.x / 2, sums.decay.y / 2));
    float2 c = make_float2(before.x - total.x / 2, before.y - total.y / 2);
    std::uint32_t k_low[kSubChunk];
    float first_score;
    const auto row = [&](int t) { return make_uint2(get(own.q, offset(t, t % 8)), get(own.k, offset(t, t % 8))); };
    uint2 ahead[kAhead + 1];
#pragma unroll
    for (int t = 0; t < kAhead; ++t) ahead[t] = row(t);
    float of_heads[kManyRegisters ? 4 : 1];
#pragma unroll
    for (int t = 0; t < kSubChunk; ++t) {
      const int at = offset(t, t % 8);
      if constexpr (kKeepsGates) c = sum(c, unpack_gates(sums.gates[t]));
      else c = sum(c, unpack<E>(get(own.gates_or_low, at)));
      if (t + kAhead < kSubChunk) ahead[(t + kAhead) % (kAhead + 1)] = row(t + kAhead);
      const uint2 pairs = ahead[t % (kAhead + 1)];
      if constexpr (!kManyRegisters) of_heads[0] = head_gates.c[first_row + t];
      else if (t % 4 == 0) *reinterpret_cast<float4*>(of_heads) = *reinterpret_cast<const float4*>(&head_gates.c[first_row + t]);
      const float of_head = of_heads[kManyRegisters ? t % 4 : 0];
      const float2 exponent = make_float2(fmaf(c.x, kLog2e, of_head), fmaf(c.y, kLog2e, of_head));
      const float2 q = product(unpack<E>(pairs.x), exp2(exponent)),
                   k = product(unpack<E>(pairs.y), exp2(make_float2(-exponent.x, -exponent.y)));
      const std::uint32_t q_rounded = round(q), k_rounded = round(k);
      put(own.q, at, q_rounded);
      put(own.k, at, k_rounded);
      if constexpr (kLowParts) put(own.gates_or_low, at, low_part(q, q_rounded));
      k_low[t] = low_part(k, k_rounded);
      if (t == 0) first_score = q.x * k.x + q.y * k.y;
      put_row(t, at, round(product(q, to_end)), round(product(k, to_end)));
    }
    start_scores(scores, 0, [&] {
#pragma unroll
      for (int t = 0; t < kSubChunk; ++t) put(own.gates_or_low, offset(t, t % 8), k_low[t]);
    });
    // The first output of a sequence is one score times one value. A norm after it divides by the score, so that it must be the
    // same in the backward pass. Elsewhere the low part of the keys changes little.
    if constexpr (kSumsFirstScore)
      if (sub_chunk == 0)
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) first_score += __shfl_xor_sync(~0u, first_score, distance);
    wait_for_scores(scores);
    if constexpr (kSumsFirstScore)
      if (thread == 0) scores[0] = first_score;
  }

  /// The keys alone, for states: calls put_row(t, key).
  template <class Put>
  __device__ void run_safe_keys(const Sums& sums, Put&& put_row) const {
    static_assert(kManyRegisters);
    const float of_heads = head_gates.total / 2;
    float2 to_end = make_float2(sums.total.x - sums.before.x, sums.total.y - sums.before.y);
#pragma unroll
    for (int t = 0; t < kSubChunk; ++t) {
      const float2 gate = unpack_gates(sums.gates[t]);
      to_end = make_float2(to_end.x - gate.x, to_end.y - gate.y);
      const float of_head = of_heads - head_gates.c[first_row + t];
      put_row(t, round(product(unpack<E>(get(own.k, offset(t, t % 8))),
                               exp2(make_float2(fmaf(to_end.x, kLog2e, of_head), fmaf(to_end.y, kLog2e, of_head))))));
    }
  }

  // Where they are not.
  static constexpr int kRows = 8;  ///< that are loaded at a time
  /// Calls f(pair, exponent, offset in a tile) for the tokens of the sub-chunk: the exponent is the log decay from its start to
  /// the token (kFromStart), or from the token to its end, plus `first_exponent`. Gates and rows are loaded every time, as
  /// registers are few.
  template <bool kFromStart, class F>
  __device__ void for_each_row(const Rows& from, float2 first_exponent, F&& f) const {
    float2 c = first_exponent;
#pragma unroll 1
    for (int n = 0; n < kSubChunk; n += kRows) {
      const int first_token = kFromStart ? n : kSubChunk - kRows - n;
      GateBits gates[kRows];
      std::uint32_t x[kRows];
      load_gates(gates, first_token);
      load(x, from, first_token);
#pragma unroll
      for (int step = 0; step < kRows; ++step) {
        const int i = kFromStart ? step : kRows - 1 - step, t = first_token + i;
        const float2 own = log_decays(gates[i], t);
        if (kFromStart) c = sum(c, own);
        f(x[i], c, offset(t, i));
        if (!kFromStart) c = sum(c, own);
      }
    }
  }
  /// The log decay, base 2, of the sub-chunk.
  __device__ float2 own_decay() const {
    float2 total{};
#pragma unroll 1
    for (int n = 0; n < kSubChunk; n += kRows) {
      GateBits gates[kRows];
      load_gates(gates, n);
#pragma unroll
      for (int i = 0; i < kRows; ++i) total = sum(total, log_decays(gates[i], n + i));
    }
    return total;
  }
  __device__ static Scaled scaled(std::uint32_t pair, float2 c) {
    const float2 factor = exp2(c);
    return Scaled(pair, factor.x, factor.y);
  }
  /// The keys of the results.
  __device__ void run_large_decay_of_keys() const {
    decays[sub_chunk][lane] = own_decay();  // all threads have read the sums
    sync();
    for_each_row<false>(a.k, decay_of(sub_chunk + 1, kSubChunks),
                        [&](std::uint32_t x, float2 c, int at) { put(keys, at, scaled(x, c).rounded); });
  }
  /// The results, and the scores of pairs in different sub-chunks.
  __device__ void run_large_decay(Accumulator<kTile>& scores) const {
    run_large_decay_of_keys();
    const float2 before = decay_of(0, sub_chunk);
    for_each_row<true>(a.q, before, [&](std::uint32_t x, float2 c, int at) { put(queries, at, scaled(x, c).rounded); });
    scores.fill(0);
#pragma unroll 1
    for (int s = 1; s < kSubChunks; ++s) {  // queries of sub-chunk s, keys of those before
      const bool has_queries = sub_chunk == s, has_keys = sub_chunk < s;
      const float2 between = decay_of(sub_chunk + 1, s);
      for_each_row<true>(a.q, {}, [&](std::uint32_t x, float2 c, int at) {
        const Scaled q = scaled(has_queries ? x : 0, c);
        put(own.q, at, q.rounded);
        if constexpr (kLowParts) put(own.gates_or_low, at, q.low_part);
      });
      for_each_row<false>(a.k, between,
                          [&](std::uint32_t x, float2 c, int at) { put(own.k, at, scaled(has_keys ? x : 0, c).rounded); });
      start_scores(scores, 1, [&] {
        for_each_row<false>(a.k, between, [&](std::uint32_t x, float2 c, int at) {
          put(own.gates_or_low, at, scaled(has_keys ? x : 0, c).low_part);
        });
      });
      wait_for_scores(scores);
      sync();
    }
  }
  /// The scores of pairs in the same sub-chunk.
  __device__ void sum_pairs(GatedRowsScores& to) const {
    float2 keys[kSubChunk];
    {
      std::uint32_t k[kSubChunk];
      load(k, a.k, 0);
#pragma unroll
      for (int j = 0; j < kSubChunk; ++j) keys[j] = unpack<E>(k[j]);
    }
    GateBits gate[1];
    std::uint32_t q[1];
    load_gates(gate, 0);
    load(q, a.q, 0);
#pragma unroll 1
    for (int t = 0; t < kSubChunk; ++t) {
      const float2 decay = exp2(log_decays(gate[0], t)), query = unpack<E>(q[0]);
      load_gates(gate, t + 1);  // while this token's sums are computed
      load(q, a.q, t + 1);
      float sums[kSubChunk];
#pragma unroll
      for (int j = 0; j < kSubChunk; ++j) {
        if (j < t) keys[j] = product(keys[j], decay);
        sums[j] = query.x * keys[j].x + query.y * keys[j].y;
      }
      // Over the lanes: in the end lanes 2 j and 2 j + 1 have the sum for key j.
      const float sum = sum_over_lanes<2>(sums, lane), total = sum + __shfl_xor_sync(~0u, sum, 1);
      if (lane % 2 == 0) to[first_row + t][first_row + lane / 2] = lane / 2 <= t ? total : 0.f;
    }
  }

  /// The per-head gates, by one warp.
  __device__ void load_head_gates() const {
    const linear_attention::HeadGate<E> gate{a, sequence, head};
    const auto of = [&](int t) { return t < count ? gate.log2_decay(gate.load_bits(first + t)) : 0.f; };
    const float own[2] = {of(2 * lane), of(2 * lane + 1)};
    const float end = sum_up_to(lane, own[0] + own[1]), total = __shfl_sync(~0u, end, 31);
    *reinterpret_cast<float2*>(&head_gates.b[2 * lane]) = make_float2(own[0], own[1]);
    *reinterpret_cast<float2*>(&head_gates.c[2 * lane]) = make_float2(end - own[1] - total / 2, end - total / 2);
    const bool decay = __all_sync(~0u, own[0] <= 0 && own[1] <= 0);
    if (lane == 0) head_gates.total = total, head_gates.decay = decay;
  }
  /// Starts to copy the rows, but for the queries where only states are wanted. Boxes go on behind the chunk's last token. The
  /// first threads of three warps start one copy each, as a copy takes some 200 cycles to start.
  __device__ static void copy_rows(const MappedGatedRows& a, GatedRowsGroup<E>& to, int tile, int head, std::int64_t first,
                                   std::uint64_t* copied, int thread, bool states_only = false) {
    constexpr int kCopies = 2 + !kFloatGates;
    const auto copy = [&](Tile& to_tile, const CUtensorMap& map, int of_head) {
      copy_tile(to_tile, map, tile * kTile, of_head, static_cast<int>(first), copied);
    };
    if (thread == 0) {
      barrier_expect(copied, (kCopies - states_only) * static_cast<int>(sizeof(Tile)));
      if constexpr (!kFloatGates) copy(to.gates_or_low, a.gates_map, head);
    } else if (thread == 32) {
      if (!states_only) copy(to.q, a.q_map, head);
    } else if (thread == 64) {
      copy(to.k, a.k_map, a.k.head_of(head));
    }
  }
  /// The same of gates in float32, to the L2 cache: those of one token.
  __device__ static void prefetch_gates(const MappedGatedRows& a, int tile, int head, std::int64_t token) {
    const int first = tile * kTile, channels = min(a.k.size - first, kTile);
    if (channels > 0) prefetch_float_gates(a.gk, token * a.heads + head, a.k.size, first, channels);
  }
  __device__ void clear_rows() const {
    for (int t = max(rows, 0); t < kSubChunk; ++t) {
      const int at = offset(t, t % 8);
      for (Tile* of_rows : {&own.q, &own.k, &own.gates_or_low}) put(*of_rows, at, 0);
    }
  }

  /// Sums up the gates of the rows, which are there after wait().
  template <class Wait>
  __device__ Sums sum_gates(Wait&& wait) const {
    Sums sums;
    if constexpr (kFloatGates) load_gates(sums.gates, 0);
    wait();
    if (count < kTile) clear_rows();
    float2 own_sum{};
    GateBits most{};
#pragma unroll
    for (int t = 0; t < kSubChunk; ++t) {
      GateBits gate;
      if constexpr (kFloatGates) gate = sums.gates[t];
      else gate = get(own.gates_or_low, offset(t, t % 8));
      if constexpr (kKeepsGates) sums.gates[t] = gate;
      const float2 x = unpack_gates(gate);
      own_sum = sum(own_sum, x);
      most = larger(most, gate);
    }
    decays[sub_chunk][lane] = own_sum;
    sync();
    sums.before = decay_of(0, sub_chunk);
    sums.total = decay_of(0, kSubChunks);
    sums.decay = make_float2(fmaf(sums.total.x, kLog2e, head_gates.total), fmaf(sums.total.y, kLog2e, head_gates.total));
    constexpr float kMost = -2 * kSafeRange<E>;
    const float2 largest = unpack_gates(most);
    const bool is_safe = head_gates.decay && largest.x <= 0 && largest.y <= 0 && sums.decay.x >= kMost && sums.decay.y >= kMost;
    sums.is_large = sync_group_or<kGroup>(barrier, !is_safe);  // also where a gate is not a number
    return sums;
  }
  /// Leaves the results, and the scores but for those of pairs in the same sub-chunk where the decay is large.
  __device__ void apply(const Sums& sums, Accumulator<kTile>& scores) const {
    if (sums.is_large) run_large_decay(scores);
    else
      run_safe(sums, scores, [&](int, int at, std::uint32_t q, std::uint32_t k) {
        put(queries, at, q);
        put(keys, at, k);
      });
  }
  /// Puts the scores into shared memory, with those of pairs in the same sub-chunk where the decay is large. All products have
  /// read what is there.
  __device__ void put_scores(const Accumulator<kTile>& scores, bool is_large, GatedRowsScores& to) const {
#pragma unroll
    for (int i = 0; i < scores.kSize; i += 2)
      *reinterpret_cast<float2*>(&to[scores.row(i, thread)][scores.column(i, thread)]) = make_float2(scores[i], scores[i + 1]);
    if (!is_large) return;
    sync();
    sum_pairs(to);
  }
};

}  // namespace glade::cuda::chunk_sm90
