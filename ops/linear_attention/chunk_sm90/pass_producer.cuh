#pragma once
// The producers of a pass where y or w has gates, or neither (chunk_sm90/pass_kernel.cuh). They copy the tiles, apply the gates,
// and compute the scores unless the consumers do.
#include <glade/ops/linear_attention/chunk_sm90/pass_producer_base.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_scores.cuh>
#include <glade/ops/linear_attention/chunk_sm90/rows.cuh>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct Producer : ProducerBase<C> {
  using Base = ProducerBase<C>;
  using E = typename C::Element;
  using S = Shared<C>;
  using Base::find_large_decay, Base::head_gates, Base::is_done, Base::large_decay, Base::load_head_gates;
  using Base::kGates, Base::kThreads, Base::kBarrier, Base::kAhead;
  using Base::lane, Base::next, Base::prefetch, Base::stage, Base::sync, Base::wait_for;
  using Base::p, Base::shared, Base::item, Base::thread, Base::segment, Base::head, Base::first_outer;
  using typename Base::LoadedGates;
  /// Whether u is copied after the other tiles of its step, because there are buffers for fewer steps of it.
  static constexpr bool kLateU = C::kGateGradients && S::kStages > S::kPrepared;

  using Gated = std::conditional_t<C::kOuterGates, GateShare<C, true>, GateShare<C, false>>;
  __device__ const Factors<C, Gated>& factors() const { return Base::template factors<Gated>(); }
  __device__ Source<E> source(const Rows& rows, int first_column) const { return {rows, segment, head, first_column, thread}; }
  const Source<E> x = source(p.out ? p.x : p.y, 0), y = source(p.y, 0), w = source(p.w, first_outer),
                  u = source(C::kGateGradients ? p.u : p.w, first_outer),
                  gates = source({p.gk, p.heads, 1, factors().channels()}, factors().first_gate);

  Step next_step;   ///< the next step to be copied
  int next_copy{};  ///< the number of next_step
  /// Starts the copies of the next step, once the consumers have released its stage.
  __device__ void copy() {
    if (next_step.valid(segment)) {
      wait_for(next_copy - S::kStages);
      Tiles<C>& tiles = shared.tiles[next_copy % S::kStages];
      if constexpr (kGates != Gates::none) {
        if constexpr (C::kFloatGates) factors().prefetch(next_step, thread);
        else gates.template copy<kThreads>(tiles.gates, next_step, thread);
      }
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
  /// Starts the copies of the step kAhead after step i, if this needs no waiting.
  __device__ void copy_early(int i) {
    if (next_copy == i + kAhead && is_done(next_copy - S::kStages)) copy();
  }

  float2 total_decay{};  ///< the log decay of all steps so far

  /// Sums of the gates of this thread's two channels.
  struct Sums {
    float2 before, all;  ///< of the tokens before those of this thread, and of the whole step
    float2 gates[Gated::kRegisterGates == 0 ? 1 : Gated::kRegisterGates];
    bool safe;  ///< true only if the step is certainly in range for these channels
  };
  __device__ Sums sum_gates(int i, const Step& step) {
    Sums s{};
    float largest = 0;
#pragma unroll(Gated::kRegisterGates > 0 ? Gated::kRegisterGates : 1)
    for (int t = 0; t < Gated::kGroupTokens; t += 8) {
      float2 gates[8];
      Base::template load_channel_gates<Gated>(gates, Base::template first_token<Gated>() + t, i, step);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 gate = gates[j];
        if constexpr (Gated::kRegisterGates > 0) s.gates[t + j] = gate;
        s.all.x += gate.x;
        s.all.y += gate.y;
        largest = fmaxf(largest, fmaxf(gate.x, gate.y));
      }
    }
    if constexpr (S::kStages == 2) copy_early(i);  // with few stages copies start as early as possible
    if constexpr (Gated::kOuter) {
      Vectors<C>& to = stage(i).vectors;
      if (Base::template writes_totals<Gated>())
        to.dead[Base::template channel<Gated>()] = to.dead[Base::template channel<Gated>() + 1] = 0;
    }
    if constexpr (Gated::kTokenGroups > 1) {
      const Stage<C> stage = Base::stage(i);
      const auto of_group = [&](int token_group) {
        return reinterpret_cast<float2*>(stage.group_sums(token_group) + Base::template channel<Gated>());
      };
      *of_group(Base::template first_token<Gated>() / Gated::kGroupTokens) = s.all;
      sync();
      s.all = {};
#pragma unroll
      for (int token_group = 0; token_group < Gated::kTokenGroups; ++token_group) {
        if (token_group * Gated::kGroupTokens == Base::template first_token<Gated>()) s.before = s.all;
        const float2 other = *of_group(token_group);
        s.all.x += other.x;
        s.all.y += other.y;
      }
    }
    s.safe = s.all.x >= -2 * C::kMostExponent && s.all.y >= -2 * C::kMostExponent && largest <= 0;  // false for NaN
    return s;
  }

  /// Applies the factors to this thread's share of step i, in place, unless the consumers do.
  template <bool kResults, bool kLowPartOfY>
  __device__ void apply_gates(int i, const Step& step, const Sums& sums) {
    const Stage<C> stage = Base::stage(i);
    Vectors<C>& to = stage.vectors;
    // r is the reference: c - r = b - shift, and in the reverse scan c - r = shift - b, where b is the sum of the gates up to and
    // including a token.
    const bool one = step.count == 1;
    const float2 sum = sums.all, shift = one ? sum : make_float2(sum.x / 2, sum.y / 2);
    const auto set = [&](float* vector, float first, float second) {
      *reinterpret_cast<float2*>(vector + Base::template channel<Gated>()) = make_float2(first, second);
    };
    if (Base::template writes_totals<Gated>()) {
      set(to.half_decay, exp2_approx(shift.x), exp2_approx(shift.y));
      if constexpr (Gated::kOuter) set(to.decay, exp2_approx(sum.x), exp2_approx(sum.y));
    }
    total_decay.x += sum.x;
    total_decay.y += sum.y;
    if constexpr (C::kConsumersApplyGates) return;
    const float sign = p.backward ? -1.f : 1.f;
    factors().template apply<Gated::kGroupTokens, 8, kResults, kLowPartOfY>(
        stage, Base::template gated_tile<Gated>(), lane(), Base::template first_token<Gated>(),
        make_float2(sign * (sums.before.x - shift.x), sign * (sums.before.y - shift.y)), [&](float2(&gates)[8], int t, int) {
          if constexpr (Gated::kRegisterGates > 0) {
#pragma unroll
            for (int j = 0; j < 8; ++j) gates[j] = sums.gates[t + j];
          } else {
            Base::template load_channel_gates<Gated>(gates, Base::template first_token<Gated>() + t, i, step);
          }
        });
  }
  __device__ void apply_gates(int i, const Step& step, const Sums& sums) {
    if constexpr (!Gated::kOuter) {
      if (!p.out) return apply_gates<false, false>(i, step, sums);
      if constexpr (C::kInnerLowParts && C::kLowParts)
        if (has_low_part_of_y<C>(p, step)) return apply_gates<true, true>(i, step, sums);
    }
    apply_gates<true, false>(i, step, sums);
  }

  /// Applies the gates to step i. Returns false if it may have to be split first.
  __device__ bool prepare(int i, const Step& step, const LoadedGates& loaded, bool may_split) {
    Vectors<C>& vectors = stage(i).vectors;
    wait_for(i - S::kPrepared);
    const float2 gates = head_gates(loaded, step);
    if constexpr (kGates == Gates::none) {
      if (thread < 32) total_decay.x += Base::prepare_head_gates(vectors, gates);
    } else {
      if (thread < 32) *reinterpret_cast<float2*>(&stage(i).b()[2 * lane()]) = gates;
    }
    wait_copies<kAhead - 1>();
    fence_for_wgmma();
    sync();
    if constexpr (kGates != Gates::none) {
      const Sums sums = sum_gates(i, step);
      // All threads have read the sums then, whose memory the factors may reuse.
      if (sync_group_or<kThreads>(kBarrier, !sums.safe && may_split && step.size == kTile)) return false;
      apply_gates(i, step, sums);
      fence_for_wgmma();
      // All threads have read the gates, whose memory the scores reuse.
      if constexpr (C::kOuterGates && !C::kLowParts) sync();
    }
    return true;
  }
  /// Splits step i, a chunk, if its decay is large: then `step` becomes its first sub-chunk.
  __device__ void split(int i, Step& step, LoadedGates& loaded) {
    find_large_decay(i, step);
    const Step first = Step::first(segment, step.chunk, p.backward, large_decay());
    if (first.size == kTile) return;
    step = first;
    loaded = load_head_gates(step);
    wait_copies<0>();
    start_copies(i, step);
  }

  __device__ void publish(int i, const Step& step) {
    if (thread == 0) stage(i).vectors.step = step;
    Base::publish(i);
  }

  /// Produces the steps of the item, of which the first has the number i. Returns the number of the step after them.
  __device__ int run(int i) {
    Step step = Step::first(segment, p.backward ? segment.end_chunk - 1 : segment.first_chunk, p.backward, 0);
    LoadedGates loaded = step.valid(segment) ? load_head_gates(step) : LoadedGates{};
    start_copies(i, step);
    bool may_split = true;
    const auto run_steps = [&] {
      for (; step.valid(segment); ++i) {
        if constexpr (C::kConsumers == 2) forget(thread);
        if (!prepare(i, step, loaded, may_split)) return;
        may_split = true;
        const Step following = next(step);
        const bool more = following.valid(segment);
        if (more) loaded = load_head_gates(following);
        if constexpr (C::kGateGradients && C::kOuterGates)
          if (more && p.backward && following.ends_chunk) prefetch(following.chunk);
        if constexpr (C::kProducersScore)
          if (p.out) {
            Scores<C, kThreads> scores;
            scores.start(stage(i), thread, false);
            scores.finish(stage(i), p.backward, thread, kBarrier, false);
          }
        if constexpr (kLateU) wait_copies<0>();
        publish(i, step);
        step = following;
        if (more) copy_late(i + 1, step);
        if (next_copy == i + kAhead) copy();
      }
    };
    for (;;) {
      run_steps();
      if (!step.valid(segment)) break;
      split(i, step, loaded);  // seldom, and so outside of the loop over the steps
      may_split = false;
    }
    wait_for(i - S::kPrepared);
    step.count = 0;
    publish(i, step);
    const int gated = kGates == Gates::none ? 1 : factors().channels();
    float* decay = segment.decay(p, item.n, head, gated);
    if (decay && Base::template writes_totals<Gated>()) {
      const int own = Base::template channel<Gated>();
      decay += factors().first_gate;
      if (factors().first_gate + own < gated) decay[own] = exp2f(total_decay.x);
      if (factors().first_gate + own + 1 < gated) decay[own + 1] = exp2f(total_decay.y);
    }
    return i + 1;
  }
};

}  // namespace glade::cuda::chunk_sm90
