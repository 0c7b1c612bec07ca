// The gated linear recurrence on the CPU in chunks of tokens (chunk_staging_cpu.h): inside a chunk masked matrix products,
// between chunks the state. Everything runs in the kernels of simd_kernels.h, on operands that lie in the caches.
#include <utility>

#include <glade/ops/linear_attention/chunk_staging_cpu.h>

namespace glade::cpu {

namespace {

/// One head, forwards.
template <class T>
class ForwardTask {
  using F = compute_t<T>;

 public:
  ForwardTask(Interruption& interruption, const Recurrence& r)
      : interruption_(interruption),
        r_(r),
        K_(padded(r.K, kLine<F>)),
        chunk_(r, std::max(r.K, r.V) > 64 ? kChunk : kChunk / 2),
        state_(r.K, r.V),
        factors_(1, r.K),
        keys_(K_, kChunk),
        scores_(kChunk, kChunk),
        out_(kChunk, r.V) {}

  void run(std::int64_t n, std::int64_t h, Columns columns, const Tensor& o, const Tensor& final_state) {
    const Sequence sequence(r_, n);
    V_ = padded(columns.size(), kLine<F>);
    load_state(initial_state<F>(r_, n, h), r_, columns, state_);
    std::fill_n(factors_[0], K_, F{1});
    for (std::int64_t position = 0; position < sequence.length; position += chunk_.count) {
      if (interruption_.requested()) return;
      chunk_.load(sequence, n, h, position, sequence.length - position, columns);
      chunk_.load_queries(sequence, h, position, chunk_.count);
      if (chunk_.by_steps) {
        scale_state();
        std::fill_n(factors_[0], K_, F{1});
        simd_.forward_steps(chunk_.steps(), r_.K, V_, state_[0], state_.row(), out_[0]);
      } else {
        compute_outputs();
      }
      store_rows<T>(out_, chunk_.count, columns.size(), o, HeadRows(sequence, position, r_.heads, h, r_.V, columns.begin));
    }
    if (chunk_.per_channel) scale_state();
    store_state(state_, r_, columns, final_state.data<F>() + (n * r_.heads + h) * r_.K * r_.V);
  }

 private:
  /// The outputs of the staged chunk, whose keys are used up, and the state after it.
  void compute_outputs() {
    Rows<F>&q = chunk_.q, &k = chunk_.k, &v = chunk_.v;
    if (chunk_.per_channel) {
      simd_.multiply_elements(K_, chunk_.lead[0], factors_[0]);
      scale_state();
      std::copy_n(chunk_.trail[0], K_, factors_[0]);
    }
    simd_.transpose(chunk_.count, K_, k[0], k.row(), keys_[0], keys_.row());
    chunk_.scores(q, keys_, r_.K, scores_);
    simd_.multiply(chunk_.count, V_, r_.K, q[0], q.row(), 1, state_[0], state_.row(), out_[0], out_.row(), false);
    if (!chunk_.per_channel) {
      simd_.scale_rows(chunk_.count, V_, chunk_.from_start.data(), out_[0], out_.row());
      simd_.scale_rows(chunk_.count, K_, chunk_.to_end.data(), k[0], k.row());
      std::fill_n(factors_[0], K_, chunk_.total);
      scale_state();
    }
    chunk_.add_lower(scores_, v, V_, out_);
    simd_.multiply(r_.K, V_, chunk_.count, k[0], 1, k.row(), v[0], v.row(), state_[0], state_.row(), true);
  }

  void scale_state() { simd_.scale_rows(r_.K, V_, factors_[0], state_[0], state_.row()); }

  const SimdKernels<F>& simd_ = simd_kernels<F>();
  Interruption& interruption_;
  const Recurrence& r_;
  std::int64_t K_, V_ = 0;
  Chunk<T> chunk_;
  Rows<F> state_, factors_;  // [K][values]; factors of its rows, which are not yet in it where decays are channels'
  Rows<F> keys_;             // of the chunk, transposed
  Rows<F> scores_, out_;
};

template <class T>
void forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  const Parts<compute_t<T>> parts(r.sequences * r.heads, r.V);
  Interruption interruption;
  parallel_for(parts.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
    ForwardTask<T> task(interruption, r);
    for (std::int64_t i = first; i < last && !interruption.requested(); ++i) {
      const std::int64_t head = i / parts.parts;
      task.run(head / r.heads, head % r.heads, parts.columns(i % parts.parts), o, final_state);
    }
  });
  interruption.rethrow();
}

/// One sequence and the heads that share keys and values, backwards. States are transposed, [values][K].
template <class T>
class BackwardTask {
  using F = compute_t<T>;

 public:
  BackwardTask(Interruption& interruption, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state)
      : interruption_(interruption),
        r_(r),
        grad_o_(grad_o),
        grad_final_state_(grad_final_state),
        K_(padded(r.K, kLine<F>)),
        rows_(padded(r.V, kLine<F>)),
        segment_(std::clamp<std::int64_t>(r.length, 1, std::max(r.checkpoint_interval, kChunk))),
        chunk_(r, kChunk),
        borders_((r.length + segment_ - 1) / segment_ * r.group() * rows_, r.K),
        dS_(r.group() * rows_, r.K),
        dS_untransposed_(K_, r.V),
        keys_(K_, kChunk),
        values_(rows_, kChunk),
        scores_(kChunk, kChunk),
        dscores_(kChunk, kChunk),
        dq_(kChunk, r.K),
        dk_(kChunk, r.K),
        dk_of_state_(kChunk, r.K),
        dv_(kChunk, r.V),
        da_(kChunk, r.K),
        passing_(1, r.K),
        history_(r.gk.defined() ? (kChunk + 1) * kColumns : 0, r.K),
        segment_dk_(segment_, r.K),
        segment_dv_(segment_, r.V) {}

  void run(std::int64_t n, std::int64_t kv_head, Columns columns, const RecurrenceGradients& grads) {
    const Sequence sequence(r_, n);
    const std::int64_t segments = (sequence.length + segment_ - 1) / segment_;
    columns_ = columns;
    V_ = padded(columns.size(), kLine<F>);
    std::vector<double> dgamma(static_cast<std::size_t>(r_.group()), 0.0);
    for (std::int64_t j = 0; j < r_.group(); ++j) {
      const std::int64_t h = kv_head * r_.group() + j;
      compute_borders(sequence, n, h, j, segments);
      std::fill_n(dS_[j * rows_], rows_ * K_, F{0});
      if (grad_final_state_.defined()) load_transposed_state(state_of(grad_final_state_, n, h), r_, columns, dS_, j * rows_);
    }
    for (std::int64_t segment = segments - 1; segment >= 0; --segment) {
      if (interruption_.requested()) return;
      segment_dk_.clear();
      segment_dv_.clear();
      for (std::int64_t j = 0; j < r_.group(); ++j)
        dgamma[static_cast<std::size_t>(j)] += run_segment(sequence, n, kv_head * r_.group() + j, j, segment, grads);
      const std::int64_t begin = segment * segment_, count = std::min(segment_, sequence.length - begin);
      store_rows<T>(segment_dk_, count, r_.K, grads.k, HeadRows(sequence, begin, r_.kv_heads, kv_head, r_.K));
      store_rows<T>(segment_dv_, count, columns.size(), grads.v,
                    HeadRows(sequence, begin, r_.kv_heads, kv_head, r_.V, columns.begin));
    }
    for (std::int64_t j = 0; j < r_.group(); ++j) {
      const std::int64_t h = kv_head * r_.group() + j;
      if (grads.initial_state.defined()) store_transposed_state(dS_, j * rows_, r_, columns, state_of(grads.initial_state, n, h));
      if (grads.g_gamma.defined())
        grads.g_gamma.data<F>()[n * r_.heads + h] = static_cast<F>(dgamma[static_cast<std::size_t>(j)]);
    }
  }

 private:
  F* state_of(const Tensor& x, std::int64_t n, std::int64_t h) const { return x.data<F>() + (n * r_.heads + h) * r_.K * r_.V; }

  /// The states before every segment of head h, number j of the task.
  void compute_borders(const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t j, std::int64_t segments) {
    if (segments == 0) return;
    std::fill_n(borders_[j * rows_], rows_ * K_, F{0});
    load_transposed_state(initial_state<F>(r_, n, h), r_, columns_, borders_, j * rows_);
    for (std::int64_t segment = 0; segment + 1 < segments && !interruption_.requested(); ++segment) {
      F* state = borders_[((segment + 1) * r_.group() + j) * rows_];
      std::copy_n(borders_[(segment * r_.group() + j) * rows_], rows_ * K_, state);
      for (std::int64_t position = 0; position < segment_; position += chunk_.count) {
        chunk_.load(sequence, n, h, segment * segment_ + position, segment_ - position, columns_);
        advance(state);
      }
    }
  }

  /// From the state before the staged chunk to that after it. Changes the staged values.
  void advance(F* state) {
    if (chunk_.by_steps) {
      for (std::int64_t v = 0; v < V_; v += kColumns) simd_.advance(chunk_.steps(), v, state + v * K_);
      return;
    }
    if (chunk_.per_channel) {
      simd_.scale_columns(V_, K_, chunk_.lead[0], state, K_);
    } else {
      simd_.scale_rows(chunk_.count, V_, chunk_.to_end.data(), chunk_.v[0], chunk_.v.row());
      scale_by_total(state);
    }
    simd_.multiply(V_, K_, chunk_.count, chunk_.v[0], 1, chunk_.v.row(), chunk_.k[0], chunk_.k.row(), state, K_, true);
    if (chunk_.per_channel) simd_.scale_columns(V_, K_, chunk_.trail[0], state, K_);
  }

  /// The gradients of a segment's tokens by head h; returns the sum of those of its log decays.
  double run_segment(const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t j, std::int64_t segment,
                     const RecurrenceGradients& grads) {
    const std::int64_t begin = segment * segment_, size = std::min(segment_, sequence.length - begin);
    std::vector<std::int64_t> starts;
    for (std::int64_t position = 0; position < size; position += chunk_.count) {  // the states before its chunks
      if (starts.size() == states_.size()) states_.emplace_back(rows_, r_.K);
      F* state = states_[starts.size()][0];
      if (position == 0) {
        std::copy_n(borders_[(segment * r_.group() + j) * rows_], rows_ * K_, state);
      } else {
        std::copy_n(states_[starts.size() - 1][0], rows_ * K_, state);
        advance(state);
      }
      starts.push_back(position);
      chunk_.load(sequence, n, h, begin + position, size - position, columns_);
    }
    double total = 0;
    for (std::size_t i = starts.size(); i-- > 0;) {
      const std::int64_t position = begin + starts[i];
      if (i + 1 < starts.size()) chunk_.load(sequence, n, h, position, begin + starts[i + 1] - position, columns_);
      chunk_.load_queries(sequence, h, position, -kChunk);
      if (grad_o_.defined())
        load_rows<T>(grad_o_, HeadRows(sequence, position, r_.heads, h, r_.V, columns_.begin), chunk_.count, columns_.size(),
                     chunk_.grad_o, -kChunk);
      if (chunk_.by_steps) differentiate_steps(states_[i][0], dS_[j * rows_], starts[i]);
      else differentiate(states_[i][0], dS_[j * rows_], starts[i]);
      const HeadRows keys(sequence, position, r_.heads, h, r_.K);
      store_rows<T>(dq_, chunk_.count, r_.K, grads.q, keys, static_cast<F>(r_.scale));
      store_rows<T>(da_, chunk_.count, r_.K, grads.gk, keys);
      total += store_head_gradients<T>(da_, chunk_.count, r_, HeadRows(sequence, position, r_.heads, h, 1), grads);
    }
    return total;
  }

  /// The staged chunk, which begins at `position` of the segment, backwards: `state`, the one before it, is used up; dS goes
  /// from the gradient of the state after it to that of the state before it.
  void differentiate(F* state, F* dS, std::int64_t position) {
    const std::int64_t count = chunk_.count;
    const bool per_channel = chunk_.per_channel;
    Rows<F>&q = chunk_.q, &k = chunk_.k, &v = chunk_.v, &grad_o = chunk_.grad_o;
    if (per_channel) {
      simd_.scale_columns(V_, K_, chunk_.lead[0], state, K_);
      simd_.scale_columns(V_, K_, chunk_.trail[0], dS, K_);
    }
    simd_.transpose(count, K_, k[0], k.row(), keys_[0], keys_.row());
    simd_.transpose(count, V_, v[0], v.row(), values_[0], values_.row());
    simd_.transpose(V_, K_, dS, K_, dS_untransposed_[0], dS_untransposed_.row());
    chunk_.scores(q, keys_, r_.K, scores_);
    chunk_.scores(grad_o, values_, V_, dscores_);
    for (std::int64_t t = 0; t < count; ++t)  // a token's product with itself knows no decay: apart
      diagonal_[static_cast<std::size_t>(t)] = std::exchange(dscores_[t][t], F{0});

    simd_.multiply(count, V_, r_.K, k[0], k.row(), 1, dS_untransposed_[0], dS_untransposed_.row(), dv_[0], dv_.row(), false);
    if (!per_channel) simd_.scale_rows(count, V_, chunk_.to_end.data(), dv_[0], dv_.row());
    chunk_.multiply_lower_transposed(scores_, grad_o, V_, dv_, true);
    add(count * dv_.row(), dv_[0], segment_dv_[position]);

    chunk_.multiply_lower_transposed(dscores_, q, K_, dk_, false);
    if (!per_channel) {
      simd_.scale_rows(count, V_, chunk_.from_start.data(), grad_o[0], grad_o.row());
      simd_.scale_rows(count, V_, chunk_.to_end.data(), v[0], v.row());
    }
    simd_.multiply(count, K_, V_, grad_o[0], grad_o.row(), 1, state, K_, dq_[0], dq_.row(), false);
    chunk_.add_lower(dscores_, k, K_, dq_);
    simd_.multiply(count, K_, V_, v[0], v.row(), 1, dS, K_, dk_of_state_[0], dk_of_state_.row(), false);

    // What the log decays of token t weigh: the products inside the chunk from t on, the keys before t that reach the state
    // after the chunk, and the state that passes the whole of it.
    simd_.sum_products(V_, K_, state, dS, passing_[0]);
    if (!per_channel) simd_.scale_rows(1, K_, &chunk_.total, passing_[0], K_);
    simd_.gate_gradients(count, K_, q[0], dq_[0], k[0], dk_[0], dk_of_state_[0], passing_[0], da_[0]);

    if (!per_channel) scale_by_total(dS);
    simd_.multiply(V_, K_, count, grad_o[0], 1, grad_o.row(), q[0], q.row(), dS, K_, true);
    if (per_channel) simd_.scale_columns(V_, K_, chunk_.lead[0], dS, K_);
    simd_.complete_gradients(count, K_, q[0], k[0], diagonal_.data(), per_channel ? chunk_.decay[0] : nullptr, dk_of_state_[0],
                             dq_[0], dk_[0], segment_dk_[position]);
  }

  /// The same for a chunk that is taken step by step.
  void differentiate_steps(const F* state, F* dS, std::int64_t position) {
    dq_.clear();
    da_.clear();
    const StepGradients<F> sums{dq_[0], segment_dk_[position], da_[0], segment_dv_[position], nullptr};
    for (std::int64_t v = 0; v < V_; v += kColumns)
      simd_.backward_steps(chunk_.steps(), v, state + v * K_, history_[0], dS + v * K_, sums);
  }

  void scale_by_total(F* state) {
    std::array<F, kLine<F>> totals;
    totals.fill(chunk_.total);
    simd_.scale_columns(V_ * K_ / kLine<F>, kLine<F>, totals.data(), state, kLine<F>);
  }
  static void add(std::int64_t size, const F* x, F* sums) {
#pragma omp simd
    for (std::int64_t i = 0; i < size; ++i) sums[i] += x[i];
  }

  const SimdKernels<F>& simd_ = simd_kernels<F>();
  Interruption& interruption_;
  const Recurrence& r_;
  const Tensor& grad_o_;
  const Tensor& grad_final_state_;
  Columns columns_{};
  std::int64_t V_ = 0, K_, rows_, segment_;
  Chunk<T> chunk_;
  Rows<F> borders_;               // [segment][head of the task][value]: states
  std::vector<Rows<F>> states_;   // before the chunks of a segment
  Rows<F> dS_, dS_untransposed_;  // [head of the task][value], [K]
  Rows<F> keys_, values_;         // of the chunk, transposed
  Rows<F> scores_, dscores_;
  Rows<F> dq_, dk_, dk_of_state_, dv_, da_, passing_;
  std::array<F, kChunk> diagonal_;
  Rows<F> history_;  // of a chunk that is taken step by step
  Rows<F> segment_dk_, segment_dv_;
};

template <class T>
void backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  for_each_part<compute_t<T>>(
      r, grads, [&](Interruption& interruption) { return BackwardTask<T>(interruption, r, grad_o, grad_final_state); });
}

}  // namespace

void chunk_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) { forward<T>(r, o, final_state); });
}

void chunk_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) { backward<T>(r, grad_o, grad_final_state, grads); });
}

}  // namespace glade::cpu
