// The chunk algorithm on Hopper GPUs: which passes and kernels a plan consists of, and what they hand to each other.
#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <vector>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk.h>
#include <glade/ops/linear_attention/chunk_sm90/parts_as_heads.h>
#include <glade/ops/linear_attention/common/segments.h>
#include <glade/ops/shape/shape.h>

namespace glade::cuda::chunk_sm90 {

using linear_attention::ChunkGradients, linear_attention::chunk_slots;

namespace {

std::int64_t tiles(std::int64_t channels) { return (channels + kChunkTokens - 1) / kChunkTokens; }

bool is_bfloat16(const Recurrence& r) { return r.q.dtype() == DType::bfloat16; }

Rows rows(const Recurrence& r, const Tensor& x) {
  const std::int64_t heads = x.size(-2);
  return {x.raw_data(), static_cast<int>(heads), static_cast<int>(r.heads / heads), static_cast<int>(x.size(-1))};
}

/// Room for the states before all chunks (ScanArguments::boundary_states).
Tensor boundary_states(const Recurrence& r) {
  return empty({chunk_slots(r), r.heads, tiles(r.K), tiles(r.V), kChunkTokens * kChunkTokens}, r.q.options());
}

/// Elements from a token of x, [tokens, heads, size], to the next.
std::int64_t token_step(const Recurrence& r, const Tensor& x, std::int64_t heads, std::int64_t size) {
  return reshape(x, {r.tokens, heads, size}).strides()[0];
}

/// The states [.., K, V] from which a scan starts, and where it leaves those after it (or null).
struct State {
  const float* first;
  bool is_shared;
  float* last;
  float* before_segments = nullptr;  ///< of all segments but the first
};
State initial_state(const Recurrence& r, const Tensor& last = {}) {
  return {pointer<const float>(r.initial_state), r.initial_state.defined() && r.initial_state.ndim() == 3, pointer<float>(last)};
}

void set_state(StateArguments& a, const State& state) {
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

void set_segments(ScanArguments& a, const ChunkSegments& plan, const State& state) {
  a.segments = a.run_segments = plan.segments;
  a.segment_chunks = plan.segment_chunks;
  a.segment_states = state.before_segments;
}

/// Queues passes, and keeps the memory that they share until it is destroyed.
class Launcher {
 public:
  explicit Launcher(const Recurrence& r) : r_(r), stream_(stream(r.q.device())) {}

  Tensor keep(const Tensor& x) { return kept_.emplace_back(x); }

  /// Adds the states before the segments, made from y and w, where there is more than one; in `room` where that is defined.
  /// `beside`: a scan in the other direction, for the same launch where a state scan makes them.
  State find_segment_states(const Sm90PassPlan& plan, const Tensor& y, const Tensor& w, State state, bool backward,
                            const Tensor& room = {}, const ScanArguments* beside = nullptr) {
    if (plan.segments == 1) return state;
    state.before_segments = pointer<float>(room.defined() ? room : keep(segment_states(plan)));
    run_segments_from_zeros(plan, y, w, state, backward, nullptr, beside);
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
    if (r_.sequences > 0 && plan.segments > 1) linear_attention::join_segments(segments, stream_);
    return state;
  }
  /// What all segments do to a state.
  SegmentEffect segment_effect(Sm90PassPlan plan) {
    const TensorOptions options{DType::float32, r_.q.device()};
    SegmentEffect effect{{}, empty({r_.sequences, r_.heads, gated_channels()}, options), {}};
    ++plan.segments;  // a last one without tokens: the state before it is that after all others
    const Tensor states = segment_states(plan);
    if (r_.sequences > 0)
      run_segments_from_zeros(plan, r_.k, r_.v, {nullptr, false, nullptr, pointer<float>(states)}, false,
                              pointer<float>(effect.key_decay));
    effect.added = contiguous_data(select(states, 1, plan.segments - 1));
    return effect;
  }
  /// Room for the states before all segments.
  Tensor segment_states(const ChunkSegments& plan) const {
    return empty({r_.sequences, plan.segments, r_.heads, r_.K, r_.V}, {DType::float32, r_.q.device()});
  }
  Pass pass(const Sm90PassPlan& plan, Outer outer, const Tensor& x, const Tensor& y, const Tensor& w, bool backward,
            const State& state, const Tensor& out) const {
    Pass p = state_arguments<Pass>(r_, outer, y, w, backward, state);
    set_segments(p, plan, state);
    p.x = rows(r_, x);
    p.gates_are_inner = outer == Outer::values;
    p.gv = pointer(r_.gv);
    p.wide_blocks = plan.wide_blocks;
    p.mapped = r_.gv.defined() || plan.two_crews;
    set_out(p, r_, out);
    return p;
  }
  void run(const Pass& p) const {
    if (p.sequences.count == 0) return;
    Pass pass = p;
    pass.multiprocessors = multiprocessor_count(r_.q.device());
    pass.tokens = r_.tokens;
    if (p.mapped) (is_bfloat16(r_) ? run_mapped_pass<__nv_bfloat16> : run_mapped_pass<__half>)(pass, stream_);
    else (is_bfloat16(r_) ? run_pass<__nv_bfloat16> : run_pass<__half>)(pass, stream_);
  }
  void run_scans(const ScanArguments& forward, const ScanArguments& reverse, int key_tiles) const {
    if (r_.sequences == 0) return;
    (is_bfloat16(r_) ? run_state_scans<__nv_bfloat16> : run_state_scans<__half>)(forward, reverse, key_tiles, stream_);
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
  void run_reverse_scan(const IntraChunk& a, const ScanArguments& scan) const {
    (is_bfloat16(r_) ? run_head_gate_scan<__nv_bfloat16> : run_head_gate_scan<__half>)(a, scan, stream_);
  }

 private:
  /// Finds the states before all segments but the first, from zeros on. `total_decay` is as in Segments.
  void run_segments_from_zeros(const Sm90PassPlan& plan, const Tensor& y, const Tensor& w, State state, bool backward,
                               float* total_decay, const ScanArguments* beside = nullptr) {
    Tensor decay;
    if (plan.segments > 2 || total_decay) decay = segment_decays(plan);
    state.last = nullptr;
    linear_attention::Segments segments =
        segments_of(scan_segments(plan, y, w, state, backward, plan.segments - 1, pointer<float>(decay), beside));
    segments.total_decay = total_decay;
    if (segments.decay) linear_attention::join_segments(segments, stream_);
  }
  SegmentEffect empty_effect() const {
    const TensorOptions options{DType::float32, r_.q.device()};
    return {empty({r_.sequences, r_.heads, r_.K, r_.V}, options), empty({r_.sequences, r_.heads, gated_channels()}, options), {}};
  }
  /// Room for the decays of all segments.
  Tensor segment_decays(const ChunkSegments& plan) {
    return keep(empty({r_.sequences * plan.segments, r_.heads, gated_channels()}, {DType::float32, r_.q.device()}));
  }
  /// A scan of the first `count` segments in its order: the first one from state.first, the others from zeros.
  ScanArguments scan_segments(const Sm90PassPlan& plan, const Tensor& y, const Tensor& w, const State& state, bool backward,
                              int count, float* decay, const ScanArguments* beside = nullptr) const {
    const auto arguments = [&]<class Arguments>(Arguments) {
      Arguments a = state_arguments<Arguments>(r_, Outer::values, y, w, backward, state);
      set_segments(a, plan, state);
      a.keeps_states = a.from_zeros = true;
      a.first_segment = backward ? plan.segments - count : 0;
      a.run_segments = count;
      a.decay = decay;
      return a;
    };
    if (plan.scan_for_states) {
      ScanArguments scan = arguments(ScanArguments{}), other = beside ? *beside : scan;
      if (!beside) other.run_segments = 0;
      run_scans(backward ? other : scan, backward ? scan : other, plan.scan_key_tiles);
      return scan;
    }
    Pass pass = arguments(Pass{});
    pass.gates_are_inner = true;
    pass.wide_blocks = plan.wide_blocks;
    run(pass);
    return pass;
  }
  int gated_channels() const { return r_.gk.defined() ? static_cast<int>(r_.K) : 1; }
  linear_attention::Segments segments_of(const ScanArguments& a) const {
    return {a.segment_states,       a.decay, r_.sequences, a.segments, a.heads, gated_channels(), static_cast<int>(r_.K),
            static_cast<int>(r_.V), nullptr};
  }

  const Recurrence& r_;
  const cudaStream_t stream_;
  std::vector<Tensor> kept_;
};

ConstantDecayPass constant_decay_pass(const Recurrence& r, Outer outer, const Tensor& x, const Tensor& y, const Tensor& w,
                                      bool backward, const State& state, const Tensor& out) {
  auto p = state_arguments<ConstantDecayPass>(r, outer, y, w, backward, state);
  p.x = rows(r, x);
  set_out(p, r, out);
  return p;
}

void forward_of_heads(const AttentionPlan& plan, Recurrence& r, const Tensor& o, const Tensor& final_state) {
  Launcher launcher(r);
  State state = initial_state(r, final_state);
  if (plan.forward.kernels == AttentionKernels::sm90_constant_decay) {
    const ConstantDecayPass pass = constant_decay_pass(r, Outer::values, r.q, r.k, r.v, false, state, o);
    if (r.exchange) return launcher.exchange_constant_decay({&pass, 1}, 0, plan.forward.constant_decay, r.initial_state);
    return launcher.run_constant_decay({&pass, 1}, plan.forward.constant_decay);
  }
  const Sm90PassPlan& segments = plan.forward.pass;
  const bool keeps_boundary_states = plan.forward.keeps_boundary_states;
  if (plan.forward.keeps_states) r.states = keeps_boundary_states ? boundary_states(r) : launcher.segment_states(segments);
  const Tensor room = keeps_boundary_states ? Tensor() : r.states;
  state = r.exchange ? launcher.exchange_segment_states(segments, r.k, r.v, state, false, r.initial_state, room)
                     : launcher.find_segment_states(segments, r.k, r.v, state, false, room);
  Pass pass = launcher.pass(segments, Outer::values, r.q, r.k, r.v, false, state, o);
  if (keeps_boundary_states) pass.boundary_states = r.states.raw_data();
  pass.early = segments.segments > 1;
  launcher.run(pass);
}

/// Room for a part of a result [tokens, heads, size] from each part of the keys.
Tensor room_for_parts(const Recurrence& split, std::int64_t size) {
  return empty({split.tokens, split.heads, size}, {DType::float32, split.q.device()});
}

}  // namespace

void forward(const AttentionPlan& plan, Recurrence& r, const Tensor& o, const Tensor& final_state) {
  const int parts = plan.forward.pass.key_parts;
  if (parts == 1) return forward_of_heads(plan, r, o, final_state);
  Recurrence split = parts_as_heads(r, parts);
  const Tensor of_parts = room_for_parts(split, r.V);
  forward_of_heads(plan, split, of_parts, final_state);
  linear_attention::sum_heads(of_parts, o);
  r.states = split.states;
  r.initial_state = states_of_heads(split.initial_state, r.heads);
}

SegmentEffect segment(const AttentionPlan& plan, const Recurrence& r) {
  const Sm90PassPlan& pass = plan.forward.pass;
  if (pass.key_parts == 1) return Launcher(r).segment_effect(pass);
  const Recurrence split = parts_as_heads(r, pass.key_parts);
  return effect_of_heads(Launcher(split).segment_effect(pass), r.heads, pass.key_parts);
}

namespace {

/// The states before the segments of the forward scan: those that the forward pass kept, or made again.
State forward_states(Launcher& launcher, const AttentionPlan& plan, const Sm90PassPlan& segments, const Recurrence& r) {
  State state = initial_state(r);
  if (!plan.backward.reuses_states) return launcher.find_segment_states(segments, r.k, r.v, state, false);
  state.before_segments = pointer<float>(r.states);
  return state;
}

State final_gradient(const Tensor& grad_final_state, const ChunkGradients& grads) {
  return {pointer<const float>(grad_final_state), false, pointer<float>(grads.initial_state)};
}

/// Parts of the keys whose gradients of the values the intra-chunk kernel adds up.
int joined_parts(const AttentionPlan& plan) { return plan.problem.gk && plan.backward.intra_chunk.key_parts > 1 ? 2 : 1; }

/// Scans to the states at the chunk boundaries and to their gradients, then all chunks at the same time; or a scan to the states
/// alone, then the chunks one after the other.
void backward_of_heads(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                       const ChunkGradients& grads) {
  const Sm90IntraChunkPlan& segments = plan.backward.intra_chunk;
  const Sm90PassPlan& of_gradients = segments.reverse_scan ? segments.gradients : segments;
  Launcher launcher(r);
  const bool has_before = plan.forward.keeps_boundary_states;
  const Tensor before = has_before ? r.states : boundary_states(r), after = segments.reverse_scan ? Tensor() : boundary_states(r);
  const auto scan = [&](const ChunkSegments& in, const Tensor& y, const Tensor& w, const State& state, bool backward,
                        const Tensor& to) {
    auto a = state_arguments<ScanArguments>(r, Outer::values, y, w, backward, state);
    set_segments(a, in, state);
    a.boundary_states = pointer(to);
    return a;
  };
  const State first = has_before ? State{} : forward_states(launcher, plan, segments, r);
  ScanArguments forward = scan(segments, r.k, r.v, first, false, before);
  if (has_before) forward.run_segments = 0;
  const bool beside = !has_before && segments.reverse_scan && !r.exchange && of_gradients.segments > 1;
  const State gradient = final_gradient(grad_final_state, grads);
  Tensor exchanged;
  const State last =
      r.exchange ? launcher.exchange_segment_states(of_gradients, r.q, grad_o, gradient, true, exchanged)
                 : launcher.find_segment_states(of_gradients, r.q, grad_o, gradient, true, {}, beside ? &forward : nullptr);
  ScanArguments reverse = scan(of_gradients, r.q, grad_o, last, true, after);
  Tensor stored;
  if (segments.beside_scan) {
    stored = empty({chunk_slots(r), r.heads}, {DType::int32, r.q.device()});
    fill_data(stored, 0);
    reverse.stored = static_cast<unsigned*>(stored.raw_data());
  }
  if (!beside && !(has_before && segments.reverse_scan)) {
    ScanArguments other = reverse;
    if (segments.reverse_scan) other.run_segments = 0;
    launcher.run_scans(forward, other, segments.boundary_key_tiles);
  }

  const auto result = [&](const Tensor& out, std::int64_t heads, std::int64_t size) {
    if (!out.defined()) return IntraChunk::Result{};
    return IntraChunk::Result{out.raw_data(), out.dtype() == DType::float32, token_step(r, out, heads, size)};
  };
  IntraChunk a{};
  static_cast<RecurrenceArguments&>(a) = linear_attention::recurrence_arguments(r);
  a.q = rows(r, r.q);
  a.k = rows(r, r.k);
  a.v = rows(r, r.v);
  a.grad_o = rows(r, grad_o);
  a.tokens = r.tokens;
  a.boundary_states = {before.raw_data(), pointer(after)};
  a.segments = of_gradients.segments;
  a.segment_chunks = of_gradients.segment_chunks;
  a.stored = reverse.stored;
  a.parts = static_cast<unsigned>(tiles(r.K) * ((tiles(r.V) + 1) / 2));
  a.dq = result(grads.q, r.heads, r.K);
  a.dk = result(grads.k, r.heads, r.K);
  a.key_parts = joined_parts(plan);
  a.dv = result(grads.v, r.heads / a.key_parts, r.V);
  a.dgk = pointer(grads.dgk);
  a.dg = pointer<float>(grads.dg);
  segments.reverse_scan ? launcher.run_reverse_scan(a, reverse) : launcher.run_intra_chunk(a);
}

/// By the kernels for two tiles of keys, or four without gk. The gradient of the values is a sum over the parts of the keys.
void backward_by_chunks(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const ChunkGradients& grads) {
  const int parts = plan.backward.intra_chunk.key_parts, sums = parts / joined_parts(plan);
  if (parts == 1) return backward_of_heads(plan, r, grad_o, grad_final_state, grads);
  const Recurrence split = parts_as_heads(r, parts);
  ChunkGradients of_parts = grads;
  of_parts.q = split_heads(grads.q, split.tokens, split.heads, split.K);
  of_parts.k = split_heads(grads.k, split.tokens, split.heads, split.K);
  if (sums > 1 && grads.v.defined()) of_parts.v = empty({r.tokens, r.heads * sums, r.V}, {DType::float32, r.q.device()});
  backward_of_heads(plan, split, reshape(grad_o, {r.tokens, r.heads, r.V}), grad_final_state, of_parts);
  if (sums > 1 && grads.v.defined()) linear_attention::sum_heads(of_parts.v, grads.v);
}

/// Where decay is constant and has no gradient.
void backward_constant_decay(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                             const ChunkGradients& grads) {
  const State first = initial_state(r), last = final_gradient(grad_final_state, grads);
  State without_last = last;
  without_last.last = nullptr;
  std::vector<ConstantDecayPass> wanted;
  if (grads.q.defined()) wanted.push_back(constant_decay_pass(r, Outer::keys, grad_o, r.v, r.k, false, first, grads.q));
  Tensor dv = grads.v;
  if (!dv.defined() && last.last) dv = empty({r.tokens, r.heads, r.V}, r.q.options());
  if (dv.defined()) wanted.push_back(constant_decay_pass(r, Outer::values, r.k, r.q, grad_o, true, last, dv));
  if (grads.k.defined()) wanted.push_back(constant_decay_pass(r, Outer::keys, r.v, grad_o, r.q, true, without_last, grads.k));
  const Launcher launcher(r);
  Tensor exchanged;
  if (r.exchange) launcher.exchange_constant_decay(wanted, grads.q.defined() ? 1 : 0, plan.backward.constant_decay, exchanged);
  else launcher.run_constant_decay(wanted, plan.backward.constant_decay);
}

/// A reverse pass in one segment over the segments of other passes, one after the other; returns the states before each of them.
State run_in_turn(Launcher& launcher, const ChunkSegments& segments, Pass pass, State state) {
  state.before_segments = pointer<float>(launcher.keep(launcher.segment_states(segments)));
  set_segments(pass, segments, state);
  pass.run_segments = 1;
  pass.keeps_states = true;
  for (pass.first_segment = segments.segments - 1; pass.first_segment >= 0; --pass.first_segment) launcher.run(pass);
  return state;
}

/// What a forward pass leaves for a reverse one over the same states, where gates of w have gradients: those of channels, and the
/// sums `of_heads`.
void set_gate_gradients(Launcher& launcher, const Recurrence& r, Pass& forward, Pass& reverse, const Tensor& of_channels,
                        const Tensor& of_heads) {
  const std::int64_t outer_tiles = tiles(forward.outer),
                     channels = forward.mapped ? kMappedChannels : pass_channels(forward.inner);
  const Tensor states = launcher.keep(empty({chunk_slots(r), r.heads, outer_tiles, kChunkTokens * channels}, r.q.options()));
  const Shape per_token{outer_tiles, r.tokens, r.heads},
      per_channel{chunk_slots(r), r.heads, outer_tiles, kChunkTokens * kChunkTokens};
  const bool gated = r.gk.defined() || r.gv.defined();
  const Tensor u_out = launcher.keep(empty(gated ? per_channel : per_token, {DType::float32, r.q.device()}));
  forward.saved_states = reverse.saved_states = states.raw_data();
  forward.u_out = reverse.u_out = pointer<float>(u_out);
  forward.u = reverse.w;
  reverse.u = forward.w;
  reverse.gate_gradient = pointer(of_channels);
  reverse.dg = pointer<float>(of_heads);
}

/// One fused pass for each of dv, dq and dk.
void backward_by_passes(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const ChunkGradients& grads) {
  const Sm90PassPlan &values = plan.backward.values, &keys = plan.backward.keys;
  const bool gates = grads.dgk.defined() || grads.dg.defined(), gate_gradients = gates || r.gk.defined();
  const bool with_q = gates || grads.q.defined(), with_k = gates || grads.k.defined();
  const State last = final_gradient(grad_final_state, grads);
  const bool with_v = grads.v.defined() || last.last;
  Launcher launcher(r);
  State state = last;  // for dk: as the pass for dv finds it, or leaves it
  Tensor exchanged;
  if (r.exchange) state = launcher.exchange_segment_states(values, r.q, grad_o, last, true, exchanged);
  const auto dv = [&] { return launcher.pass(values, Outer::values, r.k, r.q, grad_o, true, state, grads.v); };
  if (with_v && with_k && values.segments == 1 && keys.segments > 1) {
    state = run_in_turn(launcher, keys, dv(), state);
  } else {
    if (!r.exchange && (with_v || (with_k && keys.segments == values.segments)))
      state = launcher.find_segment_states(values, r.q, grad_o, last, true);
    if (with_v) launcher.run(dv());
    if (with_k && keys.segments != values.segments) state = launcher.find_segment_states(keys, r.q, grad_o, state, true);
  }
  state.last = nullptr;
  if (!with_q && !with_k) return;

  const Tensor grad_q = grads.q.defined() || !with_q ? grads.q : launcher.keep(empty_like(r.q));
  const Tensor grad_k = grads.k.defined() || !with_k ? grads.k : launcher.keep(empty({r.tokens, r.heads, r.K}, r.q.options()));
  Pass dq = launcher.pass(keys, Outer::keys, grad_o, r.v, r.k, false, initial_state(r), grad_q);
  Pass dk = launcher.pass(keys, Outer::keys, r.v, grad_o, r.q, true, state, grad_k);
  if (gate_gradients) set_gate_gradients(launcher, r, dq, dk, grads.dgk, grads.dg);
  if (with_q) {
    dq.segment_states = forward_states(launcher, plan, keys, r).before_segments;
    launcher.run(dq);
  }
  if (with_k) launcher.run(dk);
}

/// One pass for each result where values have gates, perhaps beside the keys. Gradients of gates of values need the output again.
void backward_of_both_gates(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                            const ChunkGradients& grads) {
  const State first = initial_state(r), last = final_gradient(grad_final_state, grads);
  State without_last = last;
  without_last.last = nullptr;
  const bool value_gates = grads.dgv.defined(), key_gates = grads.dgk.defined() || grads.dg.defined();
  if (grads.v.defined() || last.last || value_gates) {
    Launcher launcher(r);
    Pass dv = launcher.pass(plan.backward.values, Outer::values, r.k, r.q, grad_o, true, last, grads.v);
    if (value_gates) {
      Pass o = launcher.pass(plan.backward.values, Outer::values, r.q, r.k, r.v, false, first, {});
      set_gate_gradients(launcher, r, o, dv, grads.dgv, {});
      launcher.run(o);
    }
    launcher.run(dv);
  }
  if (!grads.q.defined() && !grads.k.defined() && !key_gates) return;
  Launcher launcher(r);
  Pass dq = launcher.pass(plan.backward.keys, Outer::keys, grad_o, r.v, r.k, false, first, grads.q),
       dk = launcher.pass(plan.backward.keys, Outer::keys, r.v, grad_o, r.q, true, without_last, grads.k);
  if (key_gates) set_gate_gradients(launcher, r, dq, dk, grads.dgk, grads.dg);
  if (grads.q.defined() || key_gates) launcher.run(dq);
  if (grads.k.defined() || key_gates) launcher.run(dk);
}

}  // namespace

void backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const ChunkGradients& grads) {
  switch (plan.backward.kernels) {
    case AttentionKernels::sm90_intra_chunk: return backward_by_chunks(plan, r, grad_o, grad_final_state, grads);
    case AttentionKernels::sm90_constant_decay: return backward_constant_decay(plan, r, grad_o, grad_final_state, grads);
    default: return (r.gv.defined() ? backward_of_both_gates : backward_by_passes)(plan, r, grad_o, grad_final_state, grads);
  }
}

}  // namespace glade::cuda::chunk_sm90
