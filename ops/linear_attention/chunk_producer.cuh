#pragma once
// The producers of a pass of the chunk form (chunk_pass.cuh): tiles, gates and scores.
#include <glade/ops/linear_attention/chunk_stage.cuh>

namespace glade::cuda::passes {

template <class E, Gates kGates, int Inner, bool kBalance>
struct Producer {
  using S = Shared<E, kGates, Inner, kBalance>;
  using StageOf = Stage<E, kGates, Inner, kBalance>;
  static constexpr int kThreads = S::kProducers, kTokens = S::kThreadTokens, kChannels = kGated<kGates, Inner>;
  static constexpr int kLanes = kChannels / 8;  ///< threads that share a token's channels
  static constexpr int kBarrier = 2;

  const Pass& p;
  S& shared;
  const Stretch& stretch;
  const std::int64_t n;
  const int head, first_outer, thread;
  float rest = 0, total_decay = 0;  ///< of channel `thread`

  /// Where this thread copies from: the row of position 0 from some column on.
  struct Source {
    const E* data;
    int step;     ///< to the next position
    int columns;  ///< from there to the row's end
    __device__ const E* at(int position) const { return data + std::int64_t{position} * step; }
  };
  __device__ Source source(const Rows& rows, int column) const {
    const int step = rows.heads * rows.size;
    const E* data =
        static_cast<const E*>(rows.data) + stretch.token(0) * step + std::int64_t{head / rows.group} * rows.size + column;
    return {data, p.reverse ? -step : step, rows.data ? rows.size - column : 0};
  }
  __device__ int tile_column() const { return thread % 8 * 8; }
  __device__ int raw_column() const { return (kGates == Gates::outer ? first_outer : 0) + thread % kLanes * 8; }
  const Source x = source(p.x, kGates == Gates::inner ? raw_column() : tile_column());
  const Source y = source(p.y, kGates == Gates::inner ? raw_column() : tile_column());
  const Source w = source(p.w, kGates == Gates::outer ? raw_column() : first_outer + tile_column());
  const Source u = source(p.u.data ? p.u : p.w, first_outer + tile_column());
  const Source gk = source(gate_rows(), raw_column());

  /// Rows of a step into a tile, 16 bytes at a time.
  __device__ void copy_tile(SwizzledTile<E>& tile, const Source& from, const Step& step, int first_column = 0) const {
    constexpr int kRows = kThreads / 8;
    const bool inside = first_column < from.columns;
    E* to = tile.at(thread / 8, thread % 8);
    const E* at = from.at(step.position() + thread / 8) + first_column;
#pragma unroll
    for (int i = 0; i < kTile / kRows; ++i) {
      copy_async(to + i * kRows * kTile, at, inside && thread / 8 + i * kRows < step.count);
      at += kRows * from.step;
    }
  }
  /// What needs no gates goes straight to its tiles.
  __device__ void copy_tiles(StageOf& stage, const Step& step) const {
    if constexpr (kGates != Gates::inner) {
#pragma unroll
      for (int i = 0; i < Inner / kTile; ++i) {
        copy_tile(stage.x[i], x, step, i * kTile);
        copy_tile(stage.y[i], y, step, i * kTile);
      }
      if constexpr (kBalance) copy_tile(stage.u[0], u, step);
    }
    if constexpr (kGates != Gates::outer) copy_tile(stage.w, w, step);
  }
  /// What the gates are applied to goes to a place of this thread's own.
  __device__ void copy_raw(int slot, const Step& step) const {
    if constexpr (kGates != Gates::none) {
      const int first_row = thread / kLanes * kTokens;
      auto copy = [&](int which, const Source& from) {
        const E* at = from.at(step.position() + first_row);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
          copy_async(&shared.raw[slot][which][i][thread], at, from.columns > 0 && first_row + i < step.count);
          at += from.step;
        }
      };
      if constexpr (kGates == Gates::inner) copy(1, x), copy(2, y);
      else copy(1, w);
      if (!p.wide_gates) copy(0, gk);
    }
  }
  __device__ Rows gate_rows() const { return {p.gk, p.heads, 1, kGates == Gates::outer ? p.outer : p.inner}; }

  /// The gate that all channels of a token share, base 2, in two parts, so that memory need not be waited for in between.
  __device__ std::uint32_t load_gate(const Step& step, int row) const {
    if (!p.g || row >= step.count) return 0;
    const std::int64_t at = stretch.token(step.position() + row) * p.heads + head;
    return p.wide_gates ? __ldg(static_cast<const std::uint32_t*>(p.g) + at) : __ldg(static_cast<const std::uint16_t*>(p.g) + at);
  }
  __device__ float shared_gate(std::uint32_t loaded, const Step& step, int row) const {
    const float gate = p.wide_gates ? __uint_as_float(loaded) : unpack<E>(loaded).x;
    return row < step.count ? (gate + gamma) * kLog2e : 0.f;
  }
  const float gamma = p.g_gamma ? p.g_gamma[n * p.heads + head] : 0.f;
  __device__ static float limit(float gate) { return gate < kLeastGate ? kLeastGate : gate; }  // NaN stays

  /// One gate a head: the factors made of it. By one warp, whose lanes have two tokens each.
  __device__ void head_gates(StageOf& stage, float first, float second) {
    first = limit(first);
    second = limit(second);
    float sum = first + second;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float before = __shfl_up_sync(~0u, sum, distance);
      if (thread >= distance) sum += before;
    }
    const float total = __shfl_sync(~0u, sum, 31);
    const float2 b = make_float2(sum - second, sum), rest = make_float2(total - b.x, total - b.y);
    const float2 c = p.backward ? rest : b, after = p.backward ? b : rest;
    total_decay += total;
    *reinterpret_cast<float2*>(&stage.b[2 * thread]) = b;
    *reinterpret_cast<float2*>(&stage.before[2 * thread]) = make_float2(exp2_approx(c.x), exp2_approx(c.y));
    *reinterpret_cast<float2*>(&stage.after[2 * thread]) = make_float2(exp2_approx(after.x), exp2_approx(after.y));
    const unsigned dead_even = __ballot_sync(~0u, first < kDeadGate), dead_odd = __ballot_sync(~0u, second < kDeadGate);
    if (thread == 0) {
      stage.decay[0] = exp2_approx(total);
      stage.dead[0] = dead_even;
      stage.dead[1] = dead_odd;
    }
  }

  /// A gate a channel: applies the factors. Returns whether the exponents of this thread are safe.
  __device__ bool channel_gates(StageOf& stage, int slot, const Step& step) {
    const int lane = thread % 32, warp = thread / 32, first_channel = thread % kLanes * 8, first_row = thread / kLanes * kTokens;
    float b[kTokens][8];
    if (p.wide_gates) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const bool inside = first_row + i < step.count && gk.columns > 0;
        const float4* source = reinterpret_cast<const float4*>(
            static_cast<const float*>(p.gk) + (gk.at(step.position() + first_row + i) - static_cast<const E*>(p.gk)));
        *reinterpret_cast<float4*>(&b[i][0]) = inside ? __ldg(source) : float4{};
        *reinterpret_cast<float4*>(&b[i][4]) = inside ? __ldg(source + 1) : float4{};
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const uint4 pieces = shared.raw[slot][0][i][thread];
        const std::uint32_t pairs[4] = {pieces.x, pieces.y, pieces.z, pieces.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = unpack<E>(pairs[j]);
          b[i][2 * j] = pair.x, b[i][2 * j + 1] = pair.y;
        }
      }
    }
    float by_head[kTokens];  // the gate that all channels share
#pragma unroll
    for (int i = 0; i < kTokens; ++i) by_head[i] = first_row + i < step.count ? gamma * kLog2e : 0.f;
    if (p.g) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) by_head[i] = shared_gate(load_gate(step, first_row + i), step, first_row + i);
    }
    unsigned dead = 0;
#pragma unroll
    for (int i = 0; i < kTokens; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float value = limit(fmaf(b[i][j], kLog2e, by_head[i]));
        if (kGates == Gates::outer) dead |= value < kDeadGate ? 1u << (8 * i + j) : 0u;
        b[i][j] = i == 0 ? value : b[i - 1][j] + value;
      }
    // Sums over the tokens before: of the warp's other threads, then of the other warps.
    float total[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float sum = b[kTokens - 1][j];
#pragma unroll
      for (int distance = kLanes; distance < 32; distance *= 2) {
        const float before = __shfl_up_sync(~0u, sum, distance);
        if (lane >= distance) sum += before;
      }
      total[j] = sum;
    }
    if (lane >= 32 - kLanes) {
      *reinterpret_cast<float4*>(&shared.sums[warp][first_channel]) = make_float4(total[0], total[1], total[2], total[3]);
      *reinterpret_cast<float4*>(&shared.sums[warp][first_channel + 4]) = make_float4(total[4], total[5], total[6], total[7]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) total[j] -= b[kTokens - 1][j];
    sync_group<kBarrier, kThreads>();
    if (thread < kChannels) {
      float before[8], sum = 0;
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        before[w] = sum;
        sum += shared.sums[w][thread];
      }
      // r: the reference. c - r = b - shift, or the opposite where the pass goes backward.
      const float r = step.count == 1 ? (p.backward ? 0.f : sum) : sum / 2, shift = p.backward ? sum - r : r;
#pragma unroll
      for (int w = 0; w < 8; ++w) shared.sums[w][thread] = before[w] - shift;
      if constexpr (kGates == Gates::inner) {
        stage.before[thread] = exp2_approx(rest + r);
      } else {
        stage.after[thread] = exp2_approx(rest);
        stage.before[thread] = exp2_approx(r);
        stage.decay[thread] = exp2_approx(sum);
        stage.dead[thread] = 0;
      }
      next_rest = sum - r;
      next_total = sum;
      shared.rest[thread] = exp2_approx(next_rest);
    }
    sync_group<kBarrier, kThreads>();
    float base[8];
    *reinterpret_cast<float4*>(base) = *reinterpret_cast<const float4*>(&shared.sums[warp][first_channel]);
    *reinterpret_cast<float4*>(base + 4) = *reinterpret_cast<const float4*>(&shared.sums[warp][first_channel + 4]);
    if (kGates == Gates::outer && dead) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i)
        for (int j = 0; j < 8; ++j)
          if (dead >> (8 * i + j) & 1) atomicOr(&stage.dead[first_channel + j], 1ull << (first_row + i));
    }

    float largest = 0;
    const float sign = p.backward ? -1.f : 1.f;
#pragma unroll
    for (int j = 0; j < 8; ++j) base[j] = sign * (base[j] + total[j]);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int row = first_row + i, piece = first_channel % kTile / 8;
      float up[8], down[8];  // e^{c - r} and e^{r - c}
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float exponent = fmaf(sign, b[i][j], base[j]);
        largest = fmaxf(largest, fabsf(exponent));
        up[j] = exp2_approx(exponent);
        down[j] = exp2_approx(-exponent);
      }
      auto scaled = [&](int which, const float(&by)[8]) {
        const uint4 pieces = shared.raw[slot][which][i][thread];
        auto pair = [&](std::uint32_t x, int j) {
          const float2 values = unpack<E>(x);
          return pack<E>(values.x * by[j], values.y * by[j + 1]);
        };
        return make_uint4(pair(pieces.x, 0), pair(pieces.y, 2), pair(pieces.z, 4), pair(pieces.w, 6));
      };
      if constexpr (kGates == Gates::inner) {
        *reinterpret_cast<uint4*>(stage.x[first_channel / kTile].at(row, piece)) = scaled(1, up);
        *reinterpret_cast<uint4*>(stage.y[first_channel / kTile].at(row, piece)) = scaled(2, down);
      } else {
        *reinterpret_cast<uint4*>(stage.w.at(row, piece)) = scaled(1, down);
        float* factor = &stage.factor[row * stage.kFactorStride + first_channel];
        *reinterpret_cast<float4*>(factor) = make_float4(up[0], up[1], up[2], up[3]);
        *reinterpret_cast<float4*>(factor + 4) = make_float4(up[4], up[5], up[6], up[7]);
      }
    }
    return largest <= kSafeRange<E> || step.count == 1;
  }
  float next_rest = 0, next_total = 0;

  /// Scores, masked, as an operand of the next product: [token of out][token of w].
  __device__ void scores(StageOf& stage) const {
    constexpr int kColumns = kTile / 2;
    const int lane = thread % 32, first = thread / kGroup * kColumns;
    float sums[16];
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < Inner / kTile; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_half<E>(sums, descriptor(stage.x[i], k * kColumnStep),
                      descriptor(stage.y[i], first / 16 * kRowStep + k * kColumnStep), i + k);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
    const int row = thread % kGroup / 32 * 16 + lane / 4;
    const float sign = p.backward ? -1.f : 1.f;
    float own[2];
    if constexpr (kGates == Gates::none) own[0] = sign * stage.b[row], own[1] = sign * stage.b[row + 8];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int column = first + m * 8 + lane % 4 * 2;
      float2 other;
      if constexpr (kGates == Gates::none) other = *reinterpret_cast<const float2*>(&stage.b[column]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = row + half * 8;
        float value[2] = {sums[m * 4 + half * 2], sums[m * 4 + half * 2 + 1]};
        if constexpr (kGates == Gates::none) {
          value[0] *= exp2_approx(fmaf(-sign, other.x, own[half]));
          value[1] *= exp2_approx(fmaf(-sign, other.y, own[half]));
        }
        if (p.backward ? column < t : column > t) value[0] = 0;
        if (p.backward ? column + 1 < t : column + 1 > t) value[1] = 0;
        *reinterpret_cast<std::uint32_t*>(stage.scores.element(t, column)) = pack<E>(value[0], value[1]);
      }
    }
  }

  /// To the consumer.
  __device__ void publish(int i, const Step& step, bool is_last) {
    StageOf& stage = shared.stages[i % S::kStages];
    if (thread == 0) stage.step = step, stage.is_last = is_last;
    if (p.out) {
      scores(stage);
      fence_for_wgmma();
    }
    barrier_arrive(&shared.full[i % S::kStages]);
  }
  /// Waits until the consumer has done with what stood where step i goes.
  __device__ StageOf& claim(int i) {
    if (i >= S::kStages) barrier_wait(&shared.empty[i % S::kStages], (i / S::kStages - 1) & 1);
    return shared.stages[i % S::kStages];
  }

  /// All stages but one are on their way from memory while one is worked on.
  __device__ void run_ungated(Step step) {
    constexpr int kAhead = S::kStages - 1;
    const int row = thread % 32 * 2;
    std::uint32_t gate[2] = {load_gate(step, row), load_gate(step, row + 1)};
    Step coming = step;
    auto copy = [&](int i) {
      if (coming.valid(stretch)) {
        copy_tiles(claim(i), coming);
        coming = coming.next(stretch, p.backward);
      }
      commit_copies();
    };
    for (int i = 0; i < kAhead; ++i) copy(i);
    for (int i = 0;; ++i) {
      StageOf& stage = shared.stages[i % S::kStages];
      if (thread < 32) head_gates(stage, shared_gate(gate[0], step, row), shared_gate(gate[1], step, row + 1));
      const Step next = step.next(stretch, p.backward);
      const bool is_last = !next.valid(stretch);
      if (!is_last) gate[0] = load_gate(next, row), gate[1] = load_gate(next, row + 1);
      wait_copies<kAhead - 1>();
      fence_for_wgmma();
      sync_group<kBarrier, kThreads>();
      publish(i, step, is_last);
      if (is_last) return;
      step = next;
      copy(i + kAhead);
    }
  }

  /// Brings what the pass for dq left of a chunk near.
  __device__ void prefetch(int chunk) const {
    const std::int64_t tile = (stretch.slot(chunk) * p.heads + head) * gridDim.x + blockIdx.x;
    const char* border = static_cast<const char*>(p.borders) + tile * (Inner * kTile * sizeof(E));
    const char* balance = reinterpret_cast<const char*>(p.balance) + tile * (kTile * kTile * sizeof(float));
    constexpr int kLine = 128, kBorderLines = Inner * kTile * sizeof(E) / kLine,
                  kLines = kBorderLines + kTile * kTile * 4 / kLine;
    for (int line = thread; line < kLines; line += kThreads)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line < kBorderLines ? border + line * kLine
                                                                        : balance + (line - kBorderLines) * kLine));
  }

  /// The tiles of the next step and the raw rows of the one or two after this are on their way while one is worked on.
  __device__ void run_gated(Step step) {
    constexpr bool kOneStage = S::kStages == 1, kOneRaw = S::kRawSteps == 1;
    Step next = step.next(stretch, p.backward);
    copy_tiles(claim(0), step);
    copy_raw(0, step);
    if (!kOneRaw) copy_raw(1, next);
    commit_copies();
    for (int i = 0;; ++i) {
      const int slot = kOneRaw ? 0 : i % 2;
      if (i == 0 || kOneRaw) wait_copies<0>();
      for (;;) {
        const bool safe = channel_gates(shared.stages[i % S::kStages], slot, step);
        wait_copies<0>();
        fence_for_wgmma();
        if (!sync_group_or<kBarrier, kThreads>(!safe)) break;
        step = step.half(p.backward);
        next = step.next(stretch, p.backward);
        copy_tiles(shared.stages[i % S::kStages], step);
        copy_raw(slot, step);
        if (!kOneRaw) copy_raw(1 - slot, next);
        commit_copies();
        wait_copies<0>();
      }
      rest = next_rest;
      total_decay += next_total;
      const bool is_last = !next.valid(stretch);
      const Step after = is_last ? next : next.next(stretch, p.backward), raw = kOneRaw ? next : after;
      if (!is_last) {
        if (raw.valid(stretch)) copy_raw(slot, raw);
        if (!kOneStage) copy_tiles(claim(i + 1), next);
        commit_copies();
        if constexpr (kBalance)
          if (p.backward && next.first_of_chunk) prefetch(next.chunk);
      }
      publish(i, step, is_last);
      if (is_last) return;
      if (kOneStage) {
        copy_tiles(claim(i + 1), next);
        commit_copies();
      }
      step = next;
      next = after;
    }
  }

  __device__ void run() {
    Step step = Step::whole(stretch, p.backward ? stretch.end_chunk - 1 : stretch.first_chunk);
    if (!step.valid(stretch)) return;
    if constexpr (kGates == Gates::none) run_ungated(step);
    else run_gated(step);
    if (p.decay) {
      const int gated = kGates == Gates::none ? 1 : kGates == Gates::inner ? p.inner : p.outer;
      const int channel = (kGates == Gates::outer ? first_outer : 0) + thread;
      if (thread < kChannels && channel < gated)
        p.decay[(std::int64_t{blockIdx.z} * p.heads + head) * gated + channel] = total_decay;
    }
  }
};

}  // namespace glade::cuda::passes
