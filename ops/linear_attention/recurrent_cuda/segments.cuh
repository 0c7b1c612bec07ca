#pragma once
// Few heads and a long sequence leave most of the GPU idle. Then the sequence is split into segments that run at the same time: a
// first pass computes each segment's final state from zeros and its decay, from which compose() makes the states that the
// segments start from, for the pass itself.
#include <glade/ops/linear_attention/recurrent_cuda/pass.cuh>

namespace glade::cuda::recurrent {

/// Turns the final states that the segments have from zeros, [segments, sequences, heads, I, J] by the pass's strides, into those
/// that the segments start from. If `total_decay` is not null, it also leaves the decay of all segments there, [sequences, heads,
/// I + J], and the state after them in pass.final.
template <class F>
void compose(const Pass<F>& pass, const F* decays, F* states, F* total_decay, Device device);

/// Calls launch(pass), twice if there are several segments whose states are not kept yet. A pass with segment_decays is one
/// without outputs from zeros, for the final state and the decay of whole sequences: of it the first launch is enough.
template <class F, class Launch>
void run_in_segments(Pass<F>& pass, const RecurrentPassPlan& plan, Device device, const Launch& launch) {
  pass.segments = plan.segments;
  pass.segment = plan.segment_tokens;
  if (pass.segments == 1) return launch(pass);
  const std::int64_t heads = pass.sequences.count * pass.heads, size = pass.state_size();
  SegmentStates own, &states = pass.kept != nullptr ? *pass.kept : own;
  if (!states.memory || states.segments != pass.segments || states.segment != pass.segment) {
    states.memory.emplace(static_cast<std::size_t>(pass.segments * heads * size) * sizeof(F), device);
    states.segments = pass.segments;
    states.segment = pass.segment;
    const Scratch decays(static_cast<std::size_t>(pass.segments * heads * (pass.inner() + pass.outer())) * sizeof(F), device);
    Pass<F> from_zeros = pass;
    from_zeros.rows[kC].data = nullptr;
    from_zeros.initial.data = nullptr;
    from_zeros.final = {states.memory->template data<F>(), pass.heads * size, heads * size};
    from_zeros.out = nullptr;
    from_zeros.past = from_zeros.states = from_zeros.products = nullptr;
    from_zeros.past_x = nullptr;
    from_zeros.segment_decays = decays.template data<F>();
    launch(from_zeros);
    compose(pass, from_zeros.segment_decays, from_zeros.final.data, pass.segment_decays, device);
  }
  if (pass.segment_decays != nullptr) return;
  pass.initial = {states.memory->template data<F>(), pass.heads * size, heads * size};
  launch(pass);
}

}  // namespace glade::cuda::recurrent
