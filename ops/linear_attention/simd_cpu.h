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
};

/// Columns that `advance` and `backward_steps` take at a time.
constexpr std::int64_t kColumns = 4;

/// The kernels for this processor. The environment variable GLADE_SIMD (portable, avx2, avx512) can ask for a narrower set.
template <class F>
const SimdKernels<F>& simd_kernels();

}  // namespace glade::cpu
