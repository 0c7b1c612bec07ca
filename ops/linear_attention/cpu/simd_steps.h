#pragma once
// The step-by-step form of the recurrence; see cpu/simd.h for what each kernel does.
#include <glade/ops/linear_attention/cpu/simd_products.h>

namespace glade::cpu {

namespace {

/// The decay of state elements: that of their key channels, times that of their value channel if it has a gate.
template <bool kValueGate, class F>
GLADE_INLINE Vector<F> decay(const Vector<F>& a, F b) {
  if constexpr (kValueGate) return a * b;
  else return a;
}

/// Steps kVectors vectors of value columns over all tokens. The values lie along the lanes, so that no sum crosses lanes.
template <bool kValueGate, int kVectors, class F>
GLADE_INLINE void forward_columns(const StagedSteps<F>& tokens, std::int64_t K, std::int64_t column, F* state,
                                  std::int64_t state_row, F* o) {
  for (std::int64_t t = 0; t < tokens.count; ++t) {
    const F *q = tokens.q + t * tokens.key_row, *k = tokens.k + t * tokens.key_row, *a = tokens.a + t * tokens.key_row;
    Vector<F> v[kVectors], b[kVectors], sums[kVectors] = {};
    for (int j = 0; j < kVectors; ++j) {
      v[j] = load(tokens.v + t * tokens.value_row + column + j * kLanes<F>);
      if constexpr (kValueGate) b[j] = load(tokens.b + t * tokens.value_row + column + j * kLanes<F>);
    }
    for (std::int64_t i = 0; i < K; ++i) {
      F* row = state + i * state_row + column;
      for (int j = 0; j < kVectors; ++j) {
        Vector<F> s = load(row + j * kLanes<F>);
        if constexpr (kValueGate) s *= b[j];
        s = a[i] * s + k[i] * v[j];
        sums[j] += q[i] * s;
        store(row + j * kLanes<F>, s);
      }
    }
    for (int j = 0; j < kVectors; ++j) store(o + t * tokens.value_row + column + j * kLanes<F>, sums[j]);
  }
}

template <bool kValueGate, class F>
void forward_all_columns(const StagedSteps<F>& tokens, std::int64_t K, std::int64_t columns, F* state, std::int64_t state_row,
                         F* o) {
  constexpr std::int64_t kBlock = 4 * kLanes<F>;
  std::int64_t j = 0;
  for (; j + kBlock <= columns; j += kBlock) forward_columns<kValueGate, 4>(tokens, K, j, state, state_row, o);
  for (; j < columns; j += kLanes<F>) forward_columns<kValueGate, 1>(tokens, K, j, state, state_row, o);
}

template <class F>
void forward_steps(const StagedSteps<F>& tokens, std::int64_t K, std::int64_t columns, F* state, std::int64_t state_row, F* o) {
  if (tokens.b != nullptr) forward_all_columns<true>(tokens, K, columns, state, state_row, o);
  else forward_all_columns<false>(tokens, K, columns, state, state_row, o);
}

/// Steps kColumns columns of the transposed state over one token: next = decay * S + k v^T.
template <bool kValueGate, class F>
GLADE_INLINE void step(const StagedSteps<F>& tokens, std::int64_t t, std::int64_t column, const F* S, F* next) {
  const F *k = tokens.k + t * tokens.key_row, *a = tokens.a + t * tokens.key_row;
  const F *v = tokens.v + t * tokens.value_row + column, *b = tokens.b + t * tokens.value_row + column;
  for (std::int64_t i = 0; i < tokens.key_row; i += kLanes<F>) {
    const Vector<F> key = load(k + i), keep = load(a + i);
    for (std::int64_t c = 0; c < kColumns; ++c) {
      const std::int64_t at = c * tokens.key_row + i;
      store<F>(next + at, decay<kValueGate>(keep, kValueGate ? b[c] : F(1)) * load(S + at) + key * v[c]);
    }
  }
}

template <class F>
void advance(const StagedSteps<F>& tokens, std::int64_t v, F* state) {
  for (std::int64_t t = 0; t < tokens.count; ++t) {
    if (tokens.b != nullptr) step<true>(tokens, t, v, state, state);
    else step<false>(tokens, t, v, state, state);
  }
}

/// Differentiates one token for kColumns columns. dS is the gradient of the state after the token, without the term of the
/// token's own output, and becomes that of the state before it. `before` and `after` are these two states.
template <bool kValueGate, class F>
GLADE_INLINE void step_back(const StagedSteps<F>& tokens, std::int64_t t, std::int64_t column, const F* before, const F* after,
                            F* dS, const StepGradients<F>& gradients) {
  const std::int64_t key_at = t * tokens.key_row, value_at = t * tokens.value_row + column;
  const F *v = tokens.v + value_at, *b = tokens.b + value_at, *grad_o = tokens.grad_o + value_at;
  Vector<F> dv_sums[kColumns] = {}, db_sums[kColumns] = {};
  for (std::int64_t i = 0; i < tokens.key_row; i += kLanes<F>) {
    const Vector<F> q = load(tokens.q + key_at + i), k = load(tokens.k + key_at + i), a = load(tokens.a + key_at + i);
    Vector<F> dq = load(gradients.dq + key_at + i), dk = load(gradients.dk + key_at + i), da = load(gradients.da + key_at + i);
    for (std::int64_t c = 0; c < kColumns; ++c) {
      const std::int64_t at = c * tokens.key_row + i;
      dq += load(after + at) * grad_o[c];
      Vector<F> d = load(dS + at) + q * grad_o[c];
      dk += d * v[c];
      dv_sums[c] += d * k;
      d *= decay<kValueGate>(a, kValueGate ? b[c] : F(1));
      const Vector<F> log_decay = d * load(before + at);
      da += log_decay;
      if constexpr (kValueGate) db_sums[c] += log_decay;
      store<F>(dS + at, d);
    }
    store<F>(gradients.dq + key_at + i, dq);
    store<F>(gradients.dk + key_at + i, dk);
    store<F>(gradients.da + key_at + i, da);
  }
  for (std::int64_t c = 0; c < kColumns; ++c) {
    gradients.dv[value_at + c] += sum<F>(dv_sums[c]);
    if constexpr (kValueGate) gradients.db[value_at + c] = sum<F>(db_sums[c]);
  }
}

template <bool kValueGate, class F>
void backward_columns(const StagedSteps<F>& tokens, std::int64_t v, const F* boundary_state, F* history, F* dS,
                      const StepGradients<F>& gradients) {
  const std::int64_t size = kColumns * tokens.key_row;
  for (std::int64_t i = 0; i < size; ++i) history[i] = boundary_state[i];
  for (std::int64_t t = 0; t < tokens.count; ++t) step<kValueGate>(tokens, t, v, history + t * size, history + (t + 1) * size);
  for (std::int64_t t = tokens.count - 1; t >= 0; --t)
    step_back<kValueGate>(tokens, t, v, history + t * size, history + (t + 1) * size, dS, gradients);
}

template <class F>
void backward_steps(const StagedSteps<F>& tokens, std::int64_t v, const F* boundary_state, F* history, F* dS,
                    const StepGradients<F>& gradients) {
  if (tokens.b != nullptr) backward_columns<true>(tokens, v, boundary_state, history, dS, gradients);
  else backward_columns<false>(tokens, v, boundary_state, history, dS, gradients);
}

}  // namespace

}  // namespace glade::cpu
