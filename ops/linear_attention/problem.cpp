#include <algorithm>
#include <array>

#include <glade/core/dispatch.h>
#include <glade/ops/linear_attention/arguments.h>
#include <glade/ops/linear_attention/kernels.h>

namespace glade {

void AttentionConfig::visit(tuning::Fields& f) {
  f.choice("algorithm", algorithm, {"auto", "recurrent", "chunk"});
  f.number("checkpoint_interval", checkpoint_interval);
  f.number("warps", warps);
  f.number("sequence_split", sequence_split);
}

AttentionProblem AttentionProblem::of(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const RecurrentOptions& options, tuning::Pass pass) {
  AttentionProblem p;
  p.device = query.device();
  p.dtype = query.dtype();
  p.pass = pass;
  p.packed = options.cu_seqlens.defined();
  const std::int64_t batch = query.ndim() == 4 ? query.size(0) : 1;
  p.sequences = p.packed ? options.cu_seqlens.numel() - 1 : batch;
  p.tokens = batch * query.size(-3);
  p.length = p.tokens / std::max<std::int64_t>(p.sequences, 1);
  p.heads = query.size(-2);
  p.kv_heads = key.size(-2);
  p.K = query.size(-1);
  p.V = value.size(-1);
  const bool per_channel = options.g.defined() && options.g.ndim() == query.ndim();
  p.g = options.g.defined() && !per_channel;
  p.g_gamma = options.g_gamma.defined();
  p.gk = options.gk.defined() || per_channel;
  p.gv = options.gv.defined();
  const bool sums_gates = per_channel && options.gk.defined() && p.dtype != linear_attention::state_dtype(query);
  p.float_gates = sums_gates || std::ranges::any_of(std::array{options.g, options.gk, options.gv},
                                                    [&](const Tensor& x) { return x.defined() && x.dtype() != p.dtype; });
  p.reverse = options.reverse;
  p.gpu = gpu_of(p.device);
  return p;
}

AttentionProblem::Gpu AttentionProblem::gpu_of(Device device) {
  if (device.is_cpu()) return {};
  return GLADE_DISPATCH_CUDA(attention_gpu, device);
}

RecurrenceGradients GradientMemory::of_gates(const Recurrence& r, const AttentionProblem::Gradients& wanted) {
  RecurrenceGradients grads;
  if (wanted.g) grads.g = empty_like(r.g);
  if (wanted.gk) grads.gk = empty_like(r.gk);
  if (wanted.gv) grads.gv = empty_like(r.gv);
  if (wanted.g_gamma) grads.g_gamma = empty({r.sequences, r.heads}, r.g_gamma.options());
  return grads;
}

Tensor GradientMemory::of_initial_state(const Recurrence& r) {
  return empty({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), r.q.device()});
}

RecurrenceGradients GradientMemory::all(const Recurrence& r, const AttentionProblem::Gradients& wanted) const {
  RecurrenceGradients grads = of_gates(r, wanted);
  if (wanted.q) grads.q = rows(Rows::query, false);
  if (wanted.k) grads.k = rows(Rows::key, false);
  if (wanted.v) grads.v = rows(Rows::value, false);
  if (wanted.initial_state) grads.initial_state = of_initial_state(r);
  return grads;
}

}  // namespace glade
