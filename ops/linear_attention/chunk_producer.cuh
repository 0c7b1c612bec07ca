#pragma once
// The producers of a pass of the chunk form (chunk_pass.cuh): tiles, gates, and scores where gates leave them the time.
#include <glade/ops/linear_attention/chunk_scores.cuh>

namespace glade::cuda::passes {

template <class C>
struct Producer {
  using E = typename C::Element;
  using S = Shared<C>;
  static constexpr Gates kGates = C::kGates;
  static constexpr int kThreads = C::kProducers, kBarrier = 3;
  static constexpr int kAhead = S::kStages - 1;  ///< steps on their way from memory while one is worked on

  const Pass& p;
  S& shared;
  const Stretch& stretch;
  const std::int64_t n;
  const int head, first_outer;
  int thread;

  const int first_gate = kGates == Gates::outer ? first_outer : 0;
  const Rows gate_rows{p.gk, p.heads, 1, kGates == Gates::outer ? p.outer : p.inner};

  /// Where this thread copies from: its piece of the row of position 0, from a column on.
  struct Source {
    const E* data;
    int step;     ///< to the next position
    int columns;  ///< from there to the row's end
  };
  __device__ Source source(const Rows& rows, int first_column) const {
    const int step = rows.heads * rows.size, column = first_column + thread % 8 * 8;
    return {static_cast<const E*>(rows.data) + stretch.token(0) * step + head / rows.group * rows.size + column,
            p.reverse ? -step : step, rows.size - column};
  }
  const Source x = source(p.out ? p.x : p.y, 0), y = source(p.y, 0), w = source(p.w, first_outer),
               u = source(C::kBalance ? p.u : p.w, first_outer), gk = source(gate_rows, first_gate);

  /// Rows of a step into tiles, 16 bytes at a time.
  template <int N>
  __device__ void copy_tiles(SwizzledTile<E> (&tiles)[N], const Source& from, const Step& step) const {
    constexpr int kRows = kThreads / 8;
    const E* at = from.data + std::int64_t{step.position() + thread / 8} * from.step;
#pragma unroll
    for (int i = 0; i < kTile / kRows; ++i) {
      const int row = thread / 8 + i * kRows;
#pragma unroll
      for (int tile = 0; tile < N; ++tile)
        copy_async(tiles[tile].at(row, thread % 8), at + tile * kTile, tile * kTile < from.columns && row < step.count);
      at += kRows * from.step;
    }
  }
  Step coming;      ///< the next to be copied
  int next_copy{};  ///< its number
  /// Starts the copies for a step, as soon as the consumers have done with what stands in its place.
  __device__ void copy() {
    if (coming.valid(stretch)) {
      claim(next_copy);
      Tiles<C>& tiles = shared.tiles[next_copy % S::kStages];
      if (kGates != Gates::none && !p.wide_gates) copy_tiles(tiles.gates, gk, coming);
      copy_tiles(tiles.y, y, coming);
      if (p.out) copy_tiles(tiles.x, x, coming);
      copy_tiles(tiles.w, w, coming);
      if constexpr (C::kBalance) copy_tiles(tiles.u, u, coming);
      coming = coming.next(stretch, p.backward);
    }
    commit_copies();
    ++next_copy;
  }
  /// Step i again, or for the first time, and those after it.
  __device__ void start_copies(int i, const Step& step) {
    coming = step;
    next_copy = i;
    while (next_copy < i + kAhead) copy();
  }
  __device__ void claim(int i) {
    if (i >= S::kStages) barrier_wait(&shared.empty[i % S::kStages], (i / S::kStages - 1) & 1);
  }
  __device__ bool may_claim(int i) {
    return i < S::kStages || barrier_test(&shared.empty[i % S::kStages], (i / S::kStages - 1) & 1);
  }
  /// Copies for the step kAhead after step i, if that takes no waiting.
  __device__ void copy_early(int i) {
    if (next_copy == i + kAhead && may_claim(next_copy)) copy();
  }

  /// The gates that all channels of a token share, base 2, of two tokens for each lane of the first warp, in two parts, so that
  /// memory need not be waited for in between.
  struct Loaded {
    std::uint32_t bits[2];
  };
  __device__ Loaded load_gates(const Step& step) const {
    Loaded loaded{};
    if (p.g && thread < 32)
      for (int i = 0; i < 2; ++i)
        if (2 * thread + i < step.count) {
          const std::int64_t at = stretch.token(step.position() + 2 * thread + i) * p.heads + head;
          loaded.bits[i] = p.wide_gates ? __ldg(static_cast<const std::uint32_t*>(p.g) + at)
                                        : __ldg(static_cast<const std::uint16_t*>(p.g) + at);
        }
    return loaded;
  }
  const float gamma = p.g_gamma ? p.g_gamma[n * p.heads + head] : 0.f;
  __device__ float2 shared_gates(const Loaded& loaded, const Step& step) const {
    auto gate = [&](int i) {
      const float value = p.wide_gates ? __uint_as_float(loaded.bits[i]) : unpack<E>(loaded.bits[i]).x;
      return 2 * thread + i < step.count ? (value + gamma) * kLog2e : 0.f;
    };
    return make_float2(gate(0), gate(1));
  }

  /// One gate a head: the factors made of it. By one warp.
  __device__ void head_gates(Vectors<C>& to, float2 gates) {
    const float first = at_least(gates.x, kLeastGate), second = at_least(gates.y, kLeastGate);
    float sum = first + second;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float before = __shfl_up_sync(~0u, sum, distance);
      if (thread >= distance) sum += before;
    }
    const float total = __shfl_sync(~0u, sum, 31);
    const float2 b = make_float2(sum - second, sum), rest = make_float2(total - b.x, total - b.y);
    const float2 c = p.backward ? rest : b, after = p.backward ? b : rest;
    total_decay.x += total;
    *reinterpret_cast<float2*>(&to.b[2 * thread]) = b;
    *reinterpret_cast<float2*>(&to.before[2 * thread]) = make_float2(exp2_approx(c.x), exp2_approx(c.y));
    *reinterpret_cast<float2*>(&to.after[2 * thread]) = make_float2(exp2_approx(after.x), exp2_approx(after.y));
    const unsigned dead_even = __ballot_sync(~0u, first < kDeadGate), dead_odd = __ballot_sync(~0u, second < kDeadGate);
    if (thread == 0) {
      to.decay[0] = exp2_approx(total);
      to.dead[0] = dead_even;
      to.dead[1] = dead_odd;
    }
  }

  // A gate a channel: this thread's two channels, and the first of its tokens.
  __device__ int lane() const { return thread % 32; }
  __device__ int gated_tile() const { return C::kGatedTiles < 2 ? 0 : thread / 32 % C::kGatedTiles; }
  __device__ int channel() const { return gated_tile() * kTile + 2 * lane(); }
  __device__ int first_token() const { return C::kSpans < 2 ? 0 : thread / 32 / C::kGatedTiles * C::kSpan; }
  /// Whether this thread says what became of its channels' decay.
  __device__ bool sums_up() const { return kGates == Gates::none ? thread == 0 : first_token() == 0; }
  float2 rest{}, next_rest{};          ///< what R's decay lacks after the last step, and after this one
  float2 total_decay{}, next_total{};  ///< of all steps before, and of this one

  /// The gates of token first_token + t.
  template <bool kWide>
  __device__ float2 channel_gate(int t, const Tiles<C>& tiles, const Vectors<C>& vectors, const Step& step) const {
    const int token = first_token() + t;
    float2 gate{};
    if constexpr (kWide) {
      const std::int64_t at = (stretch.token(step.position() + token) * p.heads + head) * gate_rows.size + first_gate + channel();
      if (token < step.count && first_gate + channel() < gate_rows.size)
        gate = __ldg(reinterpret_cast<const float2*>(static_cast<const float*>(p.gk) + at));
    } else {
      gate = unpack<E>(*tiles.gates[gated_tile()].pair(token, lane()));
    }
    const float by_head = vectors.b[token];
    return make_float2(at_least(fmaf(gate.x, kLog2e, by_head), kLeastGate), at_least(fmaf(gate.y, kLog2e, by_head), kLeastGate));
  }

  /// Applies the factors to step i, in place. Returns whether this thread's exponents are safe.
  template <bool kWide>
  __device__ bool channel_gates(int i, const Step& step) {
    Tiles<C>& tiles = shared.tiles[i % S::kStages];
    Vectors<C>& to = shared.vectors[i % S::kStages];
    float2 before{}, sum{};
#pragma unroll 8
    for (int t = 0; t < C::kSpan; ++t) {
      const float2 gate = channel_gate<kWide>(t, tiles, to, step);
      sum.x += gate.x;
      sum.y += gate.y;
    }
    if constexpr (S::kStages == 2) copy_early(i);  // few stages: as early as possible
    if constexpr (kGates == Gates::outer)
      if (sums_up()) to.dead[channel()] = to.dead[channel() + 1] = 0;
    if constexpr (C::kSpans > 1) {
      auto& sums = shared.exchange.sums;
      *reinterpret_cast<float2*>(&sums[first_token() / C::kSpan][channel()]) = sum;
      sync_group<kThreads>(kBarrier);
      sum = {};
#pragma unroll
      for (int span = 0; span < C::kSpans; ++span) {
        if (span * C::kSpan == first_token()) before = sum;
        const float2 other = *reinterpret_cast<const float2*>(&sums[span][channel()]);
        sum.x += other.x;
        sum.y += other.y;
      }
    }
    // r: the reference. c - r = b - shift, or the opposite where the pass goes backward.
    const bool one = step.count == 1;
    const float2 r = !one ? make_float2(sum.x / 2, sum.y / 2) : p.backward ? float2{} : sum;
    const float2 shift = p.backward ? make_float2(sum.x - r.x, sum.y - r.y) : r;
    next_rest = make_float2(sum.x - r.x, sum.y - r.y);
    next_total = sum;
    if (sums_up()) {
      if constexpr (kGates == Gates::inner) {
        set(to.before, exp2_approx(rest.x + r.x), exp2_approx(rest.y + r.y));
      } else {
        set(to.after, exp2_approx(rest.x), exp2_approx(rest.y));
        set(to.before, exp2_approx(r.x), exp2_approx(r.y));
        set(to.decay, exp2_approx(sum.x), exp2_approx(sum.y));
      }
    }

    const float sign = p.backward ? -1.f : 1.f;
    float2 exponent = make_float2(sign * (before.x - shift.x), sign * (before.y - shift.y));
    float largest = 0;
    constexpr int kBatch = C::kProducerRegisters < 80 ? 4 : 8;  // tokens that are read before the first is written
#pragma unroll 1
    for (int t = 0; t < C::kSpan; t += kBatch) {
      float2 gate[kBatch];
      std::uint32_t xs[kBatch], ys[kBatch], ws[kBatch];
      unsigned dead[2] = {};
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int token = first_token() + t + j;
        gate[j] = channel_gate<kWide>(t + j, tiles, to, step);
        if constexpr (kGates == Gates::inner) {
          xs[j] = *tiles.x[gated_tile()].pair(token, lane());
          ys[j] = *tiles.y[gated_tile()].pair(token, lane());
        } else {
          ws[j] = *tiles.w[gated_tile()].pair(token, lane());
        }
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int token = first_token() + t + j;
        exponent.x = fmaf(sign, gate[j].x, exponent.x);
        exponent.y = fmaf(sign, gate[j].y, exponent.y);
        largest = fmaxf(largest, fmaxf(fabsf(exponent.x), fabsf(exponent.y)));
        const float2 up = make_float2(exp2_approx(exponent.x), exp2_approx(exponent.y));      // e^{c - r}
        const float2 down = make_float2(exp2_approx(-exponent.x), exp2_approx(-exponent.y));  // e^{r - c}
        if constexpr (kGates == Gates::inner) {
          *tiles.x[gated_tile()].pair(token, lane()) = scaled(xs[j], up);
          *tiles.y[gated_tile()].pair(token, lane()) = scaled(ys[j], down);
        } else {
          *tiles.w[gated_tile()].pair(token, lane()) = scaled(ws[j], down);
          *reinterpret_cast<float2*>(&to.factor[token * C::kFactorStride + channel()]) = up;
          dead[0] |= gate[j].x < kDeadGate ? 1u << j : 0u;
          dead[1] |= gate[j].y < kDeadGate ? 1u << j : 0u;
        }
      }
      if (kGates == Gates::outer && (dead[0] | dead[1]) != 0)
        for (int half = 0; half < 2; ++half)
          atomicOr(&to.dead[channel() + half], static_cast<unsigned long long>(dead[half]) << (first_token() + t));
    }
    return largest <= kSafeRange<E> || one;
  }
  __device__ void set(float* vector, float first, float second) const {
    *reinterpret_cast<float2*>(vector + channel()) = make_float2(first, second);
  }
  __device__ static std::uint32_t scaled(std::uint32_t pair, float2 by) {
    const float2 values = unpack<E>(pair);
    return pack<E>(values.x * by.x, values.y * by.y);
  }

  /// Brings what the pass for dq left of a chunk near.
  __device__ void prefetch(int chunk) const {
    const std::int64_t tile = (stretch.slot(chunk) * p.heads + head) * gridDim.x + blockIdx.x;
    constexpr int kBorder = C::kTiles * sizeof(SwizzledTile<E>), kBalance = kTile * kTile * sizeof(float), kLine = 128;
    const char* border = static_cast<const char*>(p.borders) + tile * kBorder;
    const char* balance = reinterpret_cast<const char*>(p.balance) + tile * kBalance;
    for (int at = thread * kLine; at < kBorder + kBalance; at += kThreads * kLine)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(at < kBorder ? border + at : balance + (at - kBorder)));
  }

  /// Applies the gates to step i. A chunk whose gates are too strong is taken in parts: then `step` becomes the first of them.
  __device__ void prepare(int i, Step& step, Loaded& loaded) {
    Vectors<C>& vectors = shared.vectors[i % S::kStages];
    auto wait = [&] {
      const float2 gates = shared_gates(loaded, step);
      if constexpr (kGates == Gates::none) {
        if (thread < 32) head_gates(vectors, gates);
      } else {
        if (thread < 32) *reinterpret_cast<float2*>(&vectors.b[2 * lane()]) = gates;
      }
      wait_copies<kAhead - 1>();
      fence_for_wgmma();
      sync_group<kThreads>(kBarrier);
    };
    wait();
    if constexpr (kGates != Gates::none) {
      for (;;) {
        const bool safe = p.wide_gates ? channel_gates<true>(i, step) : channel_gates<false>(i, step);
        fence_for_wgmma();
        if (!sync_group_or<kThreads>(kBarrier, !safe)) break;
        step = step.half(p.backward);
        loaded = load_gates(step);
        wait_copies<0>();
        start_copies(i, step);
        wait();
      }
      rest = next_rest;
      total_decay.x += next_total.x;
      total_decay.y += next_total.y;
    }
  }

  __device__ void run() {
    Step step = Step::whole(stretch, p.backward ? stretch.end_chunk - 1 : stretch.first_chunk);
    if (!step.valid(stretch)) return;
    Loaded loaded = load_gates(step);
    start_copies(0, step);
    int i = 0;
    for (; step.valid(stretch); ++i) {
      if constexpr (C::kConsumers == 2) forget(thread);
      prepare(i, step, loaded);
      const Step next = step.next(stretch, p.backward);
      const bool more = next.valid(stretch);
      if (more) loaded = load_gates(next);
      if constexpr (C::kBalance && kGates == Gates::outer)
        if (more && p.backward && next.first_of_chunk) prefetch(next.chunk);
      if constexpr (!C::kConsumersScore)
        if (p.out) {
          Scores<C, kThreads> scores;
          scores.start(shared.tiles[i % S::kStages], thread);
          scores.finish(shared.tiles[i % S::kStages], shared.vectors[i % S::kStages], p.backward, thread);
        }
      publish(i, step);
      step = next;
      if (next_copy == i + kAhead) copy();
    }
    claim(i);
    Vectors<C>& end = shared.vectors[i % S::kStages];
    if (kGates != Gates::none && sums_up()) {
      if constexpr (kGates == Gates::outer) set(end.after, 1, 1);
      set(end.before, exp2_approx(rest.x), exp2_approx(rest.y));
    }
    step.count = 0;
    publish(i, step);
    if (p.decay && sums_up()) {
      const int gated = kGates == Gates::none ? 1 : gate_rows.size;
      float* decay = p.decay + (std::int64_t{blockIdx.z} * p.heads + head) * gated + first_gate;
      if (first_gate + channel() < gated) decay[channel()] = total_decay.x;
      if (first_gate + channel() + 1 < gated) decay[channel() + 1] = total_decay.y;
    }
  }
  /// To the consumers.
  __device__ void publish(int i, const Step& step) {
    if (thread == 0) shared.vectors[i % S::kStages].step = step;
    barrier_arrive(&shared.full[i % S::kStages]);
  }
};

}  // namespace glade::cuda::passes
