// The gated linear recurrence on the CPU, token by token. A task owns the heads of one sequence that share keys and
// values. It stages the rows of some tokens (converted to the compute type, gates turned into decays) and takes the
// state in blocks of kColumns values with all their keys along the vector lanes, so that the sums over values, which the
// backward pass needs three of, stay in registers. Backward keeps the state before every chunk of checkpoint_interval
// tokens and recomputes those in between.
#include <algorithm>
#include <vector>

#include <glade/core/math.h>
#include <glade/core/parallel.h>
#include <glade/ops/linear_attention/linear_attention_kernels.h>

namespace glade::cpu {

namespace {

constexpr std::int64_t kColumns = 4;
constexpr std::int64_t kStagedTokens = 64;  // in the forward pass

template <class F>
struct Simd {
  typedef F Vector __attribute__((vector_size(32)));
};
template <class F>
using Vector = typename Simd<F>::Vector;
template <class F>
constexpr std::int64_t kLanes = sizeof(Vector<F>) / sizeof(F);

template <class F>
F sum(const Vector<F>& x) {
  F total = 0;
  for (std::int64_t lane = 0; lane < kLanes<F>; ++lane) total += x[lane];
  return total;
}

/// Rows of some tokens, each padded with zeros to whole vectors.
template <class F>
class Rows {
 public:
  Rows(std::int64_t tokens, std::int64_t size) : vectors_((size + kLanes<F> - 1) / kLanes<F>), data_(tokens * vectors_) {}
  std::int64_t vectors() const { return vectors_; }
  Vector<F>* operator[](std::int64_t token) { return data_.data() + token * vectors_; }
  const Vector<F>* operator[](std::int64_t token) const { return data_.data() + token * vectors_; }
  F* values(std::int64_t token) { return reinterpret_cast<F*>((*this)[token]); }
  const F* values(std::int64_t token) const { return reinterpret_cast<const F*>((*this)[token]); }
  void clear() { std::fill(data_.begin(), data_.end(), Vector<F>{}); }

 private:
  std::int64_t vectors_;
  std::vector<Vector<F>> data_;
};

/// What one head reads in some tokens.
template <class F>
struct Staged {
  Rows<F> q, k, a;       ///< q scaled; a: decay of the keys
  Rows<F> v, b, grad_o;  ///< b: decay of the values

  Staged(std::int64_t tokens, const Recurrence& r)
      : q(tokens, r.K), k(tokens, r.K), a(tokens, r.K), v(tokens, r.V), b(tokens, r.V), grad_o(tokens, r.V) {}
};

/// One sequence: where it lies, in the order in which its tokens are taken.
struct Sequence {
  std::int64_t begin, length;
  bool reverse;

  Sequence(const Recurrence& r, std::int64_t n) : begin(n * r.length), length(r.length), reverse(r.reverse) {
    if (!r.cu_seqlens.defined()) return;
    const auto* boundaries = r.cu_seqlens.data<std::int64_t>();
    begin = boundaries[n];
    length = boundaries[n + 1] - begin;
  }
  std::int64_t token(std::int64_t position) const { return begin + (reverse ? length - 1 - position : position); }
};

template <class T, class F>
void load_row(const Tensor& x, std::int64_t row, std::int64_t size, F* out, F factor = 1) {
  const T* in = x.data<T>() + row * size;
#pragma omp simd
  for (std::int64_t i = 0; i < size; ++i) out[i] = factor * static_cast<F>(in[i]);
}

/// out = exp(sum + x[row]).
template <class T, class F>
void load_decay(const Tensor& x, std::int64_t row, std::int64_t size, F sum, F* out) {
  if (!x.defined()) {
    std::fill_n(out, size, math::exp(sum));
    return;
  }
  auto convert = [&]<class G>(const G* in) {
#pragma omp simd
    for (std::int64_t i = 0; i < size; ++i) out[i] = math::exp(sum + static_cast<F>(in[i]));
  };
  if (x.dtype() == dtype_of<T>()) convert(x.data<T>() + row * size);
  else convert(x.data<F>() + row * size);
}

/// Fills `staged` with `count` tokens of head h from `position` on.
template <class T, class F>
void stage(const Recurrence& r, const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t position,
           std::int64_t count, const Tensor& grad_o, Staged<F>& staged) {
  const F gamma = r.g_gamma.defined() ? r.g_gamma.data<F>()[n * r.heads + h] : F{0};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = sequence.token(position + i), row = token * r.heads + h,
                       kv_row = token * r.kv_heads + h / r.group();
    F head_gate = gamma;
    if (r.g.defined()) head_gate += r.g.dtype() == dtype_of<T>() ? static_cast<F>(r.g.data<T>()[row]) : r.g.data<F>()[row];
    load_row<T>(r.q, row, r.K, staged.q.values(i), static_cast<F>(r.scale));
    load_row<T>(r.k, kv_row, r.K, staged.k.values(i));
    load_row<T>(r.v, kv_row, r.V, staged.v.values(i));
    load_decay<T>(r.gk, row, r.K, head_gate, staged.a.values(i));
    if (r.gv.defined()) load_decay<T>(r.gv, row, r.V, F{0}, staged.b.values(i));
    if (grad_o.defined()) load_row<T>(grad_o, row, r.V, staged.grad_o.values(i));
  }
}

/// Writes factor * x to `out`, of dtype T or F, from element `offset` on; nothing where it is undefined.
template <class T, class F>
void store(const F* x, std::int64_t size, const Tensor& out, std::int64_t offset, F factor = 1) {
  if (!out.defined()) return;
  auto convert = [&]<class To>(To* to) {
#pragma omp simd
    for (std::int64_t i = 0; i < size; ++i) to[i] = To(factor * x[i]);
  };
  if (out.dtype() == dtype_of<T>()) convert(out.data<T>() + offset);
  else convert(out.data<F>() + offset);
}

/// The columns [begin, end) of the state of a head, [K, V] in the tensors, from and to rows [V][K]: those from row `first` on.
template <class F>
void load_state(const Tensor& x, std::int64_t head, const Recurrence& r, std::int64_t begin, std::int64_t end, Rows<F>& rows,
                std::int64_t first = 0) {
  const F* in = x.data<F>() + head * r.K * r.V;
  for (std::int64_t v = begin; v < end; ++v)
    for (std::int64_t k = 0; k < r.K; ++k) rows.values(first + v)[k] = in[k * r.V + v];
}
template <class F>
void store_state(const Rows<F>& rows, std::int64_t head, const Recurrence& r, std::int64_t begin, std::int64_t end,
                 const Tensor& x, std::int64_t first = 0) {
  F* out = x.data<F>() + head * r.K * r.V;
  for (std::int64_t k = 0; k < r.K; ++k)
    for (std::int64_t v = begin; v < end; ++v) out[k * r.V + v] = rows.values(first + v)[k];
}
/// Position of the initial state of a head in its tensor.
std::int64_t initial_state_of(const Recurrence& r, std::int64_t n, std::int64_t h) {
  return r.initial_state.ndim() == 3 ? h : n * r.heads + h;
}

std::int64_t padded_columns(std::int64_t V) { return (V + kColumns - 1) / kColumns * kColumns; }

template <bool kValueGate, class F>
inline Vector<F> decay(const Vector<F>& a, F b) {
  if constexpr (kValueGate) return a * b;
  else return a;
}

/// One token for kColumns columns of the state: S = decay * S + k v^T, o = S^T q.
template <bool kValueGate, class F>
void forward_step(std::int64_t vectors, Vector<F>* S, const Vector<F>* q, const Vector<F>* k, const Vector<F>* a, const F* v,
                  const F* b, F* o) {
  Vector<F> sums[kColumns] = {};
  for (std::int64_t i = 0; i < vectors; ++i) {
#pragma GCC unroll 4
    for (std::int64_t c = 0; c < kColumns; ++c) {
      Vector<F>& s = S[c * vectors + i];
      s = decay<kValueGate>(a[i], b[c]) * s + k[i] * v[c];
      sums[c] += q[i] * s;
    }
  }
  for (std::int64_t c = 0; c < kColumns; ++c) o[c] = sum<F>(sums[c]);
}

/// The same without an output.
template <bool kValueGate, class F>
void advance(std::int64_t vectors, Vector<F>* S, const Vector<F>* k, const Vector<F>* a, const F* v, const F* b) {
  for (std::int64_t i = 0; i < vectors; ++i) {
#pragma GCC unroll 4
    for (std::int64_t c = 0; c < kColumns; ++c) {
      Vector<F>& s = S[c * vectors + i];
      s = decay<kValueGate>(a[i], b[c]) * s + k[i] * v[c];
    }
  }
}

/// One token backwards for kColumns columns: from dS, the gradient of the state after the token without the part through
/// the token's own output, to that of the state before it. Adds to the rows dk, dv and da (of the log decay), sets db.
template <bool kValueGate, class F>
void backward_step(std::int64_t vectors, Vector<F>* dS, const Vector<F>* previous, const Vector<F>* q, const Vector<F>* k,
                   const Vector<F>* a, const F* v, const F* b, const F* grad_o, Vector<F>* dk, Vector<F>* da, F* dv, F* db) {
  Vector<F> dv_sums[kColumns] = {}, db_sums[kColumns] = {};
  for (std::int64_t i = 0; i < vectors; ++i) {
    Vector<F> dk_sum = dk[i], da_sum = da[i];
#pragma GCC unroll 4
    for (std::int64_t c = 0; c < kColumns; ++c) {
      Vector<F> d = dS[c * vectors + i] + q[i] * grad_o[c];
      dk_sum += d * v[c];
      dv_sums[c] += d * k[i];
      d *= decay<kValueGate>(a[i], b[c]);
      const Vector<F> log_decay = d * previous[c * vectors + i];
      da_sum += log_decay;
      if constexpr (kValueGate) db_sums[c] += log_decay;
      dS[c * vectors + i] = d;
    }
    dk[i] = dk_sum;
    da[i] = da_sum;
  }
  for (std::int64_t c = 0; c < kColumns; ++c) {
    dv[c] += sum<F>(dv_sums[c]);
    if constexpr (kValueGate) db[c] = sum<F>(db_sums[c]);
  }
}

/// dq += S grad_o for kColumns columns.
template <class F>
void add_query_gradient(std::int64_t vectors, const Vector<F>* S, const F* grad_o, Vector<F>* dq) {
  for (std::int64_t i = 0; i < vectors; ++i)
#pragma GCC unroll 4
    for (std::int64_t c = 0; c < kColumns; ++c) dq[i] += S[c * vectors + i] * grad_o[c];
}

template <class T, bool kValueGate>
void forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  using F = compute_t<T>;
  // A task is a head, or a part of its values where there are fewer heads than threads.
  const std::int64_t blocks = padded_columns(r.V) / kColumns, pairs = r.sequences * r.heads;
  const std::int64_t parts =
      std::clamp<std::int64_t>((omp_get_max_threads() + pairs - 1) / std::max<std::int64_t>(pairs, 1), 1, blocks);
  parallel_for(pairs * parts, 1, [&](std::int64_t first, std::int64_t last) {
    Staged<F> staged(kStagedTokens, r);
    Rows<F> state(padded_columns(r.V), r.K), out(kStagedTokens, r.V);
    const std::int64_t vectors = state.vectors();
    for (std::int64_t task = first; task < last; ++task) {
      const std::int64_t pair = task / parts, part = task % parts, n = pair / r.heads, h = pair % r.heads;
      const std::int64_t begin = blocks * part / parts * kColumns, end = std::min(r.V, blocks * (part + 1) / parts * kColumns);
      const Sequence sequence(r, n);
      state.clear();
      if (r.initial_state.defined()) load_state(r.initial_state, initial_state_of(r, n, h), r, begin, end, state);
      for (std::int64_t position = 0; position < sequence.length; position += kStagedTokens) {
        const std::int64_t count = std::min(kStagedTokens, sequence.length - position);
        stage<T>(r, sequence, n, h, position, count, {}, staged);
        for (std::int64_t v = begin; v < end; v += kColumns)
          for (std::int64_t i = 0; i < count; ++i)
            forward_step<kValueGate, F>(vectors, state[v], staged.q[i], staged.k[i], staged.a[i], staged.v.values(i) + v,
                                        staged.b.values(i) + v, out.values(i) + v);
        for (std::int64_t i = 0; i < count; ++i)
          store<T>(out.values(i) + begin, end - begin, o, (sequence.token(position + i) * r.heads + h) * r.V + begin);
      }
      store_state(state, pair, r, begin, end, final_state);
    }
  });
}

/// One sequence and the heads that share keys and values, backwards.
template <class T, bool kValueGate>
class BackwardTask {
  using F = compute_t<T>;

 public:
  BackwardTask(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads)
      : r_(r),
        grad_o_(grad_o),
        grad_final_state_(grad_final_state),
        grads_(grads),
        interval_(std::clamp<std::int64_t>(r.length, 1, r.checkpoint_interval)),
        columns_(padded_columns(r.V)),
        staged_(interval_, r),
        borders_((r.length + interval_ - 1) / interval_ * r.group() * columns_, r.K),
        history_((interval_ + 1) * kColumns, r.K),
        dS_(r.group() * columns_, r.K),
        dq_(interval_, r.K),
        dk_(interval_, r.K),
        dv_(interval_, r.V),
        da_(interval_, r.K),
        db_(interval_, r.V),
        vectors_(dS_.vectors()) {}

  void run(std::int64_t n, std::int64_t kv_head) {
    const Sequence sequence(r_, n);
    const std::int64_t first_head = kv_head * r_.group(), chunks = (sequence.length + interval_ - 1) / interval_;
    std::vector<double> dgamma(static_cast<std::size_t>(r_.group()), 0.0);
    dS_.clear();
    for (std::int64_t j = 0; j < r_.group(); ++j) {
      compute_borders(sequence, n, first_head + j, j, chunks);
      if (grad_final_state_.defined())
        load_state(grad_final_state_, n * r_.heads + first_head + j, r_, 0, r_.V, dS_, j * columns_);
    }
    for (std::int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      const std::int64_t position = chunk * interval_, count = std::min(interval_, sequence.length - position);
      dk_.clear();
      dv_.clear();
      for (std::int64_t j = 0; j < r_.group(); ++j) {
        const std::int64_t h = first_head + j;
        stage<T>(r_, sequence, n, h, position, count, grad_o_, staged_);
        dq_.clear();
        da_.clear();
        for (std::int64_t v = 0; v < columns_; v += kColumns) {
          recompute(borders_[(chunk * r_.group() + j) * columns_ + v], count, v);
          for (std::int64_t i = count - 1; i >= 0; --i)
            backward_step<kValueGate, F>(vectors_, dS_[j * columns_ + v], history_[i * kColumns], staged_.q[i], staged_.k[i],
                                         staged_.a[i], staged_.v.values(i) + v, staged_.b.values(i) + v,
                                         staged_.grad_o.values(i) + v, dk_[i], da_[i], dv_.values(i) + v, db_.values(i) + v);
        }
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t row = sequence.token(position + i) * r_.heads + h;
          const F* da = da_.values(i);
          F total = 0;
#pragma omp simd reduction(+ : total)
          for (std::int64_t k = 0; k < r_.K; ++k) total += da[k];
          dgamma[static_cast<std::size_t>(j)] += total;
          store<T>(dq_.values(i), r_.K, grads_.q, row * r_.K, static_cast<F>(r_.scale));
          store<T>(da, r_.K, grads_.gk, row * r_.K);
          store<T>(&total, 1, grads_.g, row);
          if constexpr (kValueGate) store<T>(db_.values(i), r_.V, grads_.gv, row * r_.V);
        }
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = sequence.token(position + i) * r_.kv_heads + kv_head;
        store<T>(dk_.values(i), r_.K, grads_.k, row * r_.K);
        store<T>(dv_.values(i), r_.V, grads_.v, row * r_.V);
      }
    }
    for (std::int64_t j = 0; j < r_.group(); ++j) {
      const std::int64_t head = n * r_.heads + first_head + j;
      if (grads_.initial_state.defined()) store_state(dS_, head, r_, 0, r_.V, grads_.initial_state, j * columns_);
      if (grads_.g_gamma.defined()) grads_.g_gamma.data<F>()[head] = static_cast<F>(dgamma[static_cast<std::size_t>(j)]);
    }
  }

 private:
  /// The states before every chunk of head h, number j of the task.
  void compute_borders(const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t j, std::int64_t chunks) {
    if (chunks == 0) return;
    std::fill_n(borders_[j * columns_], columns_ * vectors_, Vector<F>{});
    if (r_.initial_state.defined()) load_state(r_.initial_state, initial_state_of(r_, n, h), r_, 0, r_.V, borders_, j * columns_);
    for (std::int64_t chunk = 0; chunk + 1 < chunks; ++chunk) {
      stage<T>(r_, sequence, n, h, chunk * interval_, interval_, {}, staged_);
      Vector<F>* next = borders_[((chunk + 1) * r_.group() + j) * columns_];
      std::copy_n(borders_[(chunk * r_.group() + j) * columns_], columns_ * vectors_, next);
      for (std::int64_t v = 0; v < columns_; v += kColumns)
        for (std::int64_t i = 0; i < interval_; ++i)
          advance<kValueGate, F>(vectors_, next + v * vectors_, staged_.k[i], staged_.a[i], staged_.v.values(i) + v,
                                 staged_.b.values(i) + v);
    }
  }

  /// The states of the columns from v on before and after each of the staged tokens, and dq, which needs no more.
  void recompute(const Vector<F>* border, std::int64_t count, std::int64_t v) {
    std::copy_n(border, kColumns * vectors_, history_[0]);
    for (std::int64_t i = 0; i < count; ++i) {
      Vector<F>* state = history_[(i + 1) * kColumns];
      std::copy_n(history_[i * kColumns], kColumns * vectors_, state);
      advance<kValueGate, F>(vectors_, state, staged_.k[i], staged_.a[i], staged_.v.values(i) + v, staged_.b.values(i) + v);
      add_query_gradient<F>(vectors_, state, staged_.grad_o.values(i) + v, dq_[i]);
    }
  }

  const Recurrence& r_;
  const Tensor& grad_o_;
  const Tensor& grad_final_state_;
  const RecurrenceGradients& grads_;
  std::int64_t interval_, columns_;
  Staged<F> staged_;
  Rows<F> borders_;                 // [chunk][head of the task][value]
  Rows<F> history_;                 // [token][kColumns]: states of one block of columns
  Rows<F> dS_;                      // [head of the task][value]
  Rows<F> dq_, dk_, dv_, da_, db_;  // gradients of the staged tokens
  std::int64_t vectors_;
};

template <class T, bool kValueGate>
void backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  parallel_for(r.sequences * r.kv_heads, 1, [&](std::int64_t first, std::int64_t last) {
    BackwardTask<T, kValueGate> task(r, grad_o, grad_final_state, grads);
    for (std::int64_t i = first; i < last; ++i) task.run(i / r.kv_heads, i % r.kv_heads);
  });
}

}  // namespace

void recurrent_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) {
    if (r.gv.defined()) forward<T, true>(r, o, final_state);
    else forward<T, false>(r, o, final_state);
  });
}

void recurrent_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const RecurrenceGradients& grads) {
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) {
    if (r.gv.defined()) backward<T, true>(r, grad_o, grad_final_state, grads);
    else backward<T, false>(r, grad_o, grad_final_state, grads);
  });
}

}  // namespace glade::cpu
