#pragma once
// A consumer of a pass (chunk_sm90/pass_kernel.cuh): the products of each step, and the state.
#include <glade/ops/linear_attention/chunk_sm90/pass_boundary_states.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_gates.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_results.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_scores.cuh>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct Consumer : Results<C> {
  using Base = Results<C>;
  using E = typename C::Element;
  using S = Shared<C>;
  using Base::add_product, Base::add_to_state, Base::wait_for_state, Base::save_state, Base::start_carry;
  using Base::carry, Base::finish, Base::for_each_pair_of_u, Base::per_token, Base::sync, Base::to_tile;
  using Base::kGates, Base::kTiles, Base::kLarge, Base::kRounded, Base::kGateGradients;
  using Base::p, Base::shared, Base::item, Base::index, Base::segment, Base::head, Base::first_outer;
  using Base::round_state, Base::add_low_part_of_state, Base::add_rounded_state, Base::load, Base::apply_decays;
  using Base::thread, Base::lane, Base::row, Base::state, Base::for_each_element, Base::scale_rows, Base::scale_at_start;
  using typename Base::Left, typename Base::Rounded;
  /// Steps that are sub-chunks use the low parts of all operands, including the state. With few tokens more of the result comes
  /// through the state, and the gradients of the gates are differences of such results.
  static constexpr bool kExactSubChunks = C::kLowParts && kGates != Gates::none;
  static constexpr int kScoresBarrier = 4;  ///< of the consumers that compute scores together

  /// Computes out = state x^T with the rounded state. The compiler would wait for pending products before it reads the state, so
  /// `start` is called after the last read to start other products. In sub-chunks, the product with the low part of y is added to
  /// the state here, because the scores will reuse the memory of these low parts.
  template <class F>
  __device__ void multiply_state(const Stage<C>& stage, Accumulator<kTile>& out, F&& start) {
    const Step& step = stage.vectors.step;
    const std::uint32_t x = operand(stage.tiles.x[0]);
#pragma unroll
    for (int first = 0; first < kTiles; first += kRounded) {
      Rounded rounded;
      round_state(rounded, first);
      if (kGateGradients && !p.backward && step.ends_chunk) save_state(step.chunk, rounded, first);
      if (first + kRounded == kTiles) start();
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kRounded * 4; ++i)
        wgmma<E>(out, rounded[i / 4][i % 4], descriptor(x, (first + i / 4) * kTileStep + i % 4 * kColumnStep), first + i);
      if constexpr (C::kSeparateScores)
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma<E>(out, rounded[0][i], descriptor(operand(stage.x_low(0)), i * kColumnStep), 1);
      wgmma_commit();
      if constexpr (kLarge) {  // there are no registers for more operands at a time
        wgmma_wait<0>();
        pin(out);
      }
    }
    if constexpr (kExactSubChunks && !C::kBothGates)
      if (step.size < kTile) {
        wgmma_wait<0>();
        pin(out);
        add_low_part_of_state(out, x);
        if constexpr (C::kInnerLowParts && !C::kSeparateScores) {
          add_rounded_state(out, operand(stage.x_low(0)));
          add_to_state(stage.w(index), operand(stage.y_low(0)), step.size);
        }
      }
  }
  /// Gates of both: does the same with the low parts of the state and of x, in three groups of products: the first has read the
  /// low part of x, and `start` begins the second.
  template <class F>
  __device__ void multiply_whole_state(const Stage<C>& stage, Accumulator<kTile>& out, F&& start) {
    const Step& step = stage.vectors.step;
    const std::uint32_t x = operand(stage.tiles.x[0]), x_low = operand(stage.x_low(0));
    const auto add = [&](const Rounded& left, std::uint32_t right, int added) {
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i)
        wgmma<E>(out, left[i / 4][i % 4], descriptor(right, i / 4 * kTileStep + i % 4 * kColumnStep), added + i);
    };
    Rounded rounded, low;
    this->low_part_of_state(low);
    if constexpr (kGateGradients) {  // there are no registers for both parts at a time
      wgmma_begin();
      add(low, x, 0);
      wgmma_commit();
      if (step.ends_chunk) start_carry(step.chunk);
      wgmma_wait<0>();
      pin(out);
    }
    round_state(rounded, 0);
    if (!kGateGradients && p.saved_states && step.ends_chunk) save_state(step.chunk, rounded, 0);
    wgmma_begin();
    add(rounded, x_low, kGateGradients);
    wgmma_commit();
    start();
    wgmma_begin();
    add(rounded, x, 1);
    if constexpr (!kGateGradients) add(low, x, 1);
    wgmma_commit();
  }
  /// Updates the state with a step of a pass that has no results.
  __device__ void update_state(const Stage<C>& stage) {
    release_late();
    Left w;
    load(w, stage.w(index));
    if constexpr (kGates == Gates::none) {
      apply_decays(w, w, stage.vectors.after);
      scale_rows(stage.vectors.decay[0], stage.vectors.decay[0]);
    } else {
      scale_at_start(p, stage.vectors);
    }
    add_to_state(w, operand(stage.tiles.y[0]));
    if constexpr (C::kBothGates) {
      Left w_low;
      load(w_low, stage.w_low());
      add_low_parts_to_state(stage, w, w_low, operand(stage.tiles.y[0]));
    }
    wait_for_state();
  }

  /// Where blocks share rows: a tile of the state is rounded while the tensor cores multiply the one before it, and the results
  /// are stored while they update the state.
  __device__ void compute_overlapped_step(const Stage<C>& stage) {
    const Vectors<C>& vectors = stage.vectors;
    const std::uint32_t x = operand(stage.tiles.x[0]);
    Accumulator<kTile> out;
    Left rounded[2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Left& own = rounded[tile % 2];
#pragma unroll
      for (int k = 0; k < 4; ++k) state[tile].template round<E>(own[k], k);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma<E>(out, own[k], descriptor(x, tile * kTileStep + k * kColumnStep), tile + k);
      wgmma_commit();
      if (tile == 0) continue;
      wgmma_wait<1>();
      for (auto& operand : rounded[(tile + 1) % 2]) pin(operand);
      if (tile == 1) release_late();
    }
    Left w, weighted;
    load(w, stage.w(index));
    wgmma_wait<0>();
    pin(out);
    out.scale_columns(thread, [&](int t) { return *reinterpret_cast<const float2*>(&vectors.before[t]); });
    wgmma_begin();
    add_product(out, w, operand(stage.scores()), 1);
    wgmma_commit();
    apply_decays(weighted, w, vectors.after);
    scale_rows(vectors.decay[0], vectors.decay[0]);
    add_to_state(weighted, operand(stage.tiles.y[0]));
    wgmma_wait<1>();
    pin(out);
    finish(stage, out, out, {});
    wait_for_state();
  }

  __device__ void compute_step(const Stage<C>& stage) {
    const Vectors<C>& vectors = stage.vectors;
    const Step& step = vectors.step;
    constexpr int kScoring = C::kConsumers * kGroup;  // threads that compute the scores together
    Scores<C, kScoring> scores;
    const bool low_part_of_y = has_low_part_of_y<C>(p, step);
    auto finish_scores = [&] {
      scores.template finish<kLarge ? 0 : 1>(stage, p.backward, index * kGroup + thread, kScoresBarrier, low_part_of_y);
      sync_group<kScoring>(kScoresBarrier);
    };
    auto start_scores = [&] { scores.start(stage, index * kGroup + thread, low_part_of_y); };
    if constexpr (!C::kProducersScore && kLarge) start_scores();
    if constexpr (kGates != Gates::none) scale_at_start(p, vectors);
    if constexpr (!C::kProducersScore && kLarge) finish_scores();
    float2 q_dq = {};
    if constexpr (kGateGradients) {
      if (!C::kBothGates && p.backward && step.ends_chunk) start_carry(step.chunk);
      if (kGates == Gates::none && p.backward) {
        for (float& x : carry) x *= vectors.decay[0];
        if (thread < 32 && 2 * lane() < step.count) q_dq.x = __ldg(p.u_out + per_token(step, 2 * lane()));
        if (thread < 32 && 2 * lane() + 1 < step.count) q_dq.y = __ldg(p.u_out + per_token(step, 2 * lane() + 1));
      }
    }

    const std::uint32_t y = operand(stage.tiles.y[0]);
    Left w;
    Accumulator<kTile> out;
    const auto start = [&] {
      if constexpr (!C::kProducersScore && !kLarge) start_scores();
    };
    if constexpr (C::kBothGates) multiply_whole_state(stage, out, start);
    else multiply_state(stage, out, start);
    release_late();
    if constexpr (!C::kProducersScore && !kLarge) finish_scores();
    load(w, stage.w(index));
    if constexpr (kGates == Gates::none) finish_step(stage, out, w, y, q_dq);
    else if constexpr (kGates == Gates::inner) finish_inner_step(stage, out, w, y, low_part_of_y);
    else if constexpr (C::kBothGates && !kGateGradients) finish_plain_step(stage, out, w, y);
    else finish_outer_step(stage, out, w, y);
  }
  // The rest of a step, by Gates, once `out` is what comes from the state: the product of the scores and w, the new state, and
  // the results.
  __device__ void finish_step(const Stage<C>& stage, Accumulator<kTile>& out, const Left& w, std::uint32_t y, float2 q_dq) {
    const Vectors<C>& vectors = stage.vectors;
    Left weighted;
    apply_decays(weighted, w, vectors.after);
    const float decay = vectors.decay[0];
    scale_rows(decay, decay);
    add_to_state(weighted, y);
    wgmma_wait<1>();
    pin(out);
    out.scale_columns(thread, [&](int t) { return *reinterpret_cast<const float2*>(&vectors.before[t]); });
    if constexpr (kGateGradients) {
      if (p.backward)
        for_each_pair_of_u(stage, [&](float2 us, int k, int j) {
          const int i = out.element(k, j);
          carry[0] += us.x * out[i] + us.y * out[i + 1];
        });
    }
    wgmma_begin();
    add_product(out, w, operand(stage.scores()), 1);
    if constexpr (C::kLowParts) add_product(out, w, operand(stage.scores_low()), 1);
    wgmma_commit();
    wait_for_state();
    pin(out);
    finish(stage, out, out, q_dq);
  }
  __device__ void finish_inner_step(const Stage<C>& stage, Accumulator<kTile>& out, const Left& w, std::uint32_t y,
                                    bool low_part_of_y) {
    wgmma_begin();
    add_product(out, w, operand(stage.scores()), 1);
    if constexpr (C::kScoresLowPart) add_product(out, w, operand(stage.scores_low()), 1);
    wgmma_commit();
    add_to_state(w, y);
    if (C::kSeparateScores && low_part_of_y) {
      add_to_state(w, operand(stage.y_low(0)));
      wgmma_wait<2>();
    } else {
      wgmma_wait<1>();
    }
    pin(out);
    finish(stage, out, out, {});
    wait_for_state();
  }
  __device__ void finish_outer_step(const Stage<C>& stage, Accumulator<kTile>& out, const Left& w, std::uint32_t y) {
    const Step& step = stage.vectors.step;
    Left w_low;
    if constexpr (C::kLowParts) load(w_low, stage.w_low());
    Accumulator<kTile> inner;
    wgmma_begin();
    add_product(inner, w, operand(stage.scores()), 0);
    if constexpr (C::kLowParts) {
      add_product(inner, w, operand(stage.scores_low()), 1);
      add_product(inner, w_low, operand(stage.scores()), 1);
    }
    wgmma_commit();
    if constexpr (kExactSubChunks)
      if (step.size < kTile) {
        wgmma_begin();
        add_product(inner, w_low, operand(stage.scores_low()), 1);
        wgmma_commit();
      }
    add_to_state(w, y);
    constexpr bool kSmall = C::kLowParts && kTiles == 1;  // there the low part of w costs little
    if constexpr (C::kBothGates) add_low_parts_to_state(stage, w, w_low, y);
    else if constexpr (kExactSubChunks)
      if (kSmall || step.size < kTile) add_to_state(w_low, y);
    if constexpr (kLarge) wait_for_state();
    else wgmma_wait<C::kBothGates ? 3 : kSmall ? 2 : 1>();
    Accumulator<kTile> forward = {};
    if constexpr (C::kBothGates) Base::for_each_u_out(step, forward, [](auto& x, const auto& from) { x = from; });
    pin(out);
    pin(inner);
    if constexpr (C::kBothGates) Base::finish_both(stage, out, inner, forward, w, w_low);
    else finish(stage, out, inner, {});
    if constexpr (!kLarge) wait_for_state();
  }

  __device__ void add_low_parts_to_state(const Stage<C>& stage, const Left& w, const Left& w_low, std::uint32_t y) {
    add_to_state(w_low, y);
    add_to_state(w, operand(stage.y_low(0)));
  }
  /// Gates of both, without gradients.
  __device__ void finish_plain_step(const Stage<C>& stage, Accumulator<kTile>& out, const Left& w, std::uint32_t y) {
    Left w_low;
    load(w_low, stage.w_low());
    wgmma_begin();
    add_product(out, w, operand(stage.scores()), 1);
    add_product(out, w, operand(stage.scores_low()), 1);
    add_product(out, w_low, operand(stage.scores()), 1);
    wgmma_commit();
    add_to_state(w, y);
    add_low_parts_to_state(stage, w, w_low, y);
    wgmma_wait<3>();
    pin(out);
    finish(stage, out, out, {});
    wait_for_state();
  }

  /// Calls compute(stage) for every step of the segment. At the end R is the state after the segment. Where blocks share rows,
  /// all steps are whole chunks; else a step of no tokens ends the segment.
  template <class F>
  __device__ void scan(Progress& progress, F&& compute) {
    if constexpr (C::kSharesRows) progress.step = uniform(progress.step);
    for (int left = segment.end_chunk - segment.first_chunk; !C::kSharesRows || left > 0; --left) {
      forget(thread);
      const int i = progress.step, s = S::slot(i);
      if (C::kSharesRows && unreleased >= 0 && !shared.is_full(i)) release_late();
      shared.wait_until_full(i);
      const Stage<C> stage = shared.stage(i);
      ++progress.step;
      if (!C::kSharesRows && stage.vectors.step.count == 0) {
        release_late();
        return arrive_empty(s);
      }
      if constexpr (C::kConsumersApplyGates) {
        p.out ? apply_gates<true>(stage) : apply_gates<false>(stage);
        sync_group<C::kConsumers * kGroup>(kScoresBarrier);
      }
      compute(stage);
      if constexpr (kGates != Gates::none) Base::scale_at_end(p, stage.vectors);
      if constexpr (C::kStoresBoundaryStates)
        if (const Step& step = stage.vectors.step; p.boundary_states && step.ends_chunk && step.chunk + 1 < segment.end_chunk &&
                                                   BoundaryStateStore<C>::is_boundary(step.chunk + 1))
          store_boundary_state(step.chunk + 1, stage);
      release(s);
    }
  }
  /// The stage that this thread has not released, as its stores may still read it.
  int unreleased = -1;
  __device__ void release(int s) {
    if (C::kSharesRows && thread < 32) unreleased = s;
    else arrive_empty(s);
  }
  /// Tells the producers that this thread has read a stage, and for its warp those of the other block that copies rows here.
  __device__ void arrive_empty(int s) {
    barrier_arrive(&shared.empty[s]);
    if constexpr (C::kSharesRows) {
      __syncwarp();
      if (lane() == 0) barrier_arrive_in(1 - cluster_rank(), &shared.empty[s]);
    }
  }
  __device__ void release_late() {
    if (!C::kSharesRows || unreleased < 0) return;
    wait_stores();
    arrive_empty(unreleased);
    unreleased = -1;
  }
  __device__ BoundaryStateStore<C> boundary_state_store() const { return {p, item, first_outer, thread}; }
  /// Stores the state before a chunk for the backward pass, by way of tiles that are no longer needed.
  __device__ void store_boundary_state(int chunk, const Stage<C>& stage) {
    if (first_outer >= p.outer) return;
    if constexpr (C::kSharesRows) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) to_tile(stage.tiles.x[tile], state[tile]);
      fence_for_wgmma();
      sync();
      if (thread != 0) return;
      for (int tile = 0; tile * kTile < p.inner; ++tile) boundary_state_store().store_async(chunk, tile, stage.tiles.x[tile]);
      return commit_stores();
    }
    SwizzledTile<E>& room = stage.w(index);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * kTile >= p.inner) continue;
      sync();  // `room` has been read
      to_tile(room, state[tile]);
      sync();
      boundary_state_store().store(chunk, tile, room);
    }
  }
  /// Computes the steps of the item.
  __device__ void run(Progress& progress) {
    const std::int64_t size = std::int64_t{p.inner} * p.outer;
    if constexpr (C::kSharesRows) unreleased = progress.unreleased;
    const float* first = segment.state_before(p, item.n);
    if (first) forget(first += head * size);
    if constexpr (C::kStoresBoundaryStates)
      if (p.boundary_states && first_outer < p.outer) boundary_state_store().store_first(first);
#pragma unroll
    for (auto& tile : state) tile.fill(0);
    if (first) {
      const float by = p.backward ? 1 / p.scale : 1.f;
      for_each_element(p, first_outer, [&](float& x, int at) { x = first[at] * by; });
    }
    const auto compute = [&](const Stage<C>& stage) {
      if constexpr (C::kSharesRows) compute_overlapped_step(stage);
      else compute_step(stage);
    };
    if (kGateGradients || p.out || (C::kBothGates && (p.u_out || p.saved_states))) scan(progress, compute);
    else scan(progress, [&](const Stage<C>& stage) { update_state(stage); });
    if constexpr (C::kSharesRows) progress.unreleased = unreleased;
    if (float* last = segment.state_after(p, item.n)) {
      forget(last += head * size);
      const float by = p.backward ? p.scale : 1.f;
      for_each_element(p, first_outer, [&](float& x, int at) { last[at] = x * by; });
    }
  }

 private:
  /// Applies the gates to the tokens at this consumer's end of the chunk.
  template <bool kResults>
  __device__ void apply_gates(const Stage<C>& stage) const {
    const Factors<C, GateShare<C, false>> factors{p, segment, head, 0};
    const int tile = thread / 32;
    const float sign = p.backward ? -1.f : 1.f;
    // A single token has the factor 1. Else the exponents at both ends of a step are its half decay's.
    const bool one = stage.vectors.step.count == 1;
    const float2 half_decay = *reinterpret_cast<const float2*>(&stage.vectors.half_decay[tile * kTile + 2 * lane()]),
                 shift = one ? float2{} : make_float2(sign * log2_approx(half_decay.x), sign * log2_approx(half_decay.y));
    auto apply = [&]<bool kFromEnd>(std::bool_constant<kFromEnd>, int first, float2 exponent) {
      factors.template apply<kTile / 2, 4, kResults, false, kFromEnd>(
          stage, tile, lane(), first, exponent, [&](auto& gates, int t, int i) {
            factors.load(gates, first + t, i, tile, lane(), stage, stage.vectors.step);
            if (one)
              for (float2& gate : gates) gate = {};
          });
    };
    if (index == 0) apply(std::false_type(), 0, make_float2(-shift.x, -shift.y));
    else apply(std::true_type(), kTile / 2, shift);
    fence_for_wgmma();
  }
};

}  // namespace glade::cuda::chunk_sm90
