#pragma once
// The inner loops of the gated recurrence on the CPU, compiled for several instruction sets (simd_*.cpp). simd_kernels() selects
// the widest one that the processor has, once per program.
#include <cstdint>

namespace glade::cpu {

/// The elements of a line of 64 bytes. Rows of staged matrices are padded with zeros to whole lines, so that every instruction
/// set processes whole vectors.
template <class F>
constexpr std::int64_t kLine = 64 / sizeof(F);

/// `size`, rounded up to a multiple.
constexpr std::int64_t padded(std::int64_t size, std::int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

/// The staged rows of some tokens of one head for the step-by-step form, one row per token. The rows of q, k and a are `key_row`
/// elements apart, the others `value_row`. q is scaled; a and b are the decays of key and value channels; b is null without gv.
template <class F>
struct StagedSteps {
  const F *q, *k, *a, *v, *b, *grad_o;
  std::int64_t count, key_row, value_row;
};

/// The gradients of the backward pass of the step-by-step form. It adds to dq, dk, dv and da, and sets db; da and db are the
/// gradients of the log decays of key and value channels.
template <class F>
struct StepGradients {
  F *dq, *dk, *da, *dv, *db;
};

/// One instruction set's kernels. A parameter such as `a_row` is the distance of two rows in elements.
template <class F>
struct SimdKernels {
  /// Sets c [m, n] to a b, or adds a b to c if `add`. Element (i, j) of a [m, k] is a[i * a_row + j * a_column]; b [k, n] and c
  /// are row-major; n is whole lines.
  void (*multiply)(std::int64_t m, std::int64_t n, std::int64_t k, const F* a, std::int64_t a_row, std::int64_t a_column,
                   const F* b, std::int64_t b_row, F* c, std::int64_t c_row, bool add);
  /// Sets out [columns, rows] to in^T. It reads and writes whole lines in both directions.
  void (*transpose)(std::int64_t rows, std::int64_t columns, const F* in, std::int64_t in_row, F* out, std::int64_t out_row);
  /// Sets `out` to factor * x with non-temporal stores. The rows are whole, aligned lines.
  void (*stream_rows)(std::int64_t rows, std::int64_t columns, F factor, const F* x, std::int64_t x_row, F* out,
                      std::int64_t out_row);
  /// Replaces each element x by e^x.
  void (*exponentials)(std::int64_t size, F* x);
  /// Steps the state [K, columns], which has whole lines of columns, over the tokens, and writes their outputs to o, whose rows
  /// are value_row elements apart.
  void (*forward_steps)(const StagedSteps<F>& tokens, std::int64_t K, std::int64_t columns, F* state, std::int64_t state_row,
                        F* o);
  /// Steps kColumns columns of the state, from value column v on, over the tokens. `state` is transposed: it points to the rows
  /// of these columns, key_row elements each.
  void (*advance)(const StagedSteps<F>& tokens, std::int64_t v, F* state);
  /// Differentiates the steps of `advance` for the same columns: turns dS, the gradient of the state after the tokens, into that
  /// of the state before them, and adds to the gradients. `boundary_state` is the state before the tokens; `history` has room for
  /// count + 1 such states.
  void (*backward_steps)(const StagedSteps<F>& tokens, std::int64_t v, const F* boundary_state, F* history, F* dS,
                         const StepGradients<F>& gradients);

  // The chunk form. Matrices have whole lines of columns. Rows are contiguous if there is no parameter for their distance.

  /// Turns the log decays `decay` [count, width] of some tokens into factors. Let b_t be their sums after the first token (b_0 =
  /// 0). Returns count', the number of leading tokens whose sums stay within +-range. With m half of the last of these sums and a
  /// the log decay of the first token, `decay` becomes e^(b_t - m), `lead` e^(a + m), and `trail` e^m.
  std::int64_t (*channel_decays)(std::int64_t count, std::int64_t width, F range, F* decay, F* lead, F* trail);
  /// Multiply each row, or each column, of x by its factor.
  void (*scale_rows)(std::int64_t rows, std::int64_t columns, const F* factors, F* x, std::int64_t x_row);
  void (*scale_columns)(std::int64_t rows, std::int64_t columns, const F* factors, F* x, std::int64_t x_row);
  void (*multiply_elements)(std::int64_t size, const F* factors, F* x);
  void (*divide_elements)(std::int64_t size, const F* divisors, F* x);
  /// Sets sums [columns] to the sums of x * y over the rows.
  void (*sum_products)(std::int64_t rows, std::int64_t columns, const F* x, const F* y, F* sums);
  /// Sets da_t to passing + sum_{i < t} k_i dk_of_state_i + sum_{i >= t} (q_i dq_i - k_i dk_i), for each channel.
  void (*gate_gradients)(std::int64_t count, std::int64_t width, const F* q, const F* dq, const F* k, const F* dk,
                         const F* dk_of_state, const F* passing, F* da);
  /// Sets dq to (dq + diagonal k) decay, and adds (dk + dk_of_state + diagonal q) / decay to dk_sum. A null `decay` means 1.
  void (*complete_gradients)(std::int64_t count, std::int64_t width, const F* q, const F* k, const F* diagonal, const F* decay,
                             const F* dk_of_state, F* dq, const F* dk, F* dk_sum);
};

/// The number of columns that `advance` and `backward_steps` process.
constexpr std::int64_t kColumns = 4;

/// The kernels for the instruction set that instruction_set() returns.
template <class F>
const SimdKernels<F>& simd_kernels();

}  // namespace glade::cpu
