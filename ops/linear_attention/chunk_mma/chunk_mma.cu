// The chunk algorithm on GPUs from sm_80 on: states at the chunk boundaries, then all chunks at the same time.
#include <glade/ops/linear_attention/chunk_mma/chunk_mma.h>

#include <cuda_fp16.h>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/common/segments.h>
#include <glade/ops/shape/shape.h>

namespace glade::cuda::chunk_mma {

using linear_attention::ChunkGradients;

namespace {

template <class E>
Arguments<E> arguments(const Recurrence& r) {
  return {linear_attention::recurrence_arguments(r),
          pointer<const E>(r.q),
          pointer<const E>(r.k),
          pointer<const E>(r.v),
          static_cast<int>(r.kv_heads),
          static_cast<int>(r.K),
          static_cast<int>(r.V)};
}

/// Calls f with a null pointer to the elements' type.
template <class F>
void visit_elements(const Recurrence& r, F&& f) {
  switch (r.q.dtype()) {
    case DType::float32: return f(static_cast<float*>(nullptr));
    case DType::bfloat16: return f(static_cast<bf16*>(nullptr));
    default: return f(static_cast<__half*>(nullptr));
  }
}

template <class E>
Tensor allocate_boundary_states(const Recurrence& r, const Arguments<E>& a) {
  return empty({linear_attention::chunk_slots(r), r.heads, a.state_size()}, {r.q.dtype(), r.q.device()});
}

template <class E>
StatesArguments<E> state_arguments(const Recurrence& r, const Tensor& boundary_states) {
  StatesArguments<E> s{};
  s.first = pointer<const float>(r.initial_state);
  s.first_is_shared = r.initial_state.defined() && r.initial_state.ndim() == 3;
  s.states = pointer<E>(boundary_states);
  return s;
}

/// The states before all segments but the first, from scans of all but the last that start from zeros. `total_decay` is as in
/// Segments.
template <class E>
Tensor segment_states(const Recurrence& r, const Arguments<E>& a, StatesArguments<E> s, bool backward, float* total_decay) {
  const cudaStream_t on = stream(r.q.device());
  const int channels = r.gk.defined() ? a.K : 1;
  const Tensor found = empty({r.sequences, s.segments, r.heads, r.K, r.V}, {DType::float32, r.q.device()});
  const Tensor decay = empty({r.sequences, s.segments, r.heads, channels}, found.options());
  s.segment_states = pointer<float>(found);
  s.decay = pointer<float>(decay);
  s.from_zeros = true;
  states(a, s, backward, on);
  const linear_attention::Segments added{s.segment_states, s.decay, r.sequences, s.segments, a.heads,
                                         channels,         a.K,     a.V,         total_decay};
  linear_attention::join_segments(added, on, true);
  return found;
}

template <class E>
void run_states(const ChunkSegments& plan, const Recurrence& r, const Arguments<E>& a, StatesArguments<E> s, bool backward) {
  if (r.sequences == 0) return;
  s.segments = plan.segments;
  s.segment_chunks = plan.segment_chunks;
  Tensor before;
  if (s.segments > 1) before = segment_states(r, a, s, backward, nullptr);
  s.segment_states = pointer<float>(before);
  states(a, s, backward, stream(r.q.device()));
}

template <class E>
void backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const ChunkGradients& grads) {
  const cudaStream_t on = stream(r.q.device());
  const Arguments<E> a = arguments<E>(r);
  const Tensor grad_states = allocate_boundary_states(r, a);
  StatesArguments<E> s{};
  s.grad_o = pointer<const E>(grad_o);
  s.first = pointer<const float>(grad_final_state);
  s.states = pointer<E>(grad_states);
  s.last = pointer<float>(grads.initial_state);
  run_states(plan.backward.mma, r, a, s, true);
  const bool grouped = r.group() > 1;
  if (grads.v.defined()) outputs<E>(a, {s.grad_o, s.states, grads.v.raw_data(), grouped}, on);
  if (!grads.q.defined() && !grads.k.defined() && !grads.dgk.defined() && !grads.dg.defined()) return;
  const Tensor boundary_states = allocate_boundary_states(r, a);
  run_states(plan.backward.mma, r, a, state_arguments<E>(r, boundary_states), false);
  const Tensor dq = grads.q.defined() ? grads.q : empty_like(r.q);
  const Tensor dk = grads.k.defined() ? grads.k : empty({r.tokens, r.heads, r.K}, {DType::float32, r.q.device()});
  gradients<E>(a,
               {s.grad_o, pointer<const E>(boundary_states), s.states, pointer<E>(dq), dk.raw_data(),
                dk.dtype() == DType::float32, pointer<void>(grads.dgk), pointer<float>(grads.dg)},
               on);
}

}  // namespace

void forward(const AttentionPlan& plan, const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  visit_elements(r, [&]<class E>(E*) {
    const Arguments<E> a = arguments<E>(r);
    const Tensor boundary_states = allocate_boundary_states(r, a);
    StatesArguments<E> s = state_arguments<E>(r, boundary_states);
    s.last = pointer<float>(final_state);
    run_states(plan.forward.mma, r, a, s, false);
    outputs<E>(a, {nullptr, s.states, o.raw_data(), false}, stream(r.q.device()));
  });
}

SegmentEffect segment(const AttentionPlan& plan, const Recurrence& r) {
  const TensorOptions options{DType::float32, r.q.device()};
  SegmentEffect effect{
      empty({r.sequences, r.heads, r.K, r.V}, options), empty({r.sequences, r.heads, r.gk.defined() ? r.K : 1}, options), {}};
  if (r.sequences == 0) return effect;
  visit_elements(r, [&]<class E>(E*) {
    StatesArguments<E> s{};
    s.segments = plan.forward.mma.segments + 1;  // a last one without tokens: the state before it is that after all others
    s.segment_chunks = plan.forward.mma.segment_chunks;
    const Tensor before = segment_states(r, arguments<E>(r), s, false, pointer<float>(effect.key_decay));
    copy_data(effect.added, select(before, 1, s.segments - 1));
  });
  return effect;
}

void backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const ChunkGradients& grads) {
  visit_elements(r, [&]<class E>(E*) { backward<E>(plan, r, grad_o, grad_final_state, grads); });
}

}  // namespace glade::cuda::chunk_mma
