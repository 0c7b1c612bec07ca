// The chunk form of the gated linear recurrence on the CPU (cpu/chunk_staging.h): masked matrix products within a chunk, and the
// state between chunks. All arithmetic runs in the kernels of cpu/simd_kernels.h, on staged operands that stay in the caches.
#include <utility>

#include <glade/ops/linear_attention/cpu/backward.h>
#include <glade/ops/linear_attention/cpu/chunk_staging.h>
#include <glade/ops/linear_attention/cpu/kernels.h>

namespace glade::cpu {

namespace {

/// The forward pass of one head of one sequence, for some columns of its values.
template <class T>
class ForwardTask {
  using F = compute_t<T>;

 public:
  /// By chunks of at most `tokens` tokens.
  ForwardTask(Interruption& interruption, const Recurrence& r, std::int64_t tokens)
      : interruption_(interruption),
        r_(r),
        K_(padded(r.K, kLine<F>)),
        interval_(r.checkpoint_interval),
        chunk_(r, tokens, tokens),
        state_(K_, r.V),
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
      if (r_.kept.defined() && position % interval_ == 0)
        keep_state(kept_state<F>(r_, sequence, n, h, position) + columns.begin * K_);
      const std::int64_t until = std::min(sequence.length, (position / interval_ + 1) * interval_);
      chunk_.load(sequence, n, h, position, until - position, columns);
      chunk_.load_queries(sequence, h, position);
      if (chunk_.by_steps) {
        scale_state();
        std::fill_n(factors_[0], K_, F{1});
        simd_.forward_steps(chunk_.steps(), r_.K, V_, state_[0], state_.row(), out_[0]);
      } else {
        process_chunk(o.defined());
      }
      store_rows<T>(out_, chunk_.count, columns.size(), o, HeadRows(sequence, position, r_.heads, h, r_.V, columns.begin));
    }
    if (!final_state.defined()) return;
    if (chunk_.per_channel) scale_state();
    store_state(state_, r_, columns, final_state.data<F>() + (n * r_.heads + h) * r_.K * r_.V);
  }

 private:
  /// Computes the state after the staged chunk, and its outputs if they are wanted. Overwrites the staged keys.
  void process_chunk(bool with_outputs) {
    Rows<F>&q = chunk_.q, &k = chunk_.k, &v = chunk_.v;
    if (chunk_.per_channel) {
      simd_.multiply_elements(K_, chunk_.lead[0], factors_[0]);
      scale_state();
      std::copy_n(chunk_.trail[0], K_, factors_[0]);
    }
    if (with_outputs) {
      simd_.transpose(chunk_.count, K_, k[0], k.row(), keys_[0], keys_.row());
      chunk_.scores(q, keys_, r_.K, scores_);
      compute_outputs(Chunk<T>::kStrip);
      // A value that is not finite makes the last row not finite too, as that depends on all values.
      if (!all_finite(V_, out_[chunk_.count - 1])) compute_outputs(1);
    }
    if (chunk_.shared) {
      simd_.scale_rows(chunk_.count, K_, chunk_.to_end.data(), k[0], k.row());
      std::fill_n(factors_[0], K_, chunk_.total);
      scale_state();
    }
    simd_.multiply(r_.K, V_, chunk_.count, k[0], 1, k.row(), v[0], v.row(), state_[0], state_.row(), true);
  }

  void compute_outputs(std::int64_t strip) {
    const Rows<F>& q = chunk_.q;
    simd_.multiply(chunk_.count, V_, r_.K, q[0], q.row(), 1, state_[0], state_.row(), out_[0], out_.row(), false);
    if (chunk_.shared) simd_.scale_rows(chunk_.count, V_, chunk_.from_start.data(), out_[0], out_.row());
    chunk_.add_lower(scores_, chunk_.v, V_, out_, strip);
  }

  static bool all_finite(std::int64_t size, const F* x) {
    F zeros = 0;
#pragma omp simd reduction(+ : zeros)
    for (std::int64_t i = 0; i < size; ++i) zeros += x[i] * 0;
    return zeros == 0;
  }

  void keep_state(F* kept) const {
    simd_.transpose(K_, V_, state_[0], state_.row(), kept, K_);
    if (chunk_.per_channel) simd_.scale_columns(V_, K_, factors_[0], kept, K_);
  }

  void scale_state() { simd_.scale_rows(r_.K, V_, factors_[0], state_[0], state_.row()); }

  const SimdKernels<F>& simd_ = simd_kernels<F>();
  Interruption& interruption_;
  const Recurrence& r_;
  std::int64_t K_, V_ = 0, interval_;
  Chunk<T> chunk_;
  Rows<F> state_, factors_;  // [K][values]; pending factors of its rows, if gates are per channel
  Rows<F> keys_;             // the keys of the chunk, transposed
  Rows<F> scores_, out_;
};

template <class T>
void forward(const Recurrence& r, std::int64_t tokens, const Tensor& o, const Tensor& final_state) {
  const ColumnSplit<compute_t<T>> split(r.sequences * r.heads, r.V);
  Interruption interruption;
  parallel_for(split.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
    ForwardTask<T> task(interruption, r, tokens);
    for (std::int64_t i = first; i < last && !interruption.requested(); ++i) {
      const std::int64_t head = i / split.blocks;
      task.run(head / r.heads, head % r.heads, split.columns(i % split.blocks), o, final_state);
    }
    publish_rows();
  });
  interruption.rethrow();
}

/// A Form of BackwardTask (cpu/backward.h) that processes a segment in chunks.
template <class T>
class BackwardChunks {
  using F = compute_t<T>;

 public:
  static std::int64_t segment_length(const Recurrence& r) { return std::clamp<std::int64_t>(r.length, 1, r.checkpoint_interval); }

  BackwardChunks(const Recurrence& r, const Tensor& grad_o)
      : r_(r),
        grad_o_(grad_o),
        K_(padded(r.K, kLine<F>)),
        rows_(padded(r.V, kLine<F>)),
        chunk_(r, kChunk, -kChunk),
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
        history_(r.gk.defined() ? (kChunk + 1) * kColumns : 0, r.K) {}

  void start(const Segment&, Interruption&) {}

  double differentiate(const Segment& s, F* dS, Rows<F>& dk, Rows<F>& dv, const RecurrenceGradients& grads) {
    V_ = padded(s.columns.size(), kLine<F>);
    const F* const kept = kept_state<F>(r_, s.sequence, s.n, s.h, s.begin) + s.columns.begin * K_;
    std::vector<std::int64_t> starts;
    for (std::int64_t position = s.begin; position < s.end(); position += chunk_.count) {  // computes states before chunks
      if (starts.size() == states_.size()) states_.emplace_back(rows_, r_.K);
      F* const before = states_[starts.size()][0];
      std::copy_n(starts.empty() ? kept : states_[starts.size() - 1][0], V_ * K_, before);
      if (!starts.empty()) advance(before);
      starts.push_back(position);
      chunk_.load(s.sequence, s.n, s.h, position, s.end() - position, s.columns);
    }
    double total = 0;
    for (std::size_t i = starts.size(); i-- > 0;) {
      const std::int64_t position = starts[i];
      if (i + 1 < starts.size()) chunk_.load(s.sequence, s.n, s.h, position, starts[i + 1] - position, s.columns);
      chunk_.load_queries(s.sequence, s.h, position);
      if (grad_o_.defined())
        load_rows<T>(grad_o_, HeadRows(s.sequence, position, r_.heads, s.h, r_.V, s.columns.begin), chunk_.count,
                     s.columns.size(), chunk_.grad_o, -kChunk);
      F *const chunk_dk = dk[position - s.begin], *const chunk_dv = dv[position - s.begin];
      if (chunk_.by_steps) differentiate_steps(states_[i][0], dS, chunk_dk, chunk_dv);
      else differentiate_chunk(states_[i][0], dS, chunk_dk, chunk_dv);
      const HeadRows keys(s.sequence, position, r_.heads, s.h, r_.K);
      store_rows<T>(dq_, chunk_.count, r_.K, grads.q, keys, static_cast<F>(r_.scale));
      store_rows<T>(da_, chunk_.count, r_.K, grads.gk, keys);
      total += store_head_gradients<T>(da_, chunk_.count, r_, HeadRows(s.sequence, position, r_.heads, s.h, 1), grads);
    }
    return total;
  }

 private:
  /// Turns the state before the staged chunk into the state after it. Overwrites the staged values.
  void advance(F* state) {
    if (chunk_.by_steps) {
      for (std::int64_t v = 0; v < V_; v += kColumns) simd_.advance(chunk_.steps(), v, state + v * K_);
      return;
    }
    if (chunk_.per_channel) {
      simd_.scale_columns(V_, K_, chunk_.lead[0], state, K_);
    } else if (chunk_.shared) {
      simd_.scale_rows(chunk_.count, V_, chunk_.to_end.data(), chunk_.v[0], chunk_.v.row());
      scale_by_total(state);
    }
    simd_.multiply(V_, K_, chunk_.count, chunk_.v[0], 1, chunk_.v.row(), chunk_.k[0], chunk_.k.row(), state, K_, true);
    if (chunk_.per_channel) simd_.scale_columns(V_, K_, chunk_.trail[0], state, K_);
  }

  /// Differentiates the staged chunk. `state` is the state before the chunk and is overwritten. dS is the gradient of the state
  /// after the chunk and becomes that of the state before it. Adds the gradients of the keys and values to dk and dv.
  void differentiate_chunk(F* state, F* dS, F* dk, F* dv) {
    const std::int64_t count = chunk_.count;
    const bool per_channel = chunk_.per_channel, shared = chunk_.shared;
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
    for (std::int64_t t = 0; t < count; ++t)  // kept separately: a token's product with itself has no decay
      diagonal_[static_cast<std::size_t>(t)] = std::exchange(dscores_[t][t], F{0});

    simd_.multiply(count, V_, r_.K, k[0], k.row(), 1, dS_untransposed_[0], dS_untransposed_.row(), shared ? dv_[0] : dv,
                   dv_.row(), !shared);
    if (shared) {
      simd_.scale_rows(count, V_, chunk_.to_end.data(), dv_[0], dv_.row());
      add(count * dv_.row(), dv_[0], dv);
    }
    chunk_.multiply_lower_transposed(scores_, grad_o, V_, dv, true);

    chunk_.multiply_lower_transposed(dscores_, q, K_, dk_[0], false);
    if (shared) {
      simd_.scale_rows(count, V_, chunk_.from_start.data(), grad_o[0], grad_o.row());
      simd_.scale_rows(count, V_, chunk_.to_end.data(), v[0], v.row());
    }
    simd_.multiply(count, K_, V_, grad_o[0], grad_o.row(), 1, state, K_, dq_[0], dq_.row(), false);
    chunk_.add_lower(dscores_, k, K_, dq_);
    simd_.multiply(count, K_, V_, v[0], v.row(), 1, dS, K_, dk_of_state_[0], dk_of_state_.row(), false);

    // The log decays of token t affect the products within the chunk from t on, the keys before t that contribute to the state
    // after the chunk, and the state before the chunk that contributes to the state after it.
    if (per_channel || shared) {
      simd_.sum_products(V_, K_, state, dS, passing_[0]);
      if (shared) simd_.scale_rows(1, K_, &chunk_.total, passing_[0], K_);
      simd_.gate_gradients(count, K_, q[0], dq_[0], k[0], dk_[0], dk_of_state_[0], passing_[0], da_[0]);
    }

    if (shared) scale_by_total(dS);
    simd_.multiply(V_, K_, count, grad_o[0], 1, grad_o.row(), q[0], q.row(), dS, K_, true);
    if (per_channel) simd_.scale_columns(V_, K_, chunk_.lead[0], dS, K_);
    simd_.complete_gradients(count, K_, q[0], k[0], diagonal_.data(), per_channel ? chunk_.decay[0] : nullptr, dk_of_state_[0],
                             dq_[0], dk_[0], dk);
  }

  /// Differentiates a staged chunk of large decay step by step, with the same effect on dS, dk and dv.
  void differentiate_steps(const F* state, F* dS, F* dk, F* dv) {
    dq_.clear();
    da_.clear();
    const StepGradients<F> sums{dq_[0], dk, da_[0], dv, nullptr};
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
  const Recurrence& r_;
  const Tensor& grad_o_;
  std::int64_t K_, rows_, V_ = 0;
  Chunk<T> chunk_;
  std::vector<Rows<F>> states_;  // the states before the chunks of a segment, [values][K]
  Rows<F> dS_untransposed_;      // [K][values]
  Rows<F> keys_, values_;        // those of the chunk, transposed
  Rows<F> scores_, dscores_;
  Rows<F> dq_, dk_, dk_of_state_, dv_, da_, passing_;
  std::array<F, kChunk> diagonal_;
  Rows<F> history_;  // the states of a chunk that is processed step by step
};

}  // namespace

Tensor allocate_chunk_states(const Recurrence& r) {
  const auto padded_size = [&](std::int64_t size) {
    return r.state_dtype() == DType::float64 ? padded(size, kLine<double>) : padded(size, kLine<float>);
  };
  return empty({(r.tokens / r.checkpoint_interval + r.sequences) * r.heads, padded_size(r.V), padded_size(r.K)},
               {r.state_dtype(), kCPU});
}

void chunk_forward(const Recurrence& r, std::int64_t tokens, const Tensor& o, const Tensor& final_state) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) { forward<T>(r, tokens, o, final_state); });
}

void chunk_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  visit_floating(r.q.dtype(),
                 [&]<class T>(TypeTag<T>) { run_backward<T, BackwardChunks<T>>(r, grad_o, grad_final_state, grads); });
}

}  // namespace glade::cpu
