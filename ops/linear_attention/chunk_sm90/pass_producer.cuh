#pragma once
// The producers of a pass (chunk_sm90/pass_kernel.cuh). They copy the tiles, apply the gates, and compute the scores unless the
// consumers do.
#include <glade/ops/linear_attention/chunk_sm90/pass_gates.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_scores.cuh>
#include <glade/ops/linear_attention/chunk_sm90/rows.cuh>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct Producer {
  using E = typename C::Element;
  using S = Shared<C>;
  static constexpr Gates kGates = C::kGates;
  static constexpr int kThreads = C::kProducers, kBarrier = 3;
  static constexpr int kAhead = S::kStages - 1;  ///< steps in flight from memory while the producers work on one
  /// Whether u is copied after the other tiles of its step, because there are buffers for fewer steps of it.
  static constexpr bool kLateU = C::kGateGradients && S::kStages > S::kPrepared;

  const Pass& p;
  S& shared;
  const Item& item;
  int thread;

  const Segment& segment = item.segment;
  const int &head = item.head, &first_outer = item.first_outer;

  const Factors<C> factors{p, segment, head, kGates == Gates::outer ? first_outer : 0};
  const Rows gate_rows{p.gk, p.heads, 1, factors.channels()};

  __device__ Source<E> source(const Rows& rows, int first_column) const { return {rows, segment, head, first_column, thread}; }
  const Source<E> x = source(p.out ? p.x : p.y, 0), y = source(p.y, 0), w = source(p.w, first_outer),
                  u = source(C::kGateGradients ? p.u : p.w, first_outer), gk = source(gate_rows, factors.first_gate);

  Step next_step;   ///< the next step to be copied
  int next_copy{};  ///< the number of next_step
  __device__ Step::LargeDecay large_decay() const { return kGates == Gates::none ? 0 : shared.exchange.large_decay; }
  __device__ Step next(const Step& step) const { return step.next(segment, p.backward, large_decay()); }
  /// Starts the copies of the next step, once the consumers have released its stage.
  __device__ void copy() {
    if (next_step.valid(segment)) {
      wait_for(next_copy - S::kStages);
      Tiles<C>& tiles = shared.tiles[next_copy % S::kStages];
      if (kGates != Gates::none && !p.float_gates) gk.template copy<kThreads>(tiles.gates, next_step, thread);
      y.template copy<kThreads>(tiles.y, next_step, thread);
      if (p.out) x.template copy<kThreads>(tiles.x, next_step, thread);
      w.template copy<kThreads>(tiles.w, next_step, thread);
      if constexpr (C::kGateGradients && !kLateU)
        u.template copy<kThreads>(shared.u[next_copy % S::kPrepared], next_step, thread);
      next_step = next(next_step);
    }
    commit_copies();
    ++next_copy;
  }
  /// Starts the copy of u for step i. It belongs to the same commit group as the next copy().
  __device__ void copy_late(int i, const Step& step) {
    if constexpr (kLateU) {
      if (!step.valid(segment)) return;  // the segment has ended
      wait_for(i - S::kPrepared);
      u.template copy<kThreads>(shared.u[i % S::kPrepared], step, thread);
    }
  }
  /// Starts the copies of step i and of the steps after it. This happens at the start of the segment, and again when a chunk is
  /// split into sub-chunks.
  __device__ void start_copies(int i, const Step& step) {
    copy_late(i, step);
    next_step = step;
    next_copy = i;
    while (next_copy < i + kAhead) copy();
  }
  /// Waits until the consumers have released step i.
  __device__ void wait_for(int i) {
    if (i >= 0) barrier_wait(&shared.empty[i % S::kStages], i / S::kStages & 1);
  }
  __device__ bool is_done(int i) { return i < 0 || barrier_test(&shared.empty[i % S::kStages], i / S::kStages & 1); }
  /// Starts the copies of the step kAhead after step i, if this needs no waiting.
  __device__ void copy_early(int i) {
    if (next_copy == i + kAhead && is_done(next_copy - S::kStages)) copy();
  }

  /// Per-head gates of a step as they lie in memory, two tokens for each lane of the first warp. load_head_gates() starts the
  /// loads, and head_gates() uses them later, so that no thread waits for memory in between.
  struct LoadedGates {
    std::uint32_t bits[2];
  };
  const linear_attention::HeadGate<E> head_gate{p, item.n, head};
  __device__ LoadedGates load_head_gates(const Step& step) const {
    LoadedGates loaded{};
    if (p.g && thread < 32)
      for (int i = 0; i < 2; ++i)
        if (2 * thread + i < step.count) loaded.bits[i] = head_gate.load_bits(segment.token(step.position() + 2 * thread + i));
    return loaded;
  }
  __device__ float2 head_gates(const LoadedGates& loaded, const Step& step) const {
    auto gate = [&](int i) { return 2 * thread + i < step.count ? head_gate.log2_decay(loaded.bits[i]) : 0.f; };
    return make_float2(gate(0), gate(1));
  }

  /// Gates::none: computes the vectors of a step from its per-head gates, base 2. One warp runs this.
  __device__ void prepare_head_gates(Vectors<C>& to, float2 gates) {
    const float first = at_least(gates.x, kLeastGate), second = at_least(gates.y, kLeastGate);
    float sum = first + second;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float before = __shfl_up_sync(~0u, sum, distance);
      if (thread >= distance) sum += before;
    }
    const float total = __shfl_sync(~0u, sum, 31);
    const float2 b = make_float2(sum - second, sum), remaining = make_float2(total - b.x, total - b.y);
    const float2 c = p.backward ? remaining : b, after = p.backward ? b : remaining;
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

  // Per-channel gates: this thread's two channels, and its first token.
  __device__ int lane() const { return thread % 32; }
  __device__ int gated_tile() const { return C::kGatedTiles < 2 ? 0 : thread / 32 % C::kGatedTiles; }
  __device__ int channel() const { return gated_tile() * kTile + 2 * lane(); }
  __device__ int first_token() const { return C::kTokenGroups < 2 ? 0 : thread / 32 / C::kGatedTiles * C::kGroupTokens; }
  /// Whether this thread writes the totals of its channels, such as the decay of the step.
  __device__ bool writes_totals() const { return kGates == Gates::none ? thread == 0 : first_token() == 0; }
  float2 total_decay{};  ///< the log decay of all steps so far

  template <bool kFloatGates>
  __device__ float2 channel_gate(int first, int at, int i, const Step& step) const {
    return factors.template gate<kFloatGates>(first, at, gated_tile(), lane(), shared.stage(i), step);
  }
  /// Sums of the gates of this thread's two channels.
  struct Sums {
    float2 before, all;  ///< of the tokens before those of this thread, and of the whole step
    float2 gates[C::kRegisterGates == 0 ? 1 : C::kRegisterGates];
    bool safe;  ///< true only if the step is certainly in range for these channels
  };
  template <bool kFloatGates>
  __device__ Sums sum_gates(int i, const Step& step) {
    Sums s{};
    float largest = 0;
#pragma unroll(C::kRegisterGates > 0 ? C::kRegisterGates : 1)
    for (int t = 0; t < C::kGroupTokens; t += 8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 gate = channel_gate<kFloatGates>(first_token() + t, j, i, step);
        if constexpr (C::kRegisterGates > 0) s.gates[t + j] = gate;
        s.all.x += gate.x;
        s.all.y += gate.y;
        largest = fmaxf(largest, fmaxf(gate.x, gate.y));
      }
    }
    if constexpr (S::kStages == 2) copy_early(i);  // with few stages copies start as early as possible
    if constexpr (kGates == Gates::outer) {
      Vectors<C>& to = shared.stage(i).vectors;
      if (writes_totals()) to.dead[channel()] = to.dead[channel() + 1] = 0;
    }
    if constexpr (C::kTokenGroups > 1) {
      const Stage<C> stage = shared.stage(i);
      *reinterpret_cast<float2*>(stage.group_sums(first_token() / C::kGroupTokens) + channel()) = s.all;
      sync_group<kThreads>(kBarrier);
      s.all = {};
#pragma unroll
      for (int token_group = 0; token_group < C::kTokenGroups; ++token_group) {
        if (token_group * C::kGroupTokens == first_token()) s.before = s.all;
        const float2 other = *reinterpret_cast<const float2*>(stage.group_sums(token_group) + channel());
        s.all.x += other.x;
        s.all.y += other.y;
      }
    }
    s.safe = s.all.x >= -2 * kSafeRange<E> && s.all.y >= -2 * kSafeRange<E> && largest <= 0;  // false for NaN
    return s;
  }

  /// Applies the factors to this thread's share of step i, in place, unless the consumers do.
  template <bool kFloatGates, bool kResults, bool kLowPartOfY>
  __device__ void apply_gates(int i, const Step& step, const Sums& sums) {
    const Stage<C> stage = shared.stage(i);
    Vectors<C>& to = stage.vectors;
    // r is the reference: c - r = b - shift, and in the reverse scan c - r = shift - b, where b is the sum of the gates up to and
    // including a token.
    const bool one = step.count == 1;
    const float2 sum = sums.all, shift = one ? sum : make_float2(sum.x / 2, sum.y / 2);
    if (writes_totals()) {
      set(to.half_decay, exp2_approx(shift.x), exp2_approx(shift.y));
      if constexpr (kGates == Gates::outer) set(to.decay, exp2_approx(sum.x), exp2_approx(sum.y));
    }
    total_decay.x += sum.x;
    total_decay.y += sum.y;
    if constexpr (C::kConsumersApplyGates) return;
    const float sign = p.backward ? -1.f : 1.f;
    factors.template apply<C::kGroupTokens, 8, kResults, kLowPartOfY>(
        stage, gated_tile(), lane(), first_token(),
        make_float2(sign * (sums.before.x - shift.x), sign * (sums.before.y - shift.y)), [&](int t, int at) {
          if constexpr (C::kRegisterGates > 0) return sums.gates[t + at];
          else return channel_gate<kFloatGates>(first_token() + t, at, i, step);
        });
  }
  template <bool kFloatGates>
  __device__ void apply_gates(int i, const Step& step, const Sums& sums) {
    if constexpr (kGates == Gates::inner)
      if (!p.out) return apply_gates<kFloatGates, false, false>(i, step, sums);
    if constexpr (C::kInnerLowParts && C::kLowParts)
      if (has_low_part_of_y<C>(p, step)) return apply_gates<kFloatGates, true, true>(i, step, sums);
    apply_gates<kFloatGates, true, false>(i, step, sums);
  }
  __device__ void set(float* vector, float first, float second) const {
    *reinterpret_cast<float2*>(vector + channel()) = make_float2(first, second);
  }

  /// Returns the sub-chunks of step i, a whole chunk, in which the channels of this thread have large decay.
  template <bool kFloatGates>
  __device__ Step::LargeDecay large_decay_sub_chunks(int i, const Step& step) const {
    constexpr int kLevels = 6, kBatch = 8;  // for sub-chunks of 2, 4, .. 64 tokens
    float2 sums[kLevels] = {};              // of the magnitudes of the gates, for the unfinished sub-chunk of each size
    Step::LargeDecay marks = 0;
#pragma unroll 1
    for (int first = 0; first < kTile; first += kBatch)
#pragma unroll
      for (int t = 0; t < kBatch; ++t) {
        const float2 gate = channel_gate<kFloatGates>(first, t, i, step);
#pragma unroll
        for (int level = 0; level < kLevels; ++level) {
          const int size = 2 << level, end = first + t + 1;
          sums[level].x += fabsf(gate.x);
          sums[level].y += fabsf(gate.y);
          if ((t + 1) % min(size, kBatch) != 0 || end % size != 0) continue;
          constexpr float kMaxDecay = 2 * kSafeRange<E>;
          if (!(sums[level].x <= kMaxDecay && sums[level].y <= kMaxDecay))
            marks |= Step::LargeDecay{1} << Step::bit(end - size, size);
          sums[level] = {};
        }
      }
    return marks;
  }
  /// Finds the sub-chunks with large decay of step i, a whole chunk, and shares them with all producers.
  __device__ void find_large_decay(int i, const Step& step) {
    Step::LargeDecay& large_decay = shared.exchange.large_decay;
    if (thread == 0) large_decay = 0;
    sync_group<kThreads>(kBarrier);
    if (writes_totals()) {
      const Step::LargeDecay marks =
          p.float_gates ? large_decay_sub_chunks<true>(i, step) : large_decay_sub_chunks<false>(i, step);
      const unsigned low = __reduce_or_sync(~0u, static_cast<unsigned>(marks)),
                     high = __reduce_or_sync(~0u, static_cast<unsigned>(marks >> 32));
      if (lane() == 0) atomicOr(&large_decay, Step::LargeDecay{high} << 32 | low);
    }
    sync_group<kThreads>(kBarrier);
  }

  /// Prefetches what the pass for dq saved for a chunk into the L2 cache.
  __device__ void prefetch(int chunk) const {
    const std::int64_t tile = (segment.slot(chunk) * p.heads + head) * item_columns(p, kTile) + first_outer / kTile;
    constexpr int kStateBytes = C::kTiles * sizeof(SwizzledTile<E>), kUOutBytes = kTile * kTile * sizeof(float), kLine = 128;
    const char* saved_state = static_cast<const char*>(p.saved_states) + tile * kStateBytes;
    const char* u_out = reinterpret_cast<const char*>(p.u_out) + tile * kUOutBytes;
    for (int at = thread * kLine; at < kStateBytes + kUOutBytes; at += kThreads * kLine)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(at < kStateBytes ? saved_state + at : u_out + (at - kStateBytes)));
  }

  /// Applies the gates to step i. If a whole chunk has large decay it is split, and `step` becomes its first sub-chunk.
  __device__ void prepare(int i, Step& step, LoadedGates& loaded) {
    Vectors<C>& vectors = shared.stage(i).vectors;
    wait_for(i - S::kPrepared);
    auto wait = [&] {
      const float2 gates = head_gates(loaded, step);
      if constexpr (kGates == Gates::none) {
        if (thread < 32) prepare_head_gates(vectors, gates);
      } else {
        if (thread < 32) *reinterpret_cast<float2*>(&shared.stage(i).b()[2 * lane()]) = gates;
      }
      wait_copies<kAhead - 1>();
      fence_for_wgmma();
      sync_group<kThreads>(kBarrier);
    };
    wait();
    if constexpr (kGates != Gates::none) {
      auto sum = [&] { return p.float_gates ? sum_gates<true>(i, step) : sum_gates<false>(i, step); };
      Sums sums = sum();
      if (sync_group_or<kThreads>(kBarrier, !sums.safe && step.size == kTile)) {
        find_large_decay(i, step);
        const Step first = Step::first(segment, step.chunk, p.backward, large_decay());
        if (first.size < kTile) {
          step = first;
          loaded = load_head_gates(step);
          wait_copies<0>();
          start_copies(i, step);
          wait();
          sums = sum();
          sync_group<kThreads>(kBarrier);  // all threads have read the sums, whose memory the factors may reuse
        }
      }
      p.float_gates ? apply_gates<true>(i, step, sums) : apply_gates<false>(i, step, sums);
      fence_for_wgmma();
      // All threads have read the gates, whose memory the scores reuse.
      if constexpr (kGates == Gates::outer && !C::kLowParts) sync_group<kThreads>(kBarrier);
    }
  }

  /// Produces the steps of the item, of which the first has the number i. Returns the number of the step after them.
  __device__ int run(int i) {
    Step step = Step::first(segment, p.backward ? segment.end_chunk - 1 : segment.first_chunk, p.backward, 0);
    LoadedGates loaded = step.valid(segment) ? load_head_gates(step) : LoadedGates{};
    start_copies(i, step);
    for (; step.valid(segment); ++i) {
      if constexpr (C::kConsumers == 2) forget(thread);
      prepare(i, step, loaded);
      const Step following = next(step);
      const bool more = following.valid(segment);
      if (more) loaded = load_head_gates(following);
      if constexpr (C::kGateGradients && kGates == Gates::outer)
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
    step.count = 0;
    publish(i, step);
    if (p.decay && writes_totals()) {
      const int gated = kGates == Gates::none ? 1 : gate_rows.size;
      float* decay = p.decay + (segment.segment_row(p, item.n) * p.heads + head) * gated + factors.first_gate;
      if (factors.first_gate + channel() < gated) decay[channel()] = exp2f(total_decay.x);
      if (factors.first_gate + channel() + 1 < gated) decay[channel() + 1] = exp2f(total_decay.y);
    }
    return i + 1;
  }
  /// Hands step i to the consumers.
  __device__ void publish(int i, const Step& step) {
    if (thread == 0) shared.stage(i).vectors.step = step;
    barrier_arrive(&shared.full[i % S::kStages]);
  }
};

}  // namespace glade::cuda::chunk_sm90
