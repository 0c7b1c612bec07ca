#pragma once
// The kernels of simd_cpu.h in vectors of GLADE_SIMD_BYTES bytes, for the file that includes this. Everything here is local to
// that file, and nothing from the standard library is used: a function that other files share must not be compiled for
// instructions that only some processors have.
#include <utility>

#include <glade/core/math.h>
#include <glade/ops/linear_attention/simd_cpu.h>

namespace glade::cpu {

namespace {

template <class F>
struct Simd {
  typedef F Vector __attribute__((vector_size(GLADE_SIMD_BYTES), aligned(sizeof(F)), may_alias));
};
template <class F>
using Vector = typename Simd<F>::Vector;
template <class F>
constexpr std::int64_t kLanes = GLADE_SIMD_BYTES / sizeof(F);

template <class F>
GLADE_INLINE Vector<F> load(const F* x) {
  return *reinterpret_cast<const Vector<F>*>(x);
}
template <class F>
GLADE_INLINE void store(F* x, const Vector<F>& value) {
  *reinterpret_cast<Vector<F>*>(x) = value;
}

template <class F>
using Places = std::make_index_sequence<static_cast<std::size_t>(kLanes<F>)>;

/// a0 b0 a1 b1 ... of the halves of a and b that begin at `half`: 0, or kLanes / 2.
template <std::size_t half, class F, std::size_t... I>
GLADE_INLINE Vector<F> interleave(const Vector<F>& a, const Vector<F>& b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (half + I / 2 + I % 2 * sizeof...(I))...);
}

template <class F, std::size_t... I>
GLADE_INLINE F sum(const Vector<F>& x, std::index_sequence<I...>) {
  Vector<F> total = x;  // half of the lanes onto the other half, and so on
  if constexpr (sizeof...(I) > 8) total += __builtin_shufflevector(total, total, (I ^ 8)...);
  if constexpr (sizeof...(I) > 4) total += __builtin_shufflevector(total, total, (I ^ 4)...);
  if constexpr (sizeof...(I) > 2) total += __builtin_shufflevector(total, total, (I ^ 2)...);
  return total[0] + total[1];
}
template <class F>
GLADE_INLINE F sum(const Vector<F>& x) {
  return sum<F>(x, Places<F>());
}

/// A block of kRows rows and kVectors vectors of c, which stays in registers.
template <int kRows, int kVectors, class F>
GLADE_INLINE void multiply_block(std::int64_t k, const F* a, std::int64_t a_row, std::int64_t a_column, const F* b,
                                 std::int64_t b_row, F* c, std::int64_t c_row, bool add) {
  Vector<F> sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) sums[i][j] = add ? load(c + i * c_row + j * kLanes<F>) : Vector<F>{};
  for (std::int64_t p = 0; p < k; ++p) {
    Vector<F> row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = load(b + p * b_row + j * kLanes<F>);
    for (int i = 0; i < kRows; ++i) {
      const F factor = a[i * a_row + p * a_column];
      for (int j = 0; j < kVectors; ++j) sums[i][j] += factor * row[j];
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) store(c + i * c_row + j * kLanes<F>, sums[i][j]);
}

template <int kVectors, class F>
GLADE_INLINE void multiply_columns(std::int64_t m, std::int64_t k, const F* a, std::int64_t a_row, std::int64_t a_column,
                                   const F* b, std::int64_t b_row, F* c, std::int64_t c_row, bool add) {
  std::int64_t i = 0;
  for (; i + 4 <= m; i += 4) multiply_block<4, kVectors>(k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, add);
  for (; i < m; ++i) multiply_block<1, kVectors>(k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, add);
}

/// Vectors of a row that a block of four rows holds: what the registers have room for (16, or 32 of 64 bytes).
constexpr int kBlockVectors = GLADE_SIMD_BYTES == 64 ? 4 : 2;

template <class F>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const F* a, std::int64_t a_row, std::int64_t a_column, const F* b,
              std::int64_t b_row, F* c, std::int64_t c_row, bool add) {
  constexpr std::int64_t kBlock = kBlockVectors * kLanes<F>;
  std::int64_t j = 0;
  for (; j + kBlock <= n; j += kBlock) multiply_columns<kBlockVectors>(m, k, a, a_row, a_column, b + j, b_row, c + j, c_row, add);
  for (; j < n; j += kLanes<F>) multiply_columns<1>(m, k, a, a_row, a_column, b + j, b_row, c + j, c_row, add);
}

template <class F>
void transpose(std::int64_t rows, std::int64_t columns, const F* in, std::int64_t in_row, F* out, std::int64_t out_row) {
  constexpr std::int64_t L = kLanes<F>;
  for (std::int64_t i = 0; i < rows; i += L)
    for (std::int64_t j = 0; j < columns; j += L) {
      Vector<F> block[L], mixed[L];
      for (std::int64_t r = 0; r < L; ++r) block[r] = load(in + (i + r) * in_row + j);
      for (std::int64_t distance = 1; distance < L; distance *= 2) {  // as many perfect shuffles of rows as L has bits
        for (std::int64_t r = 0; r < L / 2; ++r) {
          mixed[2 * r] = interleave<0, F>(block[r], block[r + L / 2], Places<F>());
          mixed[2 * r + 1] = interleave<L / 2, F>(block[r], block[r + L / 2], Places<F>());
        }
        for (std::int64_t r = 0; r < L; ++r) block[r] = mixed[r];
      }
      for (std::int64_t r = 0; r < L; ++r) store(out + (j + r) * out_row + i, block[r]);
    }
}

template <class F>
void exponentials(std::int64_t size, F* x) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < size; ++i) x[i] = math::exp(x[i]);
}

template <bool kValueGate, class F>
GLADE_INLINE Vector<F> decay(const Vector<F>& a, F b) {
  if constexpr (kValueGate) return a * b;
  else return a;
}

/// All tokens for kVectors vectors of values, with the values along the lanes: no sum crosses them.
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

/// One token for kColumns columns: next = decay * S + k v^T.
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

/// One token backwards for kColumns columns: from dS, the gradient of the state after the token without the part through
/// the token's own output, to that of the state before it.
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
void backward_columns(const StagedSteps<F>& tokens, std::int64_t v, const F* border, F* history, F* dS,
                      const StepGradients<F>& gradients) {
  const std::int64_t size = kColumns * tokens.key_row;
  for (std::int64_t i = 0; i < size; ++i) history[i] = border[i];
  for (std::int64_t t = 0; t < tokens.count; ++t) step<kValueGate>(tokens, t, v, history + t * size, history + (t + 1) * size);
  for (std::int64_t t = tokens.count - 1; t >= 0; --t)
    step_back<kValueGate>(tokens, t, v, history + t * size, history + (t + 1) * size, dS, gradients);
}

template <class F>
void backward_steps(const StagedSteps<F>& tokens, std::int64_t v, const F* border, F* history, F* dS,
                    const StepGradients<F>& gradients) {
  if (tokens.b != nullptr) backward_columns<true>(tokens, v, border, history, dS, gradients);
  else backward_columns<false>(tokens, v, border, history, dS, gradients);
}

template <class F>
constexpr SimdKernels<F> kKernels{multiply<F>, transpose<F>, exponentials<F>, forward_steps<F>, advance<F>, backward_steps<F>};

}  // namespace

}  // namespace glade::cpu
