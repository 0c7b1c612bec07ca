// The chunk algorithm on Hopper GPUs: which passes and kernels a plan consists of, and what they hand to each other.
#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>

#include <vector>

#include <glade/ops/linear_attention/chunk_sm90/launcher.h>
#include <glade/ops/linear_attention/chunk_sm90/parts_as_heads.h>

namespace glade::cuda::chunk_sm90 {

using linear_attention::ChunkGradients;

namespace {

ConstantDecayPass constant_decay_pass(const Recurrence& r, Outer outer, const Tensor& x, const Tensor& y, const Tensor& w,
                                      bool backward, const State& state, const Tensor& out) {
  auto p = state_arguments<ConstantDecayPass>(r, outer, y, w, backward, state);
  p.x = rows(r, x);
  set_out(p, r, out);
  return p;
}

/// Room for Pass::u_out of per-channel gates, for all tokens and `size` channels.
Tensor room_for_u_out(const Recurrence& r, std::int64_t size) {
  return empty({chunk_slots(r), r.heads, tiles(size), kChunkTokens * kChunkTokens}, {DType::float32, r.q.device()});
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
  if (keeps_boundary_states) {
    if (r.exchange || has_boundary_states(r, segments, state)) r.kept = boundary_states(r);
  } else if (plan.forward.keeps_states) {
    r.kept = launcher.segment_states(segments);
  }
  const Tensor room = keeps_boundary_states ? Tensor() : r.kept;
  if (segments.gates_first) launcher.apply_gates();
  state = r.exchange ? launcher.exchange_segment_states(segments, r.k, r.v, state, false, r.initial_state, room)
                     : launcher.find_segment_states(segments, r.k, r.v, state, false, room);
  const auto run = [&](auto pass) {
    if (keeps_boundary_states) pass.boundary_states = pointer(r.kept);
    pass.early = segments.gates_first || (segments.segments > 1 && !segments.finds_states);
    launcher.run(pass);
  };
  if (segments.gates_first || segments.shared_gates) return run(launcher.gated_pass(segments, state, o));
  Pass pass = launcher.pass(segments, Outer::values, r.q, r.k, r.v, false, state, o);
  if (plan.forward.keeps_output) {
    r.kept = room_for_u_out(r, r.V);
    pass.u_out = pointer<float>(r.kept);
  }
  run(pass);
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
  r.kept = split.kept;
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
  state.before_segments = pointer<float>(r.kept);
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
  const auto scan = [&](const ChunkSegments& in, const Tensor& y, const Tensor& w, const State& state, bool backward,
                        const Tensor& to) {
    auto a = state_arguments<ScanArguments>(r, Outer::values, y, w, backward, state);
    set_segments(a, r, in, state);
    a.boundary_states = pointer(to);
    return a;
  };
  const State first = has_before ? State{} : forward_states(launcher, plan, segments, r);
  const bool scans_before = !has_before && has_boundary_states(r, segments, first);
  const Tensor before = has_before ? r.kept : scans_before ? boundary_states(r) : Tensor();
  ScanArguments forward = scan(segments, r.k, r.v, first, false, before);
  if (!scans_before) forward.run_segments = 0;
  const bool beside =
      !has_before && segments.reverse_scan && !r.exchange && of_gradients.segments > 1 && !of_gradients.finds_states;
  const State gradient = final_gradient(grad_final_state, grads);
  Tensor exchanged;
  const State last =
      r.exchange ? launcher.exchange_segment_states(of_gradients, r.q, grad_o, gradient, true, exchanged)
                 : launcher.find_segment_states(of_gradients, r.q, grad_o, gradient, true, {}, beside ? &forward : nullptr);
  const bool scans_after = !segments.reverse_scan && (last.last || has_boundary_states(r, of_gradients, last));
  const Tensor after = scans_after ? boundary_states(r) : Tensor();
  ScanArguments reverse = scan(of_gradients, r.q, grad_o, last, true, after);
  reverse.early = segments.reverse_scan && last.comes_ahead && !scans_before;
  if (segments.beside_scan && scans_after) reverse.stored = launcher.counters(state_slots(r) * r.heads);
  if (!beside && (scans_before || scans_after)) {
    ScanArguments other = reverse;
    if (!scans_after) other.run_segments = 0;
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
  a.boundary_states = {pointer(before), pointer(after), r.initial_state.defined(), last.first != nullptr};
  a.segments = of_gradients.segments;
  a.segment_chunks = of_gradients.segment_chunks;
  a.early = scans_before || scans_after;
  a.stored = reverse.stored;
  a.parts = static_cast<unsigned>(tiles(r.K) * ((tiles(r.V) + 1) / 2));
  a.dq = result(grads.q, r.heads, r.K);
  a.dk = result(grads.k, r.heads, r.K);
  a.key_parts = joined_parts(plan);
  a.dv = result(grads.v, r.heads / a.key_parts, r.V);
  a.dgk = pointer(grads.dgk);
  a.dg = pointer(grads.dg);
  a.rounds_dg = grads.dg.defined() && grads.dg.dtype() != DType::float32;
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
State run_in_turn(Launcher& launcher, const Recurrence& r, const ChunkSegments& segments, Pass pass, State state) {
  state.before_segments = pointer<float>(launcher.keep(launcher.segment_states(segments)));
  set_segments(pass, r, segments, state);
  pass.run_segments = 1;
  pass.keeps_states = true;
  for (pass.first_segment = segments.segments - 1; pass.first_segment >= 0; --pass.first_segment) launcher.run(pass);
  return state;
}

/// What a forward pass leaves for a reverse one over the same states, where gates of w have gradients: those of channels, and the
/// sums `of_heads`.
void set_gate_gradients(Launcher& launcher, const Recurrence& r, Pass& forward, Pass& reverse, const Tensor& of_channels,
                        const Tensor& of_heads) {
  const std::int64_t outer_tiles = tiles(forward.outer), channels = pass_channels(forward.inner);
  const Tensor states = launcher.keep(empty({chunk_slots(r), r.heads, outer_tiles, kChunkTokens * channels}, r.q.options()));
  const Tensor u_out = launcher.keep(r.gk.defined() ? room_for_u_out(r, forward.outer)
                                                    : empty({outer_tiles, r.tokens, r.heads}, {DType::float32, r.q.device()}));
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
  if (with_v && with_k && values.segments == 1 && keys.segments > 1 && boundaries(r, keys) == 0) {
    state = run_in_turn(launcher, r, keys, dv(), state);
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
  dq.early = plan.backward.at_once > 2;
  if (with_q) {
    dq.segment_states = forward_states(launcher, plan, keys, r).before_segments;
    launcher.run(dq);
  }
  dk.early = plan.backward.at_once > 1;
  if (with_k) launcher.run(dk);
}

/// One pass for each result where values have gates, perhaps beside the keys. For the gradients of gates, the pass for dq leaves
/// the states before the chunks, and those for dq and o their outputs; the forward pass may have kept that of o.
void backward_of_both_gates(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                            const ChunkGradients& grads) {
  const State first = initial_state(r), last = final_gradient(grad_final_state, grads);
  State without_last = last;
  without_last.last = nullptr;
  const bool value_gates = grads.dgv.defined(), key_gates = grads.dgk.defined() || grads.dg.defined();
  Launcher launcher(r);
  Tensor states, large_decay;
  if (value_gates || key_gates) {
    states = empty({chunk_slots(r), r.heads, tiles(r.K), kChunkTokens * kMappedChannels}, r.q.options());
    large_decay = empty({chunk_slots(r), r.heads}, {DType::int64, r.q.device()});
  }
  const auto share = [&](Pass& pass) {
    pass.saved_states = pointer(states);
    pass.large_decay = pointer<std::int64_t>(large_decay);
  };
  const auto run_reverse = [&](Pass pass, const Tensor& forward_out, const Rows& u, const Tensor& of_channels) {
    if (forward_out.defined()) {
      share(pass);
      pass.u_out = pointer<float>(forward_out);
      pass.u = u;
      pass.gate_gradient = pointer(of_channels);
    }
    launcher.run(pass);
  };
  if (grads.q.defined() || grads.k.defined() || states.defined()) {
    const Tensor dq_out = key_gates ? room_for_u_out(r, r.K) : Tensor();
    Pass dq = launcher.pass(plan.backward.keys, Outer::keys, grad_o, r.v, r.k, false, first, grads.q);
    share(dq);
    dq.u_out = pointer<float>(dq_out);
    if (grads.q.defined() || states.defined()) launcher.run(dq);
    Pass dk = launcher.pass(plan.backward.keys, Outer::keys, r.v, grad_o, r.q, true, without_last, grads.k);
    dk.dg = pointer<float>(grads.dg);
    if (grads.k.defined() || key_gates) run_reverse(dk, dq_out, dq.w, grads.dgk);
  }
  if (!grads.v.defined() && !last.last && !value_gates) return;
  Tensor o;
  if (value_gates) {
    o = plan.forward.keeps_output ? r.kept : room_for_u_out(r, r.V);
    Pass pass = launcher.pass(plan.backward.values, Outer::values, r.q, r.k, r.v, false, first, {});
    pass.u_out = pointer<float>(o);
    if (!plan.forward.keeps_output) launcher.run(pass);
  }
  run_reverse(launcher.pass(plan.backward.values, Outer::values, r.k, r.q, grad_o, true, last, grads.v), o, rows(r, r.v),
              grads.dgv);
}

/// Whether a block has all keys of a part, and so leaves one sum for a gate.
bool adds_up_tiles(const AttentionPlan& plan) {
  return plan.backward.kernels == AttentionKernels::sm90_intra_chunk && plan.backward.intra_chunk.reverse_scan;
}

}  // namespace

std::int64_t gate_sums(const AttentionPlan& plan, const Recurrence& r) {
  const std::int64_t K = r.K / plan.backward.intra_chunk.key_parts;
  const bool of_pairs = plan.backward.kernels == AttentionKernels::sm90_intra_chunk && chunks_of_state(r, K) == 2;
  return of_pairs ? 2 : adds_up_tiles(plan) ? 1 : tiles(K);
}
bool adds_up_gates(const AttentionPlan& plan) { return adds_up_tiles(plan) && plan.backward.intra_chunk.key_parts == 1; }

void backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const ChunkGradients& grads) {
  switch (plan.backward.kernels) {
    case AttentionKernels::sm90_intra_chunk: return backward_by_chunks(plan, r, grad_o, grad_final_state, grads);
    case AttentionKernels::sm90_constant_decay: return backward_constant_decay(plan, r, grad_o, grad_final_state, grads);
    default: return (r.gv.defined() ? backward_of_both_gates : backward_by_passes)(plan, r, grad_o, grad_final_state, grads);
  }
}

}  // namespace glade::cuda::chunk_sm90
