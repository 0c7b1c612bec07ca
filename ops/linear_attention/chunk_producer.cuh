#pragma once
// The producers of a pass of the chunk form (chunk_pass.cuh): tiles, gates, and scores where gates leave them the time.
#include <glade/ops/linear_attention/chunk_factors.cuh>
#include <glade/ops/linear_attention/chunk_rows.cuh>
#include <glade/ops/linear_attention/chunk_scores.cuh>

namespace glade::cuda::passes {

template <class C>
struct Producer {
  using E = typename C::Element;
  using S = Shared<C>;
  static constexpr Gates kGates = C::kGates;
  static constexpr int kThreads = C::kProducers, kBarrier = 3;
  static constexpr int kAhead = S::kStages - 1;  ///< steps on their way from memory while one is worked on
  /// Whether u, of which there is room for fewer steps, comes after the other tiles of its step.
  static constexpr bool kLateU = C::kBalance && S::kStages > S::kPrepared;

  const Pass& p;
  S& shared;
  const Stretch& stretch;
  const std::int64_t n;
  const int head, first_outer;
  int thread;

  const Factors<C> factors{p, stretch, head, kGates == Gates::outer ? first_outer : 0};
  const Rows gate_rows{p.gk, p.heads, 1, factors.channels()};

  __device__ Source<E> source(const Rows& rows, int first_column) const { return {rows, stretch, head, first_column, thread}; }
  const Source<E> x = source(p.out ? p.x : p.y, 0), y = source(p.y, 0), w = source(p.w, first_outer),
                  u = source(C::kBalance ? p.u : p.w, first_outer), gk = source(gate_rows, factors.first_gate);

  Step coming;      ///< the next to be copied
  int next_copy{};  ///< its number
  __device__ Step::Strong strong() const { return kGates == Gates::none ? 0 : shared.exchange.strong; }
  __device__ Step next(const Step& step) const { return step.next(stretch, p.backward, strong()); }
  /// Starts the copies for a step, as soon as the consumers have done with what stands in its place.
  __device__ void copy() {
    if (coming.valid(stretch)) {
      wait_for(next_copy - S::kStages);
      Tiles<C>& tiles = shared.tiles[next_copy % S::kStages];
      if (kGates != Gates::none && !p.wide_gates) gk.template copy<kThreads>(tiles.gates, coming, thread);
      y.template copy<kThreads>(tiles.y, coming, thread);
      if (p.out) x.template copy<kThreads>(tiles.x, coming, thread);
      w.template copy<kThreads>(tiles.w, coming, thread);
      if constexpr (C::kBalance && !kLateU) u.template copy<kThreads>(shared.u[next_copy % S::kPrepared], coming, thread);
      coming = next(coming);
    }
    commit_copies();
    ++next_copy;
  }
  /// Together with the next copy().
  __device__ void copy_late(int i, const Step& step) {
    if constexpr (kLateU) {
      if (!step.valid(stretch)) return;  // no step at all
      wait_for(i - S::kPrepared);
      u.template copy<kThreads>(shared.u[i % S::kPrepared], step, thread);
    }
  }
  /// Step i again, or for the first time, and those after it.
  __device__ void start_copies(int i, const Step& step) {
    copy_late(i, step);
    coming = step;
    next_copy = i;
    while (next_copy < i + kAhead) copy();
  }
  /// Until the consumers have done with step i.
  __device__ void wait_for(int i) {
    if (i >= 0) barrier_wait(&shared.empty[i % S::kStages], i / S::kStages & 1);
  }
  __device__ bool is_done(int i) { return i < 0 || barrier_test(&shared.empty[i % S::kStages], i / S::kStages & 1); }
  /// Copies for the step kAhead after step i, if that takes no waiting.
  __device__ void copy_early(int i) {
    if (next_copy == i + kAhead && is_done(next_copy - S::kStages)) copy();
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
  const float gamma = p.g_gamma ? p.g_gamma[n * p.gamma_step + head] : 0.f;
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
  float2 rest{}, total_decay{};  ///< what R's decay lacks after the last step; of all steps

  template <bool kWide>
  __device__ float2 channel_gate(int token, int i, const Step& step) const {
    return factors.template gate<kWide>(token, gated_tile(), lane(), shared.stage(i), step);
  }
  /// Sums of this thread's channels' gates.
  struct Sums {
    float2 before, all;  ///< of the tokens before this thread's, and of the step
    float2 at_end;       ///< before those that the consumers have at the end
    float2 gates[C::kKept == 0 ? 1 : C::kKept];
    bool weak;  ///< this thread's channels allow to take the step at once, for sure
  };
  template <bool kWide>
  __device__ Sums sum_gates(int i, const Step& step) {
    Sums s{};
    float greatest = 0;
#pragma unroll(C::kKept > 0 ? C::kKept : 1)
    for (int t = 0; t < C::kSpan; t += 8) {
      if (C::kShared > 0 && t == C::kShared) s.before = s.all;
      if (C::kShared > 0 && t == kTile - C::kShared) s.at_end = s.all;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 gate = channel_gate<kWide>(first_token() + t + j, i, step);
        if constexpr (C::kKept > 0) s.gates[t + j] = gate;
        s.all.x += gate.x;
        s.all.y += gate.y;
        greatest = fmaxf(greatest, fmaxf(gate.x, gate.y));
      }
    }
    if constexpr (S::kStages == 2) copy_early(i);  // few stages: as early as possible
    if constexpr (kGates == Gates::outer) {
      Vectors<C>& to = shared.stage(i).vectors;
      if (sums_up()) to.dead[channel()] = to.dead[channel() + 1] = 0;
    }
    if constexpr (C::kSpans > 1) {
      const Stage<C> stage = shared.stage(i);
      *reinterpret_cast<float2*>(stage.span_sums(first_token() / C::kSpan) + channel()) = s.all;
      sync_group<kThreads>(kBarrier);
      s.all = {};
#pragma unroll
      for (int span = 0; span < C::kSpans; ++span) {
        if (span * C::kSpan == first_token()) s.before = s.all;
        const float2 other = *reinterpret_cast<const float2*>(stage.span_sums(span) + channel());
        s.all.x += other.x;
        s.all.y += other.y;
      }
    }
    s.weak = s.all.x >= -2 * kSafeRange<E> && s.all.y >= -2 * kSafeRange<E> && greatest <= 0;  // NaN is not
    return s;
  }

  /// Applies the factors to this thread's part of step i, in place.
  template <bool kWide, bool kResults, bool kRestsOfY>
  __device__ void apply_gates(int i, const Step& step, const Sums& sums) {
    const Stage<C> stage = shared.stage(i);
    Vectors<C>& to = stage.vectors;
    // r: the reference. c - r = b - shift, or the opposite where the pass goes backward.
    const bool one = step.count == 1;
    const float2 sum = sums.all, r = !one ? make_float2(sum.x / 2, sum.y / 2) : p.backward ? float2{} : sum;
    const float2 left = make_float2(sum.x - r.x, sum.y - r.y), shift = p.backward ? left : r;
    if (sums_up()) {
      set_before(to, r);
      if constexpr (kGates == Gates::outer) set(to.decay, exp2_approx(sum.x), exp2_approx(sum.y));
    }
    rest = left;
    total_decay.x += sum.x;
    total_decay.y += sum.y;
    const float sign = p.backward ? -1.f : 1.f;
    constexpr int kBatch = C::kProducerRegisters < 80 ? 4 : 8;
    factors.template apply<C::kSpan - 2 * C::kShared, kBatch, kResults, kRestsOfY>(
        stage, gated_tile(), lane(), first_token() + C::kShared,
        make_float2(sign * (sums.before.x - shift.x), sign * (sums.before.y - shift.y)), [&](int t) {
          if constexpr (C::kKept > 0) return sums.gates[t];
          else return channel_gate<kWide>(first_token() + C::kShared + t, i, step);
        });
    if constexpr (C::kShared > 0) {
      auto leave = [&](int consumer, float x, float y) {
        factors.exponent(stage.tiles, gated_tile(), lane(), consumer, 0) = sign * x;
        factors.exponent(stage.tiles, gated_tile(), lane(), consumer, 1) = sign * y;
      };
      leave(0, -shift.x, -shift.y);
      leave(1, sums.at_end.x - shift.x, sums.at_end.y - shift.y);
    }
  }
  template <bool kWide>
  __device__ void apply_gates(int i, const Step& step, const Sums& sums) {
    if constexpr (kGates == Gates::inner)
      if (!p.out) return apply_gates<kWide, false, false>(i, step, sums);
    if constexpr (C::kInnerRests)
      if (has_rests_of_y<C>(p, step)) return apply_gates<kWide, true, true>(i, step, sums);
    apply_gates<kWide, true, false>(i, step, sums);
  }
  __device__ void set(float* vector, float first, float second) const {
    *reinterpret_cast<float2*>(vector + channel()) = make_float2(first, second);
  }
  __device__ void set_before(Vectors<C>& to, float2 r) const {
    set(to.before, exp2_approx((rest.x + r.x) / 2), exp2_approx((rest.y + r.y) / 2));
  }

  /// The parts of step i, a whole chunk, in which this thread's channels decay too much.
  template <bool kWide>
  __device__ Step::Strong strong_parts(int i, const Step& step) const {
    constexpr int kLevels = 6, kBatch = 8;  // parts of 2, 4, .. 64 tokens
    float2 sums[kLevels] = {};              // of the magnitudes of gates, in the part of each level that is not at its end
    Step::Strong marks = 0;
#pragma unroll 1
    for (int first = 0; first < kTile; first += kBatch)
#pragma unroll
      for (int t = 0; t < kBatch; ++t) {
        const float2 gate = channel_gate<kWide>(first + t, i, step);
#pragma unroll
        for (int level = 0; level < kLevels; ++level) {
          const int size = 2 << level, end = first + t + 1;
          sums[level].x += fabsf(gate.x);
          sums[level].y += fabsf(gate.y);
          if ((t + 1) % min(size, kBatch) != 0 || end % size != 0) continue;
          constexpr float kMost = 2 * kSafeRange<E>;
          if (!(sums[level].x <= kMost && sums[level].y <= kMost)) marks |= Step::Strong{1} << Step::bit(end - size, size);
          sums[level] = {};
        }
      }
    return marks;
  }
  /// Marks the parts of step i, a whole chunk.
  __device__ void find_strong(int i, const Step& step) {
    Step::Strong& strong = shared.exchange.strong;
    if (thread == 0) strong = 0;
    sync_group<kThreads>(kBarrier);
    if (sums_up()) {
      const Step::Strong marks = p.wide_gates ? strong_parts<true>(i, step) : strong_parts<false>(i, step);
      const unsigned low = __reduce_or_sync(~0u, static_cast<unsigned>(marks)),
                     high = __reduce_or_sync(~0u, static_cast<unsigned>(marks >> 32));
      if (lane() == 0) atomicOr(&strong, Step::Strong{high} << 32 | low);
    }
    sync_group<kThreads>(kBarrier);
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

  /// Applies the gates to step i. A whole chunk whose gates are too strong is taken in parts: then `step` becomes the first.
  __device__ void prepare(int i, Step& step, Loaded& loaded) {
    Vectors<C>& vectors = shared.stage(i).vectors;
    wait_for(i - S::kPrepared);
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
      auto sum = [&] { return p.wide_gates ? sum_gates<true>(i, step) : sum_gates<false>(i, step); };
      Sums sums = sum();
      if (sync_group_or<kThreads>(kBarrier, !sums.weak && step.size == kTile)) {
        find_strong(i, step);
        const Step first = Step::first(stretch, step.chunk, p.backward, strong());
        if (first.size < kTile) {
          step = first;
          loaded = load_gates(step);
          wait_copies<0>();
          start_copies(i, step);
          wait();
          sums = sum();
          sync_group<kThreads>(kBarrier);  // all have read what factors may take the place of
        }
      }
      p.wide_gates ? apply_gates<true>(i, step, sums) : apply_gates<false>(i, step, sums);
      fence_for_wgmma();
      if constexpr (kGates == Gates::outer && !C::kRests) sync_group<kThreads>(kBarrier);  // scores take the gates' place
    }
  }

  __device__ void run() {
    Step step = Step::first(stretch, p.backward ? stretch.end_chunk - 1 : stretch.first_chunk, p.backward, 0);
    Loaded loaded = step.valid(stretch) ? load_gates(step) : Loaded{};
    start_copies(0, step);
    int i = 0;
    for (; step.valid(stretch); ++i) {
      if constexpr (C::kConsumers == 2) forget(thread);
      prepare(i, step, loaded);
      const Step following = next(step);
      const bool more = following.valid(stretch);
      if (more) loaded = load_gates(following);
      if constexpr (C::kBalance && kGates == Gates::outer)
        if (more && p.backward && following.ends_chunk) prefetch(following.chunk);
      if constexpr (!C::kConsumersScore)
        if (p.out) {
          Scores<C, kThreads> scores;
          scores.start(shared.stage(i), thread, false);
          scores.finish(shared.stage(i), p.backward, thread, kBarrier, false);
        }
      if constexpr (kLateU) wait_copies<0>();
      publish(i, step);
      step = following;
      if (more) copy_late(i + 1, step);
      if (next_copy == i + kAhead) copy();
    }
    wait_for(i - S::kPrepared);
    Vectors<C>& end = shared.stage(i).vectors;
    if (kGates != Gates::none && sums_up()) set_before(end, {});
    step.count = 0;
    publish(i, step);
    if (p.decay && sums_up()) {
      const int gated = kGates == Gates::none ? 1 : gate_rows.size;
      float* decay = p.decay + (stretch.part_row(p, n) * p.heads + head) * gated + factors.first_gate;
      if (factors.first_gate + channel() < gated) decay[channel()] = exp2f(total_decay.x);
      if (factors.first_gate + channel() + 1 < gated) decay[channel() + 1] = exp2f(total_decay.y);
    }
  }
  /// To the consumers.
  __device__ void publish(int i, const Step& step) {
    if (thread == 0) shared.stage(i).vectors.step = step;
    barrier_arrive(&shared.full[i % S::kStages]);
  }
};

}  // namespace glade::cuda::passes
