#pragma once
// What the producers of all passes (chunk_sm90/pass_kernel.cuh) have: the gates of heads, the search for large decay, and the
// barriers of the stages.
#include <glade/ops/linear_attention/chunk_sm90/pass_gates.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_saved_states.cuh>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct ProducerBase {
  using E = typename C::Element;
  using S = Shared<C>;
  static constexpr Gates kGates = C::kGates;
  static constexpr int kThreads = C::kProducers;
  static constexpr int kAhead = S::kStages - 1;  ///< steps in flight from memory while the producers work on one

  const Pass& p;
  S& shared;
  const Item& item;
  int thread;  ///< of the producers

  const Segment& segment = item.segment;
  const int &head = item.head, &first_outer = item.first_outer;

  using Inner = GateShare<C, false>;
  using Outer = GateShare<C, true>;
  const Factors<C, Inner> inner_factors{p, segment, head, 0};
  const Factors<C, Outer> outer_factors{p, segment, head, first_outer};
  template <class Share>
  __device__ const Factors<C, Share>& factors() const {
    if constexpr (Share::kOuter) return outer_factors;
    else return inner_factors;
  }

  static constexpr int kBarrier = 5;
  __device__ void sync() const { sync_group<kThreads>(kBarrier); }
  __device__ Stage<C> stage(int i) const { return shared.stage(i); }
  __device__ Step::LargeDecay large_decay() const { return kGates == Gates::none ? 0 : shared.exchange.large_decay; }
  __device__ Step next(const Step& step) const { return step.next(segment, p.backward, large_decay()); }
  /// Waits until the consumers have released step i.
  __device__ void wait_for(int i) { shared.wait_until_empty(i); }
  __device__ bool is_done(int i) { return shared.is_empty(i); }

  /// Sets a tile to zeros from a row on.
  __device__ void clear(SwizzledTile<E>& tile, int first) const { clear_rows<kThreads>(tile, first, thread); }

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

  /// Gates::none: computes the vectors of a step from its per-head gates, base 2, and returns their sum. One warp runs this.
  __device__ float prepare_head_gates(Vectors<C>& to, float2 gates) const {
    const float first = at_least(gates.x, kLeastGate), second = at_least(gates.y, kLeastGate);
    const float sum = sum_up_to(thread, first + second);
    const float total = __shfl_sync(~0u, sum, 31);
    const float2 b = make_float2(sum - second, sum), remaining = make_float2(total - b.x, total - b.y);
    const float2 c = p.backward ? remaining : b, after = p.backward ? b : remaining;
    *reinterpret_cast<float2*>(&to.b[2 * thread]) = b;
    *reinterpret_cast<float2*>(&to.before[2 * thread]) = make_float2(exp2_approx(c.x), exp2_approx(c.y));
    *reinterpret_cast<float2*>(&to.after[2 * thread]) = make_float2(exp2_approx(after.x), exp2_approx(after.y));
    const unsigned dead_even = __ballot_sync(~0u, first < kDeadGate), dead_odd = __ballot_sync(~0u, second < kDeadGate);
    if (thread == 0) {
      to.decay[0] = exp2_approx(total);
      to.dead[0] = dead_even;
      to.dead[1] = dead_odd;
    }
    return total;
  }

  /// The tiles of gates of the other block's channels of w, where passes for gradients of gates need chunks to be split as here.
  __device__ int other_gate_tiles() const { return p.u_out || p.large_decay ? C::kOtherGateTiles : 0; }
  // Per-channel gates: this thread's two channels, and its first token.
  __device__ int lane() const { return thread % 32; }
  template <class Share>
  __device__ int gated_tile() const {
    return Share::kTiles < 2 ? 0 : thread / 32 % Share::kTiles;
  }
  template <class Share>
  __device__ int channel() const {
    return gated_tile<Share>() * kTile + 2 * lane();
  }
  template <class Share>
  __device__ int first_token() const {
    return Share::kTokenGroups < 2 ? 0 : thread / 32 / Share::kTiles * Share::kGroupTokens;
  }
  /// Whether this thread writes the totals of its channels, such as the decay of the step.
  template <class Share>
  __device__ bool writes_totals() const {
    return kGates == Gates::none ? thread == 0 : first_token<Share>() == 0;
  }
  /// Loads eight of step i, from token `first` on.
  template <class Share>
  __device__ void load_channel_gates(float2 (&gates)[8], int first, int i, const Step& step) const {
    factors<Share>().load(gates, first, 0, gated_tile<Share>(), lane(), stage(i), step);
  }
  /// Returns the sub-chunks of step i, a whole chunk, in which the channels of this thread in a tile have large decay.
  template <class Share>
  __device__ Step::LargeDecay large_decay_sub_chunks(int i, const Step& step, int tile) const {
    constexpr int kLevels = 6, kBatch = 8;  // for sub-chunks of 2, 4, .. 64 tokens
    float2 sums[kLevels] = {};              // of the magnitudes of the gates, for the unfinished sub-chunk of each size
    Step::LargeDecay marks = 0;
#pragma unroll 1
    for (int first = 0; first < kTile; first += kBatch) {
      float2 gates[kBatch];
      factors<Share>().load(gates, first, 0, tile, lane(), stage(i), step);
#pragma unroll
      for (int t = 0; t < kBatch; ++t) {
        const float2 gate = gates[t];
#pragma unroll
        for (int level = 0; level < kLevels; ++level) {
          const int size = 2 << level, end = first + t + 1;
          sums[level].x += fabsf(gate.x);
          sums[level].y += fabsf(gate.y);
          if ((t + 1) % min(size, kBatch) != 0 || end % size != 0) continue;
          constexpr float kMaxDecay = 2 * C::kMostExponent;
          if (!(sums[level].x <= kMaxDecay && sums[level].y <= kMaxDecay))
            marks |= Step::LargeDecay{1} << Step::bit(end - size, size);
          sums[level] = {};
        }
      }
    }
    return marks;
  }
  template <class Share>
  __device__ void add_large_decay(int i, const Step& step, int tile) {
    if (!writes_totals<Share>()) return;
    const Step::LargeDecay marks = large_decay_sub_chunks<Share>(i, step, tile);
    const unsigned low = __reduce_or_sync(~0u, static_cast<unsigned>(marks)),
                   high = __reduce_or_sync(~0u, static_cast<unsigned>(marks >> 32));
    if (lane() == 0) atomicOr(&shared.exchange.large_decay, Step::LargeDecay{high} << 32 | low);
  }
  /// Finds the sub-chunks with large decay of step i, a whole chunk, and shares them with all producers.
  __device__ void find_large_decay(int i, const Step& step) {
    if (thread == 0) shared.exchange.large_decay = 0;
    sync();
    if constexpr (C::kInnerGates) add_large_decay<Inner>(i, step, gated_tile<Inner>());
    if constexpr (C::kOuterGates)
      for (int tile = gated_tile<Outer>(); tile <= other_gate_tiles(); ++tile) add_large_decay<Outer>(i, step, tile);
    sync();
  }

  /// Prefetches what forward passes saved for a chunk into the L2 cache.
  __device__ void prefetch(int chunk) const {
    constexpr int kLine = 128, kOfState = C::kTiles * sizeof(SwizzledTile<E>) / kLine,
                  kOfUOut = kTile * kTile * sizeof(float) / kLine, kOfWarp = 32 * sizeof(uint4) / kLine;  // lines
    for (int i = thread; i < kOfState + kOfUOut; i += kThreads) {
      if (i < kOfState) {
        const int block = i / kOfWarp;
        const uint4* const pieces =
            saved_pieces<C>(p, segment, head, first_outer, chunk, block % 4) + saved_step<C>(p, block / 4);
        prefetch_line(reinterpret_cast<const char*>(pieces) + i % kOfWarp * kLine);
      } else {
        const std::int64_t tile = saved_tile_of(p, segment, head, first_outer, chunk);
        prefetch_line(reinterpret_cast<const char*>(p.u_out) + (tile * kOfUOut + i - kOfState) * kLine);
      }
    }
  }

  /// Hands step i to the consumers.
  __device__ void publish(int i) { barrier_arrive(&shared.full[S::slot(i)]); }
};

}  // namespace glade::cuda::chunk_sm90
