// The recurrent form of the gated linear recurrence on the CPU, token by token. A task stages the rows of some tokens: it
// converts them to the compute type and turns gates into decays. It then steps the state over these tokens in blocks of values
// (cpu/simd_kernels.h). The forward pass puts the values along the vector lanes, so that no output is a sum over lanes. The
// backward pass puts the keys along the lanes, because three of its four sums run over values. It keeps one state per
// checkpoint_interval tokens and recomputes those in between.
#include <glade/ops/linear_attention/cpu/backward.h>
#include <glade/ops/linear_attention/cpu/kernels.h>

namespace glade::cpu {

namespace {

/// Staging buffers for the operands of one head at some tokens, restricted to the value columns of a task.
template <class T>
class Staging {
  using F = compute_t<T>;

 public:
  Staging(const Recurrence& r, std::int64_t tokens)
      : r_(r),
        q_(tokens, r.K),
        k_(tokens, r.K),
        a_(tokens, r.K),
        v_(tokens, r.V),
        b_(tokens, r.V),
        grad_o_(tokens, r.V),
        shared_(static_cast<std::size_t>(tokens)) {}

  /// Stages `count` tokens of head h from `position` on.
  StagedSteps<F> load(const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t position, std::int64_t count,
                      Columns columns, const Tensor& grad_o) {
    const HeadRows keys(sequence, position, r_.heads, h, r_.K), values(sequence, position, r_.heads, h, r_.V, columns.begin);
    const std::int64_t kv_head = h / r_.group();
    load_rows<T>(r_.q, keys, count, r_.K, q_, count, static_cast<F>(r_.scale));
    load_rows<T>(r_.k, HeadRows(sequence, position, r_.kv_heads, kv_head, r_.K), count, r_.K, k_, count);
    load_rows<T>(r_.v, HeadRows(sequence, position, r_.kv_heads, kv_head, r_.V, columns.begin), count, columns.size(), v_, count);
    load_head_gates<T>(r_, sequence, n, h, position, count, shared_.data());
    load_channel_gates<T>(r_, sequence, h, position, count, shared_.data(), a_, count);
    simd_kernels<F>().exponentials(count * a_.row(), a_[0]);
    if (r_.gv.defined()) {
      load_rows<T>(r_.gv, values, count, columns.size(), b_, count);
      simd_kernels<F>().exponentials(count * b_.row(), b_[0]);
    }
    if (grad_o.defined()) load_rows<T>(grad_o, values, count, columns.size(), grad_o_, count);
    return {q_[0], k_[0], a_[0], v_[0], r_.gv.defined() ? b_[0] : nullptr, grad_o_[0], count, k_.row(), v_.row()};
  }

 private:
  const Recurrence& r_;
  Rows<F> q_, k_, a_, v_, b_, grad_o_;
  std::vector<F> shared_;  // log decays that the channels of the head share
};

template <class T>
void forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  using F = compute_t<T>;
  constexpr std::int64_t kStagedTokens = 64;
  const std::int64_t capacity = std::clamp<std::int64_t>(r.length, 1, kStagedTokens);
  const ColumnSplit<F> split(r.sequences * r.heads, r.V);
  Interruption interruption;
  parallel_for(split.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
    Staging<T> staging(r, capacity);
    Rows<F> state(r.K, r.V), out(capacity, r.V);
    for (std::int64_t task = first; task < last; ++task) {
      const std::int64_t head = task / split.blocks, n = head / r.heads, h = head % r.heads;
      const Columns columns = split.columns(task % split.blocks);
      const Sequence sequence(r, n);
      load_state(initial_state<F>(r, n, h), r, columns, state);
      for (std::int64_t position = 0; position < sequence.length; position += capacity) {
        if (interruption.requested()) return;
        const std::int64_t count = std::min(capacity, sequence.length - position);
        const StagedSteps<F> tokens = staging.load(sequence, n, h, position, count, columns, {});
        simd_kernels<F>().forward_steps(tokens, r.K, padded(columns.size(), kLine<F>), state[0], state.row(), out[0]);
        store_rows<T>(out, count, columns.size(), o, HeadRows(sequence, position, r.heads, h, r.V, columns.begin));
      }
      if (final_state.defined()) store_state(state, r, columns, final_state.data<F>() + head * r.K * r.V);
    }
    publish_rows();
  });
  interruption.rethrow();
}

/// A Form of BackwardTask (cpu/backward.h) that processes a segment token by token.
template <class T>
class BackwardSteps {
  using F = compute_t<T>;

 public:
  static std::int64_t segment_length(const Recurrence& r) { return std::clamp<std::int64_t>(r.length, 1, r.checkpoint_interval); }

  BackwardSteps(const Recurrence& r, const Tensor& grad_o)
      : r_(r),
        grad_o_(grad_o),
        rows_(padded(r.V, kLine<F>)),
        staging_(r, segment_length(r)),
        boundary_states_((r.length + segment_length(r) - 1) / segment_length(r) * r.group() * rows_, r.K),
        history_((segment_length(r) + 1) * kColumns, r.K),
        dq_(segment_length(r), r.K),
        da_(segment_length(r), r.K),
        db_(segment_length(r), r.V) {}

  /// Computes the states before all segments of a head, given the first segment.
  void start(Segment s, Interruption& interruption) {
    std::fill_n(state_before(s), rows_ * boundary_states_.row(), F{0});  // also the rows that only an earlier task used
    load_transposed_state(initial_state<F>(r_, s.n, s.h), r_, s.columns, boundary_states_, boundary_row(s));
    while (s.end() < s.sequence.length && !interruption.requested()) {
      const StagedSteps<F> tokens = staging_.load(s.sequence, s.n, s.h, s.begin, s.count, s.columns, {});
      const F* const before = state_before(s);
      s.begin = s.end();
      F* const state = state_before(s);
      std::copy_n(before, rows_ * boundary_states_.row(), state);
      for (std::int64_t v = 0; v < s.columns.size(); v += kColumns)
        simd_kernels<F>().advance(tokens, v, state + v * tokens.key_row);
    }
  }

  double differentiate(const Segment& s, F* dS, Rows<F>& dk, Rows<F>& dv, const RecurrenceGradients& grads) {
    const F* const state = state_before(s);
    const StagedSteps<F> tokens = staging_.load(s.sequence, s.n, s.h, s.begin, s.count, s.columns, grad_o_);
    dq_.clear();
    da_.clear();
    const StepGradients<F> sums{dq_[0], dk[0], da_[0], dv[0], db_[0]};
    for (std::int64_t v = 0; v < s.columns.size(); v += kColumns)
      simd_kernels<F>().backward_steps(tokens, v, state + v * tokens.key_row, history_[0], dS + v * tokens.key_row, sums);
    const HeadRows keys(s.sequence, s.begin, r_.heads, s.h, r_.K);
    store_rows<T>(dq_, s.count, r_.K, grads.q, keys, static_cast<F>(r_.scale));
    store_rows<T>(da_, s.count, r_.K, grads.gk, keys);
    store_rows<T>(db_, s.count, s.columns.size(), grads.gv, HeadRows(s.sequence, s.begin, r_.heads, s.h, r_.V, s.columns.begin));
    return store_head_gradients<T>(da_, s.count, r_, HeadRows(s.sequence, s.begin, r_.heads, s.h, 1), grads);
  }

 private:
  std::int64_t boundary_row(const Segment& s) const {
    return (s.begin / segment_length(r_) * r_.group() + s.h % r_.group()) * rows_;
  }
  F* state_before(const Segment& s) { return boundary_states_[boundary_row(s)]; }

  const Recurrence& r_;
  const Tensor& grad_o_;
  std::int64_t rows_;
  Staging<T> staging_;
  Rows<F> boundary_states_;  // [segment][head of the task][value]: states before the segments
  Rows<F> history_;          // [token][kColumns]: states of one block of kColumns columns
  Rows<F> dq_, da_, db_;     // gradients of the staged tokens
};

}  // namespace

void recurrent_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) { forward<T>(r, o, final_state); });
}

void recurrent_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const RecurrenceGradients& grads) {
  visit_floating(r.q.dtype(),
                 [&]<class T>(TypeTag<T>) { run_backward<T, BackwardSteps<T>>(r, grad_o, grad_final_state, grads); });
}

}  // namespace glade::cpu
