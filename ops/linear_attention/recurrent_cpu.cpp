// The gated linear recurrence on the CPU, token by token. Rows of some tokens are staged (converted to the compute type, gates
// turned into decays) and the state is stepped over them in blocks of values (simd_kernels.h): forward with the values along
// the vector lanes, so that an output is no sum over lanes; backward with the keys along them, as three of its four sums are
// over values. Backward keeps the state before every checkpoint_interval tokens and recomputes those in between.
#include <glade/ops/linear_attention/staging_cpu.h>

namespace glade::cpu {

namespace {

/// What one head reads in some tokens, and the columns of its values that a task takes.
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
    load_channel_gates<T>(r_, sequence, h, position, count, shared_.data(), a_);
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
  std::vector<F> shared_;  // log decays of the head
};

template <class T>
void forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  using F = compute_t<T>;
  constexpr std::int64_t kStagedTokens = 64;
  const std::int64_t capacity = std::clamp<std::int64_t>(r.length, 1, kStagedTokens);
  const Parts<F> parts(r.sequences * r.heads, r.V);
  Interruption interruption;
  parallel_for(parts.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
    Staging<T> staging(r, capacity);
    Rows<F> state(r.K, r.V), out(capacity, r.V);
    for (std::int64_t task = first; task < last; ++task) {
      const std::int64_t head = task / parts.parts, n = head / r.heads, h = head % r.heads;
      const Columns columns = parts.columns(task % parts.parts);
      const Sequence sequence(r, n);
      load_state(initial_state<F>(r, n, h), r, columns, state);
      for (std::int64_t position = 0; position < sequence.length; position += capacity) {
        if (interruption.requested()) return;
        const std::int64_t count = std::min(capacity, sequence.length - position);
        const StagedSteps<F> tokens = staging.load(sequence, n, h, position, count, columns, {});
        simd_kernels<F>().forward_steps(tokens, r.K, padded(columns.size(), kLine<F>), state[0], state.row(), out[0]);
        store_rows<T>(out, count, columns.size(), o, HeadRows(sequence, position, r.heads, h, r.V, columns.begin));
      }
      store_state(state, r, columns, final_state.data<F>() + head * r.K * r.V);
    }
  });
  interruption.rethrow();
}

/// One sequence and the heads that share keys and values, backwards.
template <class T>
class BackwardTask {
  using F = compute_t<T>;

 public:
  BackwardTask(Interruption& interruption, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state)
      : interruption_(interruption),
        r_(r),
        grad_o_(grad_o),
        grad_final_state_(grad_final_state),
        interval_(std::clamp<std::int64_t>(r.length, 1, r.checkpoint_interval)),
        rows_(padded(r.V, kColumns)),
        staging_(r, interval_),
        borders_((r.length + interval_ - 1) / interval_ * r.group() * rows_, r.K),
        history_((interval_ + 1) * kColumns, r.K),
        dS_(r.group() * rows_, r.K),
        dq_(interval_, r.K),
        dk_(interval_, r.K),
        da_(interval_, r.K),
        dv_(interval_, r.V),
        db_(interval_, r.V) {}

  void run(std::int64_t n, std::int64_t kv_head, Columns columns, const RecurrenceGradients& grads) {
    const Sequence sequence(r_, n);
    const std::int64_t first_head = kv_head * r_.group(), segments = (sequence.length + interval_ - 1) / interval_;
    std::vector<double> dgamma(static_cast<std::size_t>(r_.group()), 0.0);
    dS_.clear();
    for (std::int64_t j = 0; j < r_.group(); ++j) {
      compute_borders(sequence, n, first_head + j, j, segments, columns);
      if (grad_final_state_.defined())
        load_transposed_state(state_of(grad_final_state_, n, first_head + j), r_, columns, dS_, j * rows_);
    }
    for (std::int64_t segment = segments - 1; segment >= 0; --segment) {
      if (interruption_.requested()) return;
      const std::int64_t position = segment * interval_, count = std::min(interval_, sequence.length - position);
      dk_.clear();
      dv_.clear();
      for (std::int64_t j = 0; j < r_.group(); ++j) {
        const std::int64_t h = first_head + j;
        const StagedSteps<F> tokens = staging_.load(sequence, n, h, position, count, columns, grad_o_);
        dq_.clear();
        da_.clear();
        const StepGradients<F> sums{dq_[0], dk_[0], da_[0], dv_[0], db_[0]};
        for (std::int64_t v = 0; v < columns.size(); v += kColumns)
          simd_kernels<F>().backward_steps(tokens, v, borders_[(segment * r_.group() + j) * rows_ + v], history_[0],
                                           dS_[j * rows_ + v], sums);
        const HeadRows keys(sequence, position, r_.heads, h, r_.K);
        store_rows<T>(dq_, count, r_.K, grads.q, keys, static_cast<F>(r_.scale));
        store_rows<T>(da_, count, r_.K, grads.gk, keys);
        store_rows<T>(db_, count, columns.size(), grads.gv, HeadRows(sequence, position, r_.heads, h, r_.V, columns.begin));
        dgamma[static_cast<std::size_t>(j)] +=
            store_head_gradients<T>(da_, count, r_, HeadRows(sequence, position, r_.heads, h, 1), grads);
      }
      store_rows<T>(dk_, count, r_.K, grads.k, HeadRows(sequence, position, r_.kv_heads, kv_head, r_.K));
      store_rows<T>(dv_, count, columns.size(), grads.v, HeadRows(sequence, position, r_.kv_heads, kv_head, r_.V, columns.begin));
    }
    for (std::int64_t j = 0; j < r_.group(); ++j) {
      const std::int64_t head = first_head + j;
      if (grads.initial_state.defined())
        store_transposed_state(dS_, j * rows_, r_, columns, state_of(grads.initial_state, n, head));
      if (grads.g_gamma.defined())
        grads.g_gamma.data<F>()[n * r_.heads + head] = static_cast<F>(dgamma[static_cast<std::size_t>(j)]);
    }
  }

 private:
  F* state_of(const Tensor& x, std::int64_t n, std::int64_t h) const { return x.data<F>() + (n * r_.heads + h) * r_.K * r_.V; }

  /// The states before every segment of head h, number j of the task.
  void compute_borders(const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t j, std::int64_t segments,
                       Columns columns) {
    if (segments == 0) return;
    load_transposed_state(initial_state<F>(r_, n, h), r_, columns, borders_, j * rows_);
    for (std::int64_t segment = 0; segment + 1 < segments && !interruption_.requested(); ++segment) {
      const StagedSteps<F> tokens = staging_.load(sequence, n, h, segment * interval_, interval_, columns, {});
      F* next = borders_[((segment + 1) * r_.group() + j) * rows_];
      std::copy_n(borders_[(segment * r_.group() + j) * rows_], rows_ * borders_.row(), next);
      for (std::int64_t v = 0; v < columns.size(); v += kColumns) simd_kernels<F>().advance(tokens, v, next + v * borders_.row());
    }
  }

  Interruption& interruption_;
  const Recurrence& r_;
  const Tensor& grad_o_;
  const Tensor& grad_final_state_;
  std::int64_t interval_, rows_;
  Staging<T> staging_;
  Rows<F> borders_;                 // [segment][head of the task][value]: states
  Rows<F> history_;                 // [token][kColumns]: states of one block of columns
  Rows<F> dS_;                      // [head of the task][value]
  Rows<F> dq_, dk_, da_, dv_, db_;  // gradients of the staged tokens
};

template <class T>
void backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  for_each_part<compute_t<T>>(
      r, grads, [&](Interruption& interruption) { return BackwardTask<T>(interruption, r, grad_o, grad_final_state); });
}

}  // namespace

void recurrent_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) { forward<T>(r, o, final_state); });
}

void recurrent_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const RecurrenceGradients& grads) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) { backward<T>(r, grad_o, grad_final_state, grads); });
}

}  // namespace glade::cpu
