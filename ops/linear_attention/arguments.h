#pragma once
// The arguments of the recurrence: checks, and the form that the kernels take.
#include <glade/ops/linear_attention/kernels.h>

namespace glade::linear_attention {

/// Where the sequences lie.
struct Sequences {
  std::int64_t count, length;  ///< length: of the longest
  Tensor cu_seqlens;           ///< int64 on the query's device, or undefined
};

inline DType state_dtype(const Tensor& query) { return query.dtype() == DType::float64 ? DType::float64 : DType::float32; }

/// Checks the arguments of recurrent() against each other. Errors as there.
Sequences check(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options);

inline bool is_per_channel(const Tensor& g, const Tensor& query) { return g.defined() && g.ndim() == query.ndim(); }

/// Row-major, with per-channel gates g added to gk, and all gates in one dtype.
Recurrence canonical(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                     const Sequences& sequences);

/// The scale of outputs of heads of K key channels.
double scale_of(const RecurrentOptions& options, std::int64_t K);

/// What of a call gets a gradient, where the tape is on.
AttentionProblem::Gradients wanted_gradients(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const RecurrentOptions& options);

/// What is to be planned.
AttentionProblem problem_of(const Recurrence& r, const AttentionProblem::Gradients& gradients);
/// The same of checked arguments, none of which is copied for it.
AttentionProblem problem_of(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                            const Sequences& sequences, const AttentionProblem::Gradients& gradients);

/// The plan of a call: as the caller says, else as tuning found, else as the plan chooses (attention_module.cpp).
AttentionPlan plan_call(AttentionProblem problem, const RecurrentOptions& options);

Tensor row_major(const Tensor& x);

}  // namespace glade::linear_attention
