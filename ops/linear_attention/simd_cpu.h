#pragma once
// The inner loops of the gated recurrence on the CPU, compiled for several instruction sets (simd_*.cpp). The widest one
// that the processor has is taken when the program first needs one.
#include <cstdint>

namespace glade::cpu {

/// Rows of staged matrices are padded with zeros to whole lines, which are whole vectors of every instruction set.
template <class F>
constexpr std::int64_t kLine = 64 / sizeof(F);

constexpr std::int64_t padded(std::int64_t size, std::int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

/// Some tokens of one head as the step-by-step form reads them, a row a token: q, k, a of `key_row` numbers from row to row,
/// the others of `value_row`. q is scaled; a and b are the decays of keys and values, b null without gv.
template <class F>
struct StagedSteps {
  const F *q, *k, *a, *v, *b, *grad_o;
  std::int64_t count, key_row, value_row;
};

/// What the step-by-step form's backward pass adds to (dq, dk, dv, da: of the log decays) and sets (db).
template <class F>
struct StepGradients {
  F *dq, *dk, *da, *dv, *db;
};

template <class F>
struct SimdKernels {
  /// c [m, n] = a b, or c += a b where `add`. Element (i, j) of a [m, k] is a[i * a_row + j * a_column]; b [k, n] and c are
  /// row-major with `b_row` and `c_row` numbers from row to row; n is whole lines.
  void (*multiply)(std::int64_t m, std::int64_t n, std::int64_t k, const F* a, std::int64_t a_row, std::int64_t a_column,
                   const F* b, std::int64_t b_row, F* c, std::int64_t c_row, bool add);
  /// out [columns, rows] = in^T, in blocks of a line: it touches both up to whole lines in both directions.
  void (*transpose)(std::int64_t rows, std::int64_t columns, const F* in, std::int64_t in_row, F* out, std::int64_t out_row);
  /// out = factor * x, past the caches: rows of whole lines, aligned to lines.
  void (*stream_rows)(std::int64_t rows, std::int64_t columns, F factor, const F* x, std::int64_t x_row, F* out,
                      std::int64_t out_row);
  /// x = e^x.
  void (*exponentials)(std::int64_t size, F* x);
  /// Steps the state [K, columns], with `state_row` numbers from row to row and whole lines of columns, over the tokens,
  /// and writes their outputs, rows of value_row numbers.
  void (*forward_steps)(const StagedSteps<F>& tokens, std::int64_t K, std::int64_t columns, F* state, std::int64_t state_row,
                        F* o);
  /// Steps kColumns columns of the transposed state, rows of key_row numbers, over the tokens. Rows from v on are meant.
  void (*advance)(const StagedSteps<F>& tokens, std::int64_t v, F* state);
  /// The same columns backwards: from dS, the gradient of the state after the tokens, to that of the state before them,
  /// which is `border`. `history` is room for count + 1 such states.
  void (*backward_steps)(const StagedSteps<F>& tokens, std::int64_t v, const F* border, F* history, F* dS,
                         const StepGradients<F>& gradients);

  // The chunk form. Matrices have whole lines of columns; rows follow each other at once where no distance is given.

  /// decay [count, width], the tokens' log decays: finds the first count' tokens whose sums b_t since the first one (b_0 = 0)
  /// stay within [-span, span], and returns count'. With m half of the last sum, decay becomes e^(b_t - m), lead e^(a + m)
  /// with the first token's log decay a, and trail e^m.
  std::int64_t (*channel_decays)(std::int64_t count, std::int64_t width, F span, F* decay, F* lead, F* trail);
  /// Row i of x, or column j, times its factor.
  void (*scale_rows)(std::int64_t rows, std::int64_t columns, const F* factors, F* x, std::int64_t x_row);
  void (*scale_columns)(std::int64_t rows, std::int64_t columns, const F* factors, F* x, std::int64_t x_row);
  void (*multiply_elements)(std::int64_t size, const F* factors, F* x);
  void (*divide_elements)(std::int64_t size, const F* divisors, F* x);
  /// sums [columns] = sums of x * y over the rows.
  void (*sum_products)(std::int64_t rows, std::int64_t columns, const F* x, const F* y, F* sums);
  /// da_t = passing + sum_{i < t} k_i dk_of_state_i + sum_{i >= t} (q_i dq_i - k_i dk_i), channel by channel.
  void (*gate_gradients)(std::int64_t count, std::int64_t width, const F* q, const F* dq, const F* k, const F* dk,
                         const F* dk_of_state, const F* passing, F* da);
  /// dq = (dq + diagonal k) decay, dk_sum += (dk + dk_of_state + diagonal q) / decay; decay null is 1.
  void (*complete_gradients)(std::int64_t count, std::int64_t width, const F* q, const F* k, const F* diagonal, const F* decay,
                             const F* dk_of_state, F* dq, const F* dk, F* dk_sum);
};

/// Columns that `advance` and `backward_steps` take at a time.
constexpr std::int64_t kColumns = 4;

/// The kernels for instruction_set().
template <class F>
const SimdKernels<F>& simd_kernels();

}  // namespace glade::cpu
