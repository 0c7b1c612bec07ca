#pragma once
// The common frame of the backward passes of both forms of the gated recurrence on the CPU. The state before each segment of a
// sequence is known, and the segments are processed from the last to the first.
#include <glade/ops/linear_attention/cpu/staging.h>

namespace glade::cpu {

/// A segment of one sequence for one head, restricted to the value columns of a task.
struct Segment {
  const Sequence& sequence;
  std::int64_t n, h, begin, count;
  Columns columns;

  std::int64_t end() const { return begin + count; }
};

/// The backward pass of one sequence and the heads that share one key and value head. States are transposed, [values][K], with
/// rows of whole lines. A Form is constructed from the recurrence and the gradient of o, which may be undefined, and has:
///   segment_length(r)  returns the largest number of tokens of a segment;
///   start(segment, interruption)
///                      is called once per head, with its first segment, before any differentiate();
///   differentiate(segment, dS, dk, dv, grads)
///                      turns dS, the gradient of the state after the segment, into that of the state before it; adds to dk and
///                      dv, whose rows are the tokens of the segment; stores the gradients of queries and gates; returns the sum
///                      of the gradients of the log decays.
template <class T, class Form>
class BackwardTask {
  using F = compute_t<T>;

 public:
  BackwardTask(Interruption& interruption, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state)
      : interruption_(interruption),
        r_(r),
        grad_final_state_(grad_final_state),
        length_(Form::segment_length(r)),
        rows_(padded(r.V, kLine<F>)),
        form_(r, grad_o),
        dS_(r.group() * rows_, r.K),
        dk_(length_, r.K),
        dv_(length_, r.V) {}

  void run(std::int64_t n, std::int64_t kv_head, Columns columns, const RecurrenceGradients& grads) {
    const Sequence sequence(r_, n);
    const std::int64_t first_head = kv_head * r_.group(), segments = (sequence.length + length_ - 1) / length_;
    const auto segment_of = [&](std::int64_t j, std::int64_t segment) {
      const std::int64_t begin = segment * length_;
      return Segment{sequence, n, first_head + j, begin, std::min(length_, sequence.length - begin), columns};
    };
    std::vector<double> dgamma(static_cast<std::size_t>(r_.group()), 0.0);
    dS_.clear();
    for (std::int64_t j = 0; j < r_.group(); ++j) {
      if (segments > 0 && !interruption_.requested()) form_.start(segment_of(j, 0), interruption_);
      if (grad_final_state_.defined())
        load_transposed_state(state_of(grad_final_state_, n, first_head + j), r_, columns, dS_, j * rows_);
    }
    for (std::int64_t segment = segments - 1; segment >= 0; --segment) {
      if (interruption_.requested()) return;
      dk_.clear();
      dv_.clear();
      for (std::int64_t j = 0; j < r_.group(); ++j)
        dgamma[static_cast<std::size_t>(j)] += form_.differentiate(segment_of(j, segment), dS_[j * rows_], dk_, dv_, grads);
      const auto [begin, count] = std::pair(segment * length_, std::min(length_, sequence.length - segment * length_));
      store_rows<T>(dk_, count, r_.K, grads.k, HeadRows(sequence, begin, r_.kv_heads, kv_head, r_.K));
      store_rows<T>(dv_, count, columns.size(), grads.v, HeadRows(sequence, begin, r_.kv_heads, kv_head, r_.V, columns.begin));
    }
    for (std::int64_t j = 0; j < r_.group(); ++j) {
      const std::int64_t h = first_head + j;
      if (grads.initial_state.defined()) store_transposed_state(dS_, j * rows_, r_, columns, state_of(grads.initial_state, n, h));
      if (grads.g_gamma.defined())
        grads.g_gamma.data<F>()[n * r_.heads + h] = static_cast<F>(dgamma[static_cast<std::size_t>(j)]);
    }
  }

 private:
  F* state_of(const Tensor& x, std::int64_t n, std::int64_t h) const { return x.data<F>() + (n * r_.heads + h) * r_.K * r_.V; }

  Interruption& interruption_;
  const Recurrence& r_;
  const Tensor& grad_final_state_;
  std::int64_t length_, rows_;
  Form form_;
  Rows<F> dS_;       // [head of the task][value]: gradient of the state
  Rows<F> dk_, dv_;  // sums over the heads of the task, for the tokens of a segment
};

/// Runs the backward pass with the given Form (see BackwardTask).
template <class T, class Form>
void run_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  for_each_task<compute_t<T>>(
      r, grads, [&](Interruption& interruption) { return BackwardTask<T, Form>(interruption, r, grad_o, grad_final_state); });
}

}  // namespace glade::cpu
