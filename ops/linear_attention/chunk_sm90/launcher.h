#pragma once
// Queues the kernels of the chunk algorithm on Hopper GPUs for a recurrence, and fills in their arguments.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <vector>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk.h>
#include <glade/ops/linear_attention/common/segments.h>
#include <glade/ops/linear_attention/plan_sm90_stream_k.h>
#include <glade/ops/shape/shape.h>

namespace glade::cuda::chunk_sm90 {

using linear_attention::chunk_slots;

inline std::int64_t tiles(std::int64_t channels) { return (channels + kChunkTokens - 1) / kChunkTokens; }

inline bool is_bfloat16(const Recurrence& r) { return r.q.dtype() == DType::bfloat16; }

inline Rows rows(const Recurrence& r, const Tensor& x) {
  const std::int64_t heads = x.size(-2);
  return {x.raw_data(), static_cast<int>(heads), static_cast<int>(r.heads / heads), static_cast<int>(x.size(-1))};
}

inline int chunks_of_state(const Recurrence& r, std::int64_t keys) {
  return chunks_of_state(linear_attention::recurrence_arguments(r), static_cast<int>(keys));
}
/// The numbers that boundary states have are below this.
inline std::int64_t state_slots(const Recurrence& r) { return chunk_slots(r, chunks_of_state(r, r.K)); }
/// Room for the states at all boundaries (ScanArguments::boundary_states).
inline Tensor boundary_states(const Recurrence& r) {
  const BoundaryStateLayout layout(linear_attention::recurrence_arguments(r), static_cast<int>(r.K), static_cast<int>(r.V));
  return empty({layout.state(state_slots(r) * r.heads)}, r.q.options());
}

/// Elements from a token of x, [tokens, heads, size], to the next.
inline std::int64_t token_step(const Recurrence& r, const Tensor& x, std::int64_t heads, std::int64_t size) {
  return reshape(x, {r.tokens, heads, size}).strides()[0];
}

/// The states [.., K, V] from which a scan starts, and where it leaves those after it (or null).
struct State {
  const float* first;
  bool is_shared;
  float* last;
  float* before_segments = nullptr;  ///< of all segments but the first
  bool comes_ahead = false;          ///< the launch ahead leaves these
};
inline State initial_state(const Recurrence& r, const Tensor& last = {}) {
  return {pointer<const float>(r.initial_state), r.initial_state.defined() && r.initial_state.ndim() == 3, pointer<float>(last)};
}

/// Whether a scan in such segments that starts from `state` has boundary states which are not zeros.
inline bool has_boundary_states(const Recurrence& r, const ChunkSegments& segments, const State& state) {
  return state.first || segments.segments > 1 || r.length > kChunkTokens * chunks_of_state(r, r.K);
}

inline void set_state(StateArguments& a, const State& state) {
  a.first = state.first;
  a.first_is_shared = state.is_shared;
  a.last = state.last;
}

/// Whose channels are the rows w of a scan: then the states' other ones are those of y.
enum class Outer { values, keys };

template <class Arguments>
Arguments state_arguments(const Recurrence& r, Outer outer, const Tensor& y, const Tensor& w, bool backward, const State& state) {
  Arguments a{};
  static_cast<RecurrenceArguments&>(a) = linear_attention::recurrence_arguments(r);
  a.y = rows(r, y);
  a.w = rows(r, w);
  a.inner = a.y.size;
  a.outer = a.w.size;
  a.backward = backward;
  a.outer_stride = outer == Outer::values ? 1 : static_cast<int>(r.V);
  a.inner_stride = outer == Outer::values ? static_cast<int>(r.V) : 1;
  set_state(a, state);
  return a;
}

void set_out(auto& a, const Recurrence& r, const Tensor& out) {
  if (!out.defined()) return;
  a.out = out.raw_data();
  a.float_out = out.dtype() == DType::float32;
  a.out_step = token_step(r, out, r.heads, a.outer);
}

/// ScanArguments::boundaries. An exchange needs all sequences in the same segments. A grid has room for so many, in both
/// directions.
inline std::int64_t boundaries(const Recurrence& r, const ChunkSegments& plan) {
  if (!r.cu_seqlens.defined() || plan.segments == 1 || r.exchange) return 0;
  const std::int64_t most = segment_boundaries(r.tokens, plan.segment_chunks);
  return 2 * (most + r.sequences) <= kMostBlocks ? most : 0;
}
inline void set_segments(ScanArguments& a, const Recurrence& r, const ChunkSegments& plan, const State& state) {
  a.segments = a.run_segments = plan.segments;
  a.segment_chunks = plan.segment_chunks;
  a.boundaries = boundaries(r, plan);
  a.segment_states = state.before_segments;
}

/// Queues passes, and keeps the memory that they share until it is destroyed.
class Launcher {
 public:
  explicit Launcher(const Recurrence& r) : r_(r), stream_(stream(r.q.device())) {}

  Tensor keep(const Tensor& x) { return kept_.emplace_back(x); }
  /// Counters for the kernels of this operation, which start at 0.
  unsigned* counters(std::int64_t count) {
    const Tensor memory = keep(empty({count}, {DType::int32, r_.q.device()}));
    auto* const data = static_cast<unsigned*>(memory.raw_data());
    clear_counters(data, count, stream_);
    return data;
  }

  /// Adds the states before the segments, made from y and w, where there is more than one; in `room` where that is defined. Where
  /// the plan leaves that to the pass, the next run() of a pass in segments, or run_reverse_scan(), does it.
  /// `beside`: a scan in the other direction, for the same launch where a state scan makes them.
  State find_segment_states(const Sm90PassPlan& plan, const Tensor& y, const Tensor& w, State state, bool backward,
                            const Tensor& room = {}, const ScanArguments* beside = nullptr) {
    if (plan.segments == 1) return state;
    if (plan.finds_states) {
      // A block of these passes has up to two tiles of values.
      const std::int64_t value_tiles = std::min<std::int64_t>(tiles(r_.V), 2);
      const std::int64_t between = boundaries(r_, plan),
                         segments = between == 0 ? r_.sequences * plan.segments : between + r_.sequences;
      room_ = segment_room(segments * r_.heads * ((tiles(r_.V) + value_tiles - 1) / value_tiles), tiles(r_.K) * value_tiles, 1);
      return state;
    }
    state.before_segments = pointer<float>(room.defined() ? room : keep(segment_states(plan)));
    run_segments_from_zeros(plan, y, w, state, backward, nullptr, beside);
    state.comes_ahead = plan.segments == 2;
    return state;
  }
  /// The same where the state before the first segment comes from the exchange, which leaves it in `first`.
  State exchange_segment_states(const Sm90PassPlan& plan, const Tensor& y, const Tensor& w, State state, bool backward,
                                Tensor& first, const Tensor& room = {}) {
    if (plan.segments > 1) state.before_segments = pointer<float>(room.defined() ? room : keep(segment_states(plan)));
    const SegmentEffect effect = empty_effect();
    linear_attention::Segments segments{};
    if (r_.sequences > 0) {
      const State from_zeros{nullptr, false, pointer<float>(effect.added), state.before_segments};
      const Tensor decay = segment_decays(plan);
      segments = segments_of(scan_segments(plan, y, w, from_zeros, backward, plan.segments, pointer<float>(decay)));
      segments.total_decay = pointer<float>(effect.key_decay);
      linear_attention::add_segments(segments, pointer<float>(effect.added), stream_);
    }
    first = r_.exchange(effect);
    state.first = pointer<const float>(first);
    state.is_shared = first.defined() && first.ndim() == 3;
    segments.first = state.first;
    segments.first_is_shared = state.is_shared;
    segments.total_decay = nullptr;
    // The exchange may have joined other streams.
    if (r_.sequences > 0 && plan.segments > 1) linear_attention::join_segments(segments, stream_, false);
    return state;
  }
  /// What all segments do to a state.
  SegmentEffect segment_effect(Sm90PassPlan plan) {
    const TensorOptions options{DType::float32, r_.q.device()};
    SegmentEffect effect{{}, empty({r_.sequences, r_.heads, gated_channels()}, options), {}};
    has_same_segments_ = true;
    ++plan.segments;  // a last one without tokens: the state before it is that after all others
    const Tensor states = segment_states(plan);
    if (r_.sequences > 0)
      run_segments_from_zeros(plan, r_.k, r_.v, {nullptr, false, nullptr, pointer<float>(states)}, false,
                              pointer<float>(effect.key_decay));
    const Tensor of_sequences = reshape(states, {r_.sequences, plan.segments, r_.heads, r_.K, r_.V});
    effect.added = contiguous_data(select(of_sequences, 1, plan.segments - 1));
    return effect;
  }
  /// Room for the states before all segments.
  Tensor segment_states(const ChunkSegments& plan) const {
    return empty({all_segments(plan), r_.heads, r_.K, r_.V}, {DType::float32, r_.q.device()});
  }
  /// Applies the gates to the queries and keys of all chunks, for all passes of a plan with gates_first.
  void apply_gates() {
    const std::int64_t chunks = chunk_slots(r_) * r_.heads, key_tiles = tiles(r_.K), size = kChunkTokens * kChunkTokens;
    const auto room = [&](std::int64_t count) { return keep(empty({chunks, count, size}, r_.q.options())).raw_data(); };
    gated_.queries = room(key_tiles);
    gated_.keys = room(key_tiles);
    gated_.scores = room(2);
    gated_.decays = keep(empty({chunks, key_tiles, kChunkTokens}, {DType::float32, r_.q.device()})).data<float>();
    if (r_.sequences == 0) return;
    (is_bfloat16(r_) ? run_gated_rows<__nv_bfloat16> : run_gated_rows<__half>)(gated_rows(), stream_);
  }
  /// A pass over gated chunks, if apply_gates() has been called, else one that shares gates.
  GatedPass gated_pass(const Sm90PassPlan& plan, const State& state, const Tensor& out) {
    auto p = state_arguments<GatedPass>(r_, Outer::values, r_.k, r_.v, false, state);
    set_segments(p, r_, plan, state);
    p.share = plan.share;
    if (p.share > 0)
      p.room = segment_room(std::min<std::int64_t>(multiprocessor_count(r_.q.device()), 2 * sm90::StreamK::kMostShares),
                            kSharedGateTiles, kSharedGateTiles * kChunkTokens);
    p.chunks = gated_;
    p.tokens = r_.tokens;
    set_out(p, r_, out);
    return p;
  }
  void run(GatedPass p) {
    if (p.sequences.count == 0) return;
    find_places(p);
    if (p.chunks.queries) return (is_bfloat16(r_) ? run_gated_pass<__nv_bfloat16> : run_gated_pass<__half>)(p, stream_);
    const int multiprocessors = multiprocessor_count(r_.q.device());
    (is_bfloat16(r_) ? run_shared_gates_pass<__nv_bfloat16> : run_shared_gates_pass<__half>)(p, gated_rows(), multiprocessors,
                                                                                             stream_);
  }
  Pass pass(const Sm90PassPlan& plan, Outer outer, const Tensor& x, const Tensor& y, const Tensor& w, bool backward,
            const State& state, const Tensor& out) const {
    Pass p = state_arguments<Pass>(r_, outer, y, w, backward, state);
    set_segments(p, r_, plan, state);
    p.x = rows(r_, x);
    p.gates_are_inner = outer == Outer::values;
    p.gv = pointer(r_.gv);
    p.wide_blocks = plan.wide_blocks;
    p.mapped = r_.gv.defined() || plan.shared_rows;
    p.wide_tma = plan.wide_tma;
    set_out(p, r_, out);
    return p;
  }
  void run(Pass pass) {
    if (pass.sequences.count == 0) return;
    find_places(pass);
    pass.multiprocessors = multiprocessor_count(r_.q.device());
    pass.tokens = r_.tokens;
    if (pass.wide_tma && pass_channels(pass.inner) > kMappedChannels)
      (is_bfloat16(r_) ? run_wide_tma_large_pass<__nv_bfloat16> : run_wide_tma_large_pass<__half>)(pass, stream_);
    else if (pass.wide_tma)
      (is_bfloat16(r_) ? run_wide_tma_pass<__nv_bfloat16> : run_wide_tma_pass<__half>)(pass, room_, stream_);
    else if (pass.mapped) (is_bfloat16(r_) ? run_mapped_pass<__nv_bfloat16> : run_mapped_pass<__half>)(pass, stream_);
    else (is_bfloat16(r_) ? run_pass<__nv_bfloat16> : run_pass<__half>)(pass, stream_);
  }
  void run_scans(ScanArguments forward, ScanArguments reverse, int key_tiles) {
    if (r_.sequences == 0) return;
    find_places(forward);
    find_places(reverse);
    (is_bfloat16(r_) ? run_state_scans<__nv_bfloat16> : run_state_scans<__half>)(forward, reverse, key_tiles,
                                                                                 multiprocessor_count(r_.q.device()), stream_);
  }
  void run_constant_decay(std::span<const ConstantDecayPass> passes, const ConstantDecayPlan& plan,
                          const ConstantDecayExchange* exchange = nullptr) const {
    const auto run = is_bfloat16(r_) ? run_constant_decay_passes<__nv_bfloat16> : run_constant_decay_passes<__half>;
    run(passes, r_.tokens, plan, r_.q.device(), exchange);
  }
  /// The same where the state before the tokens, in the direction of pass `pass`, comes from the exchange, which leaves it in
  /// `first`.
  void exchange_constant_decay(std::span<const ConstantDecayPass> passes, int pass, const ConstantDecayPlan& plan,
                               Tensor& first) const {
    const SegmentEffect effect = empty_effect();
    const ConstantDecayExchange exchange{pass, pointer<float>(effect.added), pointer<float>(effect.key_decay), [&] {
                                           first = r_.exchange(effect);
                                           return std::pair(pointer<const float>(first), first.defined() && first.ndim() == 3);
                                         }};
    run_constant_decay(passes, plan, &exchange);
  }
  void run_intra_chunk(const IntraChunk& a) const {
    if (a.gk) (is_bfloat16(r_) ? chunk_sm90::run_intra_chunk<__nv_bfloat16> : chunk_sm90::run_intra_chunk<__half>)(a, stream_);
    else (is_bfloat16(r_) ? run_head_gate_chunk<__nv_bfloat16> : run_head_gate_chunk<__half>)(a, stream_);
  }
  void run_reverse_scan(const IntraChunk& a, ScanArguments scan) {
    if (r_.sequences == 0) return;
    find_places(scan);
    (is_bfloat16(r_) ? run_head_gate_scan<__nv_bfloat16> : run_head_gate_scan<__half>)(a, scan, room_, stream_);
  }

 private:
  GatedRows gated_rows() const {
    return {linear_attention::recurrence_arguments(r_), rows(r_, r_.q), rows(r_, r_.k), r_.tokens, gated_};
  }
  /// Finds where a ragged scan has its segments; once for all scans in the same segments and direction.
  void find_places(ScanArguments& a) {
    if (!a.is_ragged() || a.run_segments == 0) return;
    for (const Places& found : places_)
      if (found.segment_chunks == a.segment_chunks && found.backward == a.backward) return void(a.places = found.places);
    const Tensor room = keep(empty({2 * a.boundaries + a.sequences.count, 2}, {DType::int32, r_.q.device()}));
    a.places = static_cast<const int2*>(room.raw_data());
    find_segments(a.sequences, a.segment_chunks, a.backward, a.boundaries, static_cast<int2*>(room.raw_data()), stream_);
    places_.push_back({a.segment_chunks, a.backward, a.places});
  }
  /// Finds the states before all segments but the first, from zeros on. `total_decay` is as in Segments.
  void run_segments_from_zeros(const Sm90PassPlan& plan, const Tensor& y, const Tensor& w, State state, bool backward,
                               float* total_decay, const ScanArguments* beside = nullptr) {
    Tensor decay;
    if (plan.segments > 2 || total_decay) decay = segment_decays(plan);
    state.last = nullptr;
    linear_attention::Segments segments =
        segments_of(scan_segments(plan, y, w, state, backward, plan.segments - 1, pointer<float>(decay), beside));
    segments.total_decay = total_decay;
    if (segments.decay) linear_attention::join_segments(segments, stream_, true);
  }
  SegmentEffect empty_effect() const {
    const TensorOptions options{DType::float32, r_.q.device()};
    return {empty({r_.sequences, r_.heads, r_.K, r_.V}, options), empty({r_.sequences, r_.heads, gated_channels()}, options), {}};
  }
  /// Room for what so many blocks leave of each other, with so many tiles of states and decays each.
  SegmentRoom segment_room(std::int64_t blocks, std::int64_t state_tiles, std::int64_t decays_of_block) {
    const TensorOptions floats{DType::float32, r_.q.device()};
    const Tensor states = keep(empty({blocks, state_tiles, kChunkTokens * kChunkTokens}, floats)),
                 decays = keep(empty({blocks, decays_of_block}, floats));
    return {states.data<float>(), decays.data<float>(), counters(blocks)};
  }
  /// The segments of all sequences, or the boundaries between them: see ScanArguments.
  std::int64_t all_segments(const ChunkSegments& plan) const {
    const std::int64_t between = has_same_segments_ ? 0 : boundaries(r_, plan);
    return between == 0 ? r_.sequences * plan.segments : between;
  }
  /// Room for the decays of all segments.
  Tensor segment_decays(const ChunkSegments& plan) {
    return keep(empty({all_segments(plan), r_.heads, gated_channels()}, {DType::float32, r_.q.device()}));
  }
  /// A scan of the first `count` segments in its order: the first one from state.first, the others from zeros.
  ScanArguments scan_segments(const Sm90PassPlan& plan, const Tensor& y, const Tensor& w, const State& state, bool backward,
                              int count, float* decay, const ScanArguments* beside = nullptr) {
    const auto arguments = [&]<class Arguments>(Arguments) {
      Arguments a = state_arguments<Arguments>(r_, Outer::values, y, w, backward, state);
      set_segments(a, r_, plan, state);
      if (has_same_segments_) a.boundaries = 0;
      a.keeps_states = a.from_zeros = true;
      a.first_segment = backward ? plan.segments - count : 0;
      a.run_segments = count;
      a.decay = decay;
      return a;
    };
    if (plan.scan_for_states && (beside || !plan.wide_tma)) {
      ScanArguments scan = arguments(ScanArguments{}), other = beside ? *beside : scan;
      if (!beside) other.run_segments = 0;
      run_scans(backward ? other : scan, backward ? scan : other, plan.scan_key_tiles);
      return scan;
    }
    if (plan.gates_first) {
      GatedPass pass = arguments(GatedPass{});
      pass.chunks = gated_;
      pass.tokens = r_.tokens;
      run(pass);
      return pass;
    }
    Pass pass = arguments(Pass{});
    pass.gates_are_inner = true;
    pass.wide_blocks = plan.wide_blocks;
    pass.wide_tma = plan.wide_tma;
    pass.mapped = plan.shared_rows && pass_channels(pass.inner) == kSharedRowChannels;
    run(pass);
    return pass;
  }
  int gated_channels() const { return r_.gk.defined() ? static_cast<int>(r_.K) : 1; }
  linear_attention::Segments segments_of(const ScanArguments& a) const {
    linear_attention::Segments segments{a.segment_states, a.decay,          r_.sequences,           a.segments,
                                        a.heads,          gated_channels(), static_cast<int>(r_.K), static_cast<int>(r_.V),
                                        nullptr};
    if (!a.is_ragged()) return segments;
    segments.segment_tokens = std::int64_t{a.segment_chunks} * kChunkTokens;
    segments.boundaries = a.boundaries;
    segments.cu_seqlens = a.sequences.cu_seqlens;
    return segments;
  }

  const Recurrence& r_;
  const cudaStream_t stream_;
  std::vector<Tensor> kept_;
  GatedChunks gated_{};
  SegmentRoom room_{};
  struct Places {
    int segment_chunks;
    bool backward;
    const int2* places;
  };
  std::vector<Places> places_;
  bool has_same_segments_ = false;  ///< packed sequences, too
};

}  // namespace glade::cuda::chunk_sm90
