#pragma once
// Few heads and a long sequence leave most of the GPU idle. Then the sequence is split into segments that run at once: a
// first pass leaves each segment's final state from zeros and its decay, from which compose() makes the states that the
// segments start from, for the pass itself.
#include <algorithm>

#include <glade/ops/linear_attention/recurrent_cuda/pass.cuh>

namespace glade::cuda::recurrent {

/// Turns the segments' own final states, [segments, sequences, heads, I, J] by the pass's strides, into those that the
/// segments start from.
template <class F>
void compose(const Pass<F>& pass, const F* decays, F* states, Device device);

/// Segments of `pass`, where a head takes `blocks` blocks. Their first pass costs half of the pass, so that two do not pay,
/// unless the pass says how many.
template <class F>
void set_segments(Pass<F>& pass, int blocks, Device device) {
  constexpr std::int64_t kShortest = 256;  // positions; a multiple of every tile
  const std::int64_t idle = multiprocessor_count(device) / (pass.sequences.count * pass.heads * blocks);
  const std::int64_t most = pass.sequences.length / kShortest, own = std::min(idle, most) < 3 ? 1 : std::min(idle, most);
  pass.segments = static_cast<int>(pass.most_segments == 0 ? own : std::clamp<std::int64_t>(most, 1, pass.most_segments));
  pass.segment = (pass.sequences.length / pass.segments + kShortest - 1) / kShortest * kShortest;
  if (pass.segments > 1) pass.segments = static_cast<int>((pass.sequences.length + pass.segment - 1) / pass.segment);
}

/// Calls launch(pass), if need be twice.
template <class F, class Launch>
void run_in_segments(Pass<F>& pass, int blocks, Device device, const Launch& launch) {
  set_segments(pass, blocks, device);
  if (pass.segments == 1) return launch(pass);
  const std::int64_t heads = pass.sequences.count * pass.heads;
  const Scratch states(static_cast<std::size_t>(pass.segments * heads * pass.state_size()) * sizeof(F), device);
  const Scratch decays(static_cast<std::size_t>(pass.segments * heads * (pass.inner() + pass.outer())) * sizeof(F), device);

  Pass<F> alone = pass;
  alone.rows[kC].data = nullptr;
  alone.initial.data = nullptr;
  alone.final = {states.template data<F>(), pass.heads * pass.state_size(), heads * pass.state_size()};
  alone.out = nullptr;
  alone.past = alone.states = alone.products = nullptr;
  alone.segment_decays = decays.template data<F>();
  launch(alone);
  compose(pass, alone.segment_decays, alone.final.data, device);
  pass.initial = {alone.final.data, alone.final.sequence, alone.final.segment};
  launch(pass);
}

}  // namespace glade::cuda::recurrent
