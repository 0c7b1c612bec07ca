// From a plan to the CUDA kernels.
#include <glade/core/cuda/cuda.h>
#include <glade/core/format.h>
#include <glade/ops/linear_attention/chunk_mma/chunk_mma.h>
#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>
#include <glade/ops/linear_attention/common/chunk_gradients.h>
#include <glade/ops/linear_attention/recurrent_cuda/recurrent.h>

namespace glade::cuda {

namespace {

using linear_attention::ChunkGradients;

/// Kernels that are launched by the same functions: a folder.
enum class Family { recurrent, chunk_mma, chunk_sm90 };

Family family_of(AttentionKernels kernels) {
  switch (kernels) {
    case AttentionKernels::recurrent:
    case AttentionKernels::decode_step:
    case AttentionKernels::few_tokens:
    case AttentionKernels::float_chunks:
    case AttentionKernels::warp_chunks: return Family::recurrent;
    case AttentionKernels::chunk_mma: return Family::chunk_mma;
    case AttentionKernels::sm90_pass:
    case AttentionKernels::sm90_constant_decay:
    case AttentionKernels::sm90_intra_chunk: return Family::chunk_sm90;
    case AttentionKernels::cpu_recurrent:
    case AttentionKernels::cpu_chunk: break;
  }
  fail<Error>("recurrent: a plan of {} for CUDA", kernels_name(kernels));
}

/// The gradients of a problem, or some of them, by the chunk kernels.
class ChunkBackward {
 public:
  ChunkBackward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                const GradientMemory& memory)
      : plan_(plan), r_(r), grad_o_(grad_o), grad_final_state_(grad_final_state), memory_(memory) {}

  /// Those of values and the initial state (`values`), and those of all else (`others`).
  void run(RecurrenceGradients& grads, bool values, bool others) const {
    const AttentionProblem::Gradients& wanted = plan_.problem.gradients;
    const bool sm90 = family_of(plan_.backward.kernels) == Family::chunk_sm90, gaps = sm90 && r_.group() == 1;
    if (others && wanted.q) grads.q = memory_.rows(GradientMemory::Rows::query, gaps);
    if (others && wanted.k) grads.k = memory_.rows(GradientMemory::Rows::key, gaps);
    if (values && wanted.v) grads.v = memory_.rows(GradientMemory::Rows::value, gaps);
    if (values && wanted.initial_state) grads.initial_state = GradientMemory::of_initial_state(r_);
    const bool adds_up_gates = wanted.g && !wanted.g_gamma && sm90 && chunk_sm90::adds_up_gates(plan_);
    ChunkGradients of_heads;
    if (others) {
      of_heads.q = grads.q;
      of_heads.k = per_query_head(grads.k, r_.K);
      of_heads.dgk = grads.gk;
      if (adds_up_gates) {
        of_heads.dg = grads.g;
      } else if (wanted.g || wanted.g_gamma) {
        const std::int64_t parts = plan_.backward.intra_chunk.key_parts, tile = parts * kChunkTokens,
                           sums = sm90 ? chunk_sm90::gate_sums(plan_, r_) : (r_.K + tile - 1) / tile;
        of_heads.dg = empty({sums, r_.tokens, r_.heads * parts}, {DType::float32, r_.q.device()});
      }
    }
    if (values) {
      of_heads.v = per_query_head(grads.v, r_.V);
      of_heads.dgv = grads.gv;
      of_heads.initial_state = grads.initial_state;
    }
    (sm90 ? chunk_sm90::backward : chunk_mma::backward)(plan_, r_, grad_o_, grad_final_state_, of_heads);
    if (adds_up_gates) of_heads.dg = {};
    sum_chunk_gradients(r_, std::move(of_heads), grads);
  }

 private:
  Tensor per_query_head(const Tensor& grad, std::int64_t size) const {
    if (r_.group() == 1 || !grad.defined()) return grad;
    return empty({r_.tokens, r_.heads, size}, {DType::float32, r_.q.device()});
  }

  const AttentionPlan& plan_;
  const Recurrence& r_;
  const Tensor &grad_o_, &grad_final_state_;
  const GradientMemory& memory_;
};

}  // namespace

AttentionProblem::Gpu attention_gpu(Device device) {
  return {multiprocessor_count(device), compute_capability(device), has_hopper_kernels(device)};
}

void attention_forward(const AttentionPlan& plan, Recurrence& r, const Tensor& o, const Tensor& final_state) {
  const DeviceGuard guard(r.q.device());
  switch (family_of(plan.forward.kernels)) {
    case Family::recurrent: return recurrent::forward(plan, r, o, final_state);
    case Family::chunk_mma: return chunk_mma::forward(plan, r, o, final_state);
    case Family::chunk_sm90: return chunk_sm90::forward(plan, r, o, final_state);
  }
}

SegmentEffect attention_segment(const AttentionPlan& plan, const Recurrence& r) {
  const DeviceGuard guard(r.q.device());
  switch (family_of(plan.forward.kernels)) {
    case Family::recurrent: return recurrent::segment(plan, r);
    case Family::chunk_mma: return chunk_mma::segment(plan, r);
    case Family::chunk_sm90: return chunk_sm90::segment(plan, r);
  }
  return {};
}

RecurrenceGradients attention_backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& given_grad_o,
                                       const Tensor& grad_final_state, const GradientMemory& memory) {
  const DeviceGuard guard(r.q.device());
  const AttentionProblem::Gradients& wanted = plan.problem.gradients;
  const Tensor grad_o = given_grad_o.defined() ? given_grad_o : zeros({r.tokens, r.heads, r.V}, r.q.options());
  if (family_of(plan.backward.kernels) == Family::recurrent) {
    const RecurrenceGradients grads = memory.all(r, wanted);
    recurrent::backward(plan, r, grad_o, grad_final_state, grads);
    return grads;
  }
  RecurrenceGradients grads = GradientMemory::of_gates(r, wanted);
  const ChunkBackward backward(plan, r, grad_o, grad_final_state, memory);
  if (!plan.backward.values_last) {
    backward.run(grads, true, true);
  } else {  // the value's gradient takes the memory that all else no longer needs
    if (wanted.q || wanted.k || wanted.of_key_gates()) backward.run(grads, false, true);
    if (wanted.v || wanted.initial_state) backward.run(grads, true, false);
  }
  return grads;
}

}  // namespace glade::cuda
