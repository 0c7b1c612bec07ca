// The gated linear recurrence on the CPU in chunks of tokens (chunk_staging_cpu.h): inside a chunk masked matrix products,
// between chunks the state. The products run in the kernels of simd_kernels.h, on operands that lie in the caches.
#include <glade/ops/linear_attention/chunk_staging_cpu.h>

namespace glade::cpu {

namespace {

template <class T>
void forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  using F = compute_t<T>;
  const SimdKernels<F>& simd = simd_kernels<F>();
  const Parts<F> parts(r.sequences * r.heads, r.V);
  const std::int64_t K = padded(r.K, kLine<F>);
  parallel_for(parts.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
    Chunk<T> chunk(r);
    Rows<F> keys(K, kChunk), scores(kChunk, kChunk), state(r.K, r.V), out(kChunk, r.V), pending(1, r.K);
    for (std::int64_t task = first; task < last; ++task) {
      const std::int64_t head = task / parts.parts, n = head / r.heads, h = head % r.heads;
      const Columns columns = parts.columns(task % parts.parts);
      const std::int64_t V = padded(columns.size(), kLine<F>);
      const Sequence sequence(r, n);
      load_state(initial_state<F>(r, n, h), r, columns, state);
      std::fill_n(pending[0], r.K, F{1});  // factors of the state that are not yet in it
      for (std::int64_t position = 0; position < sequence.length; position += chunk.count) {
        chunk.load(sequence, n, h, position, sequence.length - position, columns, true);
        if (chunk.per_channel)
          for (std::int64_t i = 0; i < r.K; ++i) scale_row(state[i], pending[0][i] * chunk.lead[0][i], V);
        simd.transpose(chunk.count, K, chunk.k[0], chunk.k.row(), keys[0], keys.row());
        chunk.scores(chunk.q, keys, r.K, scores);
        simd.multiply(chunk.count, V, r.K, chunk.q[0], chunk.q.row(), 1, state[0], state.row(), out[0], out.row(), false);
        if (chunk.per_channel) {
          std::copy_n(chunk.trail[0], r.K, pending[0]);
        } else {
          for (std::int64_t t = 0; t < chunk.count; ++t) {
            scale_row(out[t], chunk.from_start[static_cast<std::size_t>(t)], V);
            scale_row(chunk.k[t], chunk.to_end[static_cast<std::size_t>(t)], r.K);
          }
          for (std::int64_t i = 0; i < r.K; ++i) scale_row(state[i], chunk.total, V);
        }
        chunk.multiply_lower(scores, chunk.v, V, out);
        simd.multiply(r.K, V, chunk.count, chunk.k[0], 1, chunk.k.row(), chunk.v[0], chunk.v.row(), state[0], state.row(), true);
        for (std::int64_t t = 0; t < chunk.count; ++t)
          store_row<T>(out[t], columns.size(), o, (sequence.token(position + t) * r.heads + h) * r.V + columns.begin);
      }
      for (std::int64_t i = 0; i < r.K; ++i) scale_row(state[i], pending[0][i], V);
      store_state(state, r, columns, final_state.data<F>() + head * r.K * r.V);
    }
  });
}

/// One sequence and the heads that share keys and values, backwards. States are transposed, [values][K].
template <class T>
class BackwardTask {
  using F = compute_t<T>;

 public:
  BackwardTask(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state)
      : r_(r),
        grad_o_(grad_o),
        grad_final_state_(grad_final_state),
        K_(padded(r.K, kLine<F>)),
        rows_(padded(r.V, kLine<F>)),
        segment_(std::clamp<std::int64_t>(r.length, 1, std::max(r.checkpoint_interval, kChunk))),
        chunk_(r),
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
        sums_(1, r.K),
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
      segment_dk_.clear();
      segment_dv_.clear();
      for (std::int64_t j = 0; j < r_.group(); ++j)
        dgamma[static_cast<std::size_t>(j)] += run_segment(sequence, n, kv_head * r_.group() + j, j, segment, grads);
      const std::int64_t begin = segment * segment_;
      for (std::int64_t i = 0; i < std::min(segment_, sequence.length - begin); ++i) {
        const std::int64_t row = sequence.token(begin + i) * r_.kv_heads + kv_head;
        store_row<T>(segment_dk_[i], r_.K, grads.k, row * r_.K);
        store_row<T>(segment_dv_[i], columns.size(), grads.v, row * r_.V + columns.begin);
      }
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
    for (std::int64_t segment = 0; segment + 1 < segments; ++segment) {
      F* state = borders_[((segment + 1) * r_.group() + j) * rows_];
      std::copy_n(borders_[(segment * r_.group() + j) * rows_], rows_ * K_, state);
      for (std::int64_t position = 0; position < segment_; position += chunk_.count) {
        chunk_.load(sequence, n, h, segment * segment_ + position, segment_ - position, columns_, false);
        advance(state);
      }
    }
  }

  /// From the state before the staged chunk to that after it. Changes the staged values.
  void advance(F* state) {
    if (chunk_.per_channel) scale_columns(state, chunk_.lead[0]);
    else weigh(chunk_.v, chunk_.to_end, V_), scale_row(state, chunk_.total, V_ * K_);
    simd_.multiply(V_, K_, chunk_.count, chunk_.v[0], 1, chunk_.v.row(), chunk_.k[0], chunk_.k.row(), state, K_, true);
    if (chunk_.per_channel) scale_columns(state, chunk_.trail[0]);
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
      chunk_.load(sequence, n, h, begin + position, size - position, columns_, false);
    }
    double total = 0;
    for (std::size_t i = starts.size(); i-- > 0;) {
      const std::int64_t end = i + 1 < starts.size() ? starts[i + 1] : size;
      chunk_.load(sequence, n, h, begin + starts[i], end - starts[i], columns_, true, grad_o_);
      differentiate(states_[i][0], dS_[j * rows_]);
      for (std::int64_t t = 0; t < chunk_.count; ++t) {
        const std::int64_t position = starts[i] + t;
        total += store_token(t, sequence.token(begin + position) * r_.heads + h, grads);
        add_row(segment_dk_[position], dk_[t], r_.K);
        add_row(segment_dv_[position], dv_[t], V_);
      }
    }
    return total;
  }

  /// The staged chunk backwards: `state`, the one before it, is used up; dS goes from the gradient of the state after it to
  /// that of the state before it.
  void differentiate(F* state, F* dS) {
    const std::int64_t count = chunk_.count;
    if (chunk_.per_channel) scale_columns(state, chunk_.lead[0]), scale_columns(dS, chunk_.trail[0]);
    simd_.transpose(count, K_, chunk_.k[0], chunk_.k.row(), keys_[0], keys_.row());
    simd_.transpose(count, V_, chunk_.v[0], chunk_.v.row(), values_[0], values_.row());
    simd_.transpose(V_, K_, dS, K_, dS_untransposed_[0], dS_untransposed_.row());
    chunk_.scores(chunk_.q, keys_, r_.K, scores_);
    chunk_.scores(chunk_.grad_o, values_, V_, dscores_);
    for (std::int64_t t = 0; t < count; ++t) {  // a token's product with itself knows no decay: apart
      diagonal_[static_cast<std::size_t>(t)] = dscores_[t][t];
      dscores_[t][t] = 0;
    }
    simd_.multiply(count, V_, r_.K, chunk_.k[0], chunk_.k.row(), 1, dS_untransposed_[0], dS_untransposed_.row(), dv_[0],
                   dv_.row(), false);
    if (!chunk_.per_channel) weigh(dv_, chunk_.to_end, V_);
    chunk_.multiply_lower_transposed(scores_, chunk_.grad_o, V_, dv_, true);
    chunk_.multiply_lower_transposed(dscores_, chunk_.q, K_, dk_, false);
    if (!chunk_.per_channel) weigh(chunk_.grad_o, chunk_.from_start, V_), weigh(chunk_.v, chunk_.to_end, V_);
    simd_.multiply(count, K_, V_, chunk_.grad_o[0], chunk_.grad_o.row(), 1, state, K_, dq_[0], dq_.row(), false);
    simd_.multiply(count, K_, V_, chunk_.v[0], chunk_.v.row(), 1, dS, K_, dk_of_state_[0], dk_of_state_.row(), false);
    chunk_.multiply_lower(dscores_, chunk_.k, K_, dq_);
    differentiate_gates(state, dS);
    if (!chunk_.per_channel) scale_row(dS, chunk_.total, V_ * K_);
    simd_.multiply(V_, K_, count, chunk_.grad_o[0], 1, chunk_.grad_o.row(), chunk_.q[0], chunk_.q.row(), dS, K_, true);
    if (chunk_.per_channel) scale_columns(dS, chunk_.lead[0]);
    for (std::int64_t t = 0; t < count; ++t) {
      const F *q = chunk_.q[t], *k = chunk_.k[t], *of_state = dk_of_state_[t], diagonal = diagonal_[static_cast<std::size_t>(t)];
      F *dq = dq_[t], *dk = dk_[t];
#pragma omp simd
      for (std::int64_t i = 0; i < K_; ++i) {
        dq[i] += diagonal * k[i];
        dk[i] += of_state[i] + diagonal * q[i];
      }
      if (!chunk_.per_channel) continue;
      const F* decay = chunk_.decay[t];
#pragma omp simd
      for (std::int64_t i = 0; i < r_.K; ++i) {
        dq[i] *= decay[i];
        dk[i] /= decay[i];
      }
    }
  }

  /// The gradient of the log decay of token t is a sum over what passes it: of the products q_i dq_i - k_i dk_i inside the
  /// chunk from t on, the keys before t that reach the state after the chunk, and the state that passes the whole of it.
  void differentiate_gates(const F* state, const F* dS) {
    F* sums = sums_[0];
    std::fill_n(sums, K_, F{0});
    for (std::int64_t v = 0; v < V_; ++v) {
#pragma omp simd
      for (std::int64_t i = 0; i < K_; ++i) sums[i] += state[v * K_ + i] * dS[v * K_ + i];
    }
    if (!chunk_.per_channel) scale_row(sums, chunk_.total, K_);
    for (std::int64_t t = 0; t < chunk_.count; ++t) {
      const F *k = chunk_.k[t], *dk = dk_of_state_[t];
      F* da = da_[t];
#pragma omp simd
      for (std::int64_t i = 0; i < K_; ++i) {
        da[i] = sums[i];
        sums[i] += k[i] * dk[i];
      }
    }
    std::fill_n(sums, K_, F{0});
    for (std::int64_t t = chunk_.count; t-- > 0;) {
      const F *q = chunk_.q[t], *dq = dq_[t], *k = chunk_.k[t], *dk = dk_[t];
      F* da = da_[t];
#pragma omp simd
      for (std::int64_t i = 0; i < K_; ++i) {
        sums[i] += q[i] * dq[i] - k[i] * dk[i];
        da[i] += sums[i];
      }
    }
  }

  /// Writes what token t of the chunk, `row` of the tensors, has of its own; returns the gradient of its head's log decay.
  F store_token(std::int64_t t, std::int64_t row, const RecurrenceGradients& grads) const {
    const F* da = da_[t];
    F total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t i = 0; i < r_.K; ++i) total += da[i];
    store_row<T>(dq_[t], r_.K, grads.q, row * r_.K, static_cast<F>(r_.scale));
    store_row<T>(da, r_.K, grads.gk, row * r_.K);
    store_row<T>(&total, 1, grads.g, row);
    return total;
  }

  void scale_columns(F* state, const F* factors) const {
    for (std::int64_t v = 0; v < V_; ++v) multiply_row(state + v * K_, factors, K_);
  }
  void weigh(Rows<F>& x, const std::array<F, kChunk>& factors, std::int64_t size) const {
    for (std::int64_t t = 0; t < chunk_.count; ++t) scale_row(x[t], factors[static_cast<std::size_t>(t)], size);
  }
  static void add_row(F* x, const F* y, std::int64_t size) {
#pragma omp simd
    for (std::int64_t i = 0; i < size; ++i) x[i] += y[i];
  }

  const SimdKernels<F>& simd_ = simd_kernels<F>();
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
  Rows<F> dq_, dk_, dk_of_state_, dv_, da_, sums_;
  std::array<F, kChunk> diagonal_;
  Rows<F> segment_dk_, segment_dv_;
};

template <class T>
void backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  for_each_part<compute_t<T>>(r, grads, [&] { return BackwardTask<T>(r, grad_o, grad_final_state); });
}

}  // namespace

void chunk_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) { forward<T>(r, o, final_state); });
}

void chunk_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) { backward<T>(r, grad_o, grad_final_state, grads); });
}

}  // namespace glade::cpu
