// The chunk form on the GPU: by the passes of chunk_sm90/pass.h where those can be used, otherwise by the kernels of
// chunk_mma/chunk_mma.h.
#include <cuda_fp16.h>

#include <algorithm>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_mma/chunk_mma.h>
#include <glade/ops/linear_attention/chunk_sm90/pass.h>
#include <glade/ops/linear_attention/common/segments.h>
#include <glade/ops/linear_attention/kernels.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade::cuda {

namespace {

using chunk_mma::bf16;

template <class T>
T* pointer(const Tensor& x) {
  return x.defined() ? static_cast<T*>(x.raw_data()) : nullptr;
}

template <class E>
chunk_mma::Arguments<E> arguments(const Recurrence& r) {
  chunk_mma::Arguments<E> a{};
  a.q = pointer<const E>(r.q);
  a.k = pointer<const E>(r.k);
  a.v = pointer<const E>(r.v);
  a.g = pointer<const void>(r.g);
  a.gk = pointer<const void>(r.gk);
  a.float_gates = (r.gk.defined() ? r.gk : r.g).defined() && (r.gk.defined() ? r.gk : r.g).dtype() == DType::float32;
  a.g_gamma = pointer<const float>(r.g_gamma);
  a.gamma_step = static_cast<int>(r.gamma_step());
  a.cu_seqlens = pointer<const std::int64_t>(r.cu_seqlens);
  a.sequences = r.sequences;
  a.length = r.length;
  a.heads = static_cast<int>(r.heads);
  a.kv_heads = static_cast<int>(r.kv_heads);
  a.K = static_cast<int>(r.K);
  a.V = static_cast<int>(r.V);
  a.scale = static_cast<float>(r.scale);
  a.reverse = r.reverse;
  return a;
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
Tensor allocate_boundary_states(const Recurrence& r, const chunk_mma::Arguments<E>& a) {
  return empty({r.tokens / chunk_mma::kTile + r.sequences, r.heads, a.state_size()}, {r.q.dtype(), r.q.device()});
}

template <class E>
chunk_mma::StatesArguments<E> state_arguments(const Recurrence& r, const Tensor& states) {
  chunk_mma::StatesArguments<E> s{};
  s.first = pointer<const float>(r.initial_state);
  s.first_is_shared = r.initial_state.defined() && r.initial_state.ndim() == 3;
  s.states = pointer<E>(states);
  return s;
}

/// chunk_mma::states; in parts where the blocks are few.
template <class E>
void run_states(const Recurrence& r, const chunk_mma::Arguments<E>& a, chunk_mma::StatesArguments<E> s, bool backward) {
  constexpr std::int64_t kShortestSegment = 8, kLeastSegments = 4;  // all is done twice
  if (r.sequences == 0) return;
  const auto tiles = [](std::int64_t size) { return (size + chunk_mma::kTile - 1) / chunk_mma::kTile; };
  const std::int64_t chunks = tiles(r.length), blocks = tiles(r.K) * tiles(r.V) * r.heads * r.sequences,
                     segments = std::min(2 * multiprocessor_count(r.q.device()) / blocks, chunks / kShortestSegment);
  const cudaStream_t on = stream(r.q.device());
  s.segments = segments < kLeastSegments ? 1 : static_cast<int>(segments);
  s.segment_chunks = static_cast<int>((chunks + s.segments - 1) / s.segments);
  Tensor segment_states, decay;
  if (s.segments > 1) {
    const int channels = r.gk.defined() ? a.K : 1;
    segment_states = empty({r.sequences, s.segments, r.heads, r.K, r.V}, {DType::float32, r.q.device()});
    decay = empty({r.sequences, s.segments, r.heads, channels}, segment_states.options());
    s.segment_states = pointer<float>(segment_states);
    s.decay = pointer<float>(decay);
    s.from_zeros = true;
    chunk_mma::states(a, s, backward, on);
    s.from_zeros = false;
    const linear_attention::Segments added{s.segment_states, s.decay, r.sequences, s.segments, a.heads, channels, a.K, a.V};
    linear_attention::join_segments(added, on);
  }
  chunk_mma::states(a, s, backward, on);
}

constexpr int kSumThreads = 256;

/// Sums of the gate gradients over the tiles of K, for every token in dg (float where the gates are, else E) and for every
/// sequence in dgamma (both may be null). A block has a sequence and a head.
template <class E>
__global__ void __launch_bounds__(kSumThreads)
    sum_gates_kernel(chunk_mma::Arguments<E> a, const float* partial, int tiles, std::int64_t tokens, void* dg, float* dgamma) {
  const chunk_mma::Sequence sequence(a, blockIdx.x);
  const int head = blockIdx.y;
  float total = 0;
  for (std::int64_t t = threadIdx.x; t < sequence.count; t += kSumThreads) {
    const std::int64_t at = (sequence.begin + t) * a.heads + head;
    float sum = 0;
    for (int i = 0; i < tiles; ++i) sum += partial[i * tokens * a.heads + at];
    if (dg && a.float_gates) static_cast<float*>(dg)[at] = sum;
    else if (dg) static_cast<E*>(dg)[at] = static_cast<E>(sum);
    total += sum;
  }
  __shared__ float totals[kSumThreads];
  totals[threadIdx.x] = total;
  __syncthreads();
  for (int step = kSumThreads / 2; step > 0; step /= 2) {
    if (static_cast<int>(threadIdx.x) < step) totals[threadIdx.x] += totals[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0 && dgamma) dgamma[blockIdx.x * a.heads + head] = totals[0];
}

/// [tokens, heads, size] summed over the query heads of each kv head, into `out` [..., kv_heads, size].
void sum_groups(const Recurrence& r, const Tensor& x, const Tensor& out) {
  const std::int64_t size = x.size(-1);
  copy_data(reshape(out, {r.tokens, r.kv_heads, size}), sum(reshape(x, {r.tokens, r.kv_heads, r.group(), size}), {2}));
}

}  // namespace

void chunk_in_passes(const RecurrenceShape& shape, bool& yes) { yes = chunk_sm90::take(shape); }

void chunk_obstacle(const RecurrenceShape& shape, const char*& obstacle) {
  if (chunk_sm90::take(shape)) return;
  if (shape.dtype == DType::float64) obstacle = "float64 on CUDA";
}

void reserve_chunk_states(Recurrence& r) {
  if (chunk_sm90::take(RecurrenceShape::of(r))) r.states = chunk_sm90::allocate_segment_states(r);
}

void chunk_computes_values_separately(const Recurrence& r, bool& yes) {
  yes = chunk_sm90::take(RecurrenceShape::of(r)) && chunk_sm90::computes_values_separately(r);
}

void chunk_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  DeviceGuard guard(r.q.device());
  if (chunk_sm90::take(RecurrenceShape::of(r))) return chunk_sm90::forward(r, o, final_state);
  visit_elements(r, [&]<class E>(E*) {
    const chunk_mma::Arguments<E> a = arguments<E>(r);
    const Tensor states = allocate_boundary_states(r, a);
    chunk_mma::StatesArguments<E> s = state_arguments<E>(r, states);
    s.last = pointer<float>(final_state);
    run_states(r, a, s, false);
    chunk_mma::outputs<E>(a, {nullptr, s.states, o.raw_data(), false}, stream(r.q.device()));
  });
}

namespace {

/// chunk_sm90::backward for what has no passes.
template <class E>
void backward_by_kernels(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                         const chunk_sm90::Gradients& grads) {
  const cudaStream_t on = stream(r.q.device());
  const chunk_mma::Arguments<E> a = arguments<E>(r);
  const Tensor grad_states = allocate_boundary_states(r, a);
  chunk_mma::StatesArguments<E> s{};
  s.grad_o = pointer<const E>(grad_o);
  s.first = pointer<const float>(grad_final_state);
  s.states = pointer<E>(grad_states);
  s.last = pointer<float>(grads.initial_state);
  run_states(r, a, s, true);
  const bool grouped = r.group() > 1;
  if (grads.v.defined()) chunk_mma::outputs<E>(a, {s.grad_o, s.states, grads.v.raw_data(), grouped}, on);
  if (!grads.q.defined() && !grads.k.defined() && !grads.dgk.defined() && !grads.dg.defined()) return;
  const Tensor states = allocate_boundary_states(r, a);
  run_states(r, a, state_arguments<E>(r, states), false);
  const Tensor dq = grads.q.defined() ? grads.q : empty_like(r.q);
  const Tensor dk = grads.k.defined() ? grads.k : empty({r.tokens, r.heads, r.K}, {DType::float32, r.q.device()});
  chunk_mma::gradients<E>(a,
                          {s.grad_o, pointer<const E>(states), s.states, pointer<E>(dq), dk.raw_data(),
                           dk.dtype() == DType::float32, pointer<void>(grads.dgk), pointer<float>(grads.dg)},
                          on);
}

}  // namespace

void chunk_backward(const Recurrence& r, const Tensor& given_grad_o, const Tensor& grad_final_state,
                    const RecurrenceGradients& grads) {
  const Device device = r.q.device();
  DeviceGuard guard(device);
  const Tensor grad_o = given_grad_o.defined() ? given_grad_o : zeros({r.tokens, r.heads, r.V}, r.q.options());
  const bool grouped = r.group() > 1, sums = grads.g.defined() || grads.g_gamma.defined();
  auto per_query_head = [&](const Tensor& grad, std::int64_t size) {
    return grouped && grad.defined() ? empty({r.tokens, r.heads, size}, {DType::float32, device}) : grad;
  };
  const std::int64_t tiles = (r.K + chunk_mma::kTile - 1) / chunk_mma::kTile;
  chunk_sm90::Gradients of_heads{grads.q,
                                 per_query_head(grads.k, r.K),
                                 per_query_head(grads.v, r.V),
                                 grads.gk,
                                 sums ? empty({tiles, r.tokens, r.heads}, {DType::float32, device}) : Tensor(),
                                 grads.initial_state};
  if (chunk_sm90::take(RecurrenceShape::of(r))) chunk_sm90::backward(r, grad_o, grad_final_state, of_heads);
  else visit_elements(r, [&]<class E>(E*) { backward_by_kernels<E>(r, grad_o, grad_final_state, of_heads); });
  if (grouped && grads.k.defined()) sum_groups(r, of_heads.k, grads.k);
  if (grouped && grads.v.defined()) sum_groups(r, of_heads.v, grads.v);
  if (!sums || r.sequences == 0) return;
  const dim3 grid(static_cast<unsigned>(r.sequences), static_cast<unsigned>(r.heads));
  visit_elements(r, [&]<class E>(E*) {
    sum_gates_kernel<<<grid, kSumThreads, 0, stream(device)>>>(arguments<E>(r), pointer<const float>(of_heads.dg),
                                                               static_cast<int>(tiles), r.tokens, pointer<void>(grads.g),
                                                               pointer<float>(grads.g_gamma));
    GLADE_CUDA_LAUNCHED();
  });
}

}  // namespace glade::cuda
