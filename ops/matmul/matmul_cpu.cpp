#include <cblas.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include <glade/core/format.h>
#include <glade/core/interrupt.h>
#include <glade/core/parallel.h>
#include <glade/core/tensor.h>
#include <glade/ops/matmul/matmul_kernels.h>

namespace glade::cpu {

namespace {

template <class T>
void library_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const T* a, int lda, const T* b, int ldb, T beta,
                  T* out) {
  if constexpr (std::is_same_v<T, float>) cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, beta, out, n);
  else cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, beta, out, n);
}

/// y += op(matrix) x.
template <class T>
void library_gemv(CBLAS_TRANSPOSE trans, int rows, int columns, const T* matrix, int leading, const T* x, int x_step, T* y) {
  if constexpr (std::is_same_v<T, float>)
    cblas_sgemv(CblasRowMajor, trans, rows, columns, 1, matrix, leading, x, x_step, 1, y, 1);
  else cblas_dgemv(CblasRowMajor, trans, rows, columns, 1, matrix, leading, x, x_step, 1, y, 1);
}

template <class T>
void multiply(const Gemm& p, const T* a, const T* b, const T* addend, T* out) {
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const int lda = static_cast<int>(p.a.leading), ldb = static_cast<int>(p.b.leading);
  const bool vector = m == 1 || n == 1;
  if (p.bias != nullptr || (addend != nullptr && addend != out)) {
    parallel_for(p.m, kGrain / p.n + 1, [&](std::int64_t begin, std::int64_t end) {
      const T* const bias = static_cast<const T*>(p.bias);
      for (std::int64_t i = begin; i < end; ++i) {
        T* const row = out + i * p.n;
        if (addend != nullptr && addend != out) std::copy_n(addend + i * p.n, p.n, row);
        if (bias == nullptr) continue;
        if (addend == nullptr) std::copy_n(bias, p.n, row);
        else std::transform(bias, bias + p.n, row, row, std::plus<T>());
      }
    });
  } else if (vector && addend == nullptr) {
    std::fill_n(out, p.m * p.n, T(0));
  }
  if (m == 1) {
    const int step = p.a.transposed ? lda : 1;
    if (p.b.transposed) library_gemv(CblasNoTrans, n, k, b, ldb, a, step, out);
    else library_gemv(CblasTrans, k, n, b, ldb, a, step, out);
  } else if (n == 1) {
    const int step = p.b.transposed ? 1 : ldb;
    if (p.a.transposed) library_gemv(CblasTrans, k, m, a, lda, b, step, out);
    else library_gemv(CblasNoTrans, m, k, a, lda, b, step, out);
  } else {
    library_gemm(p.a.transposed ? CblasTrans : CblasNoTrans, p.b.transposed ? CblasTrans : CblasNoTrans, m, n, k, a, lda, b, ldb,
                 T(p.bias != nullptr || addend != nullptr ? 1 : 0), out);
  }
}

template <class T>
void multiply_batch(const Gemm& p) {
  // Rows of product i from `row` on.
  const auto multiply_rows = [&](std::int64_t i, std::int64_t row, std::int64_t rows) {
    Gemm part = p;
    part.m = rows;
    const std::int64_t at = i * p.out_batch_stride + row * p.n;
    multiply(part, static_cast<const T*>(p.a.data) + i * p.a.batch_stride + row * (p.a.transposed ? 1 : p.a.leading),
             static_cast<const T*>(p.b.data) + i * p.b.batch_stride,
             p.addend != nullptr ? static_cast<const T*>(p.addend) + at : nullptr, static_cast<T*>(p.out) + at);
  };
  // Many products, or small ones: each on one thread (inside a parallel region the library uses no more). Else the
  // library spreads each over all threads, and long ones are taken in parts between which they can be interrupted.
  constexpr double kSmall = 1 << 18, kLong = 1e10;
  const double work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  if (p.batch > 1 && (work < kSmall || p.batch >= 4 * omp_get_max_threads())) {
    Interruption interruption;
    parallel_for(p.batch, 1 + static_cast<std::int64_t>(kSmall / work), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end && !interruption.requested(); ++i) multiply_rows(i, 0, p.m);
    });
    interruption.rethrow();
  } else {
    const std::int64_t rows =
        work < kLong ? p.m : std::max<std::int64_t>(256, static_cast<std::int64_t>(kLong / work * static_cast<double>(p.m)));
    for (std::int64_t i = 0; i < p.batch; ++i) {
      for (std::int64_t row = 0; row < p.m; row += rows) {
        check_interrupt();
        multiply_rows(i, row, std::min(rows, p.m - row));
      }
    }
  }
}

/// Copies `batch` matrices of rows * columns elements, converting them, and adds what lies at the same places from `addend` on
/// where that is not null.
template <class From, class To>
void convert(std::int64_t batch, std::int64_t rows, std::int64_t columns, const From* from, std::int64_t from_batch,
             std::int64_t from_row, To* to, std::int64_t to_batch, std::int64_t to_row, const To* addend = nullptr) {
  parallel_for(batch * rows, kGrain / columns + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const From* source = from + i / rows * from_batch + i % rows * from_row;
      const std::int64_t at = i / rows * to_batch + i % rows * to_row;
      To* target = to + at;
      if (addend == nullptr) {
#pragma GCC ivdep
        for (std::int64_t j = 0; j < columns; ++j) target[j] = To(float(source[j]));
      } else {
#pragma GCC ivdep
        for (std::int64_t j = 0; j < columns; ++j) target[j] = To(float(addend[at + j]) + float(source[j]));
      }
    }
  });
}

/// Part of x in float32: matrices from `first` on, `rows` by `columns` from (row, column) on.
template <class T>
GemmMatrix widen(const GemmMatrix& x, std::int64_t first, std::int64_t batch, std::int64_t row, std::int64_t column,
                 std::int64_t rows, std::int64_t columns, const Tensor& buffer) {
  const T* source = static_cast<const T*>(x.data) + first * x.batch_stride;
  source += x.transposed ? column * x.leading + row : row * x.leading + column;
  if (x.transposed) std::swap(rows, columns);
  if (x.batch_stride == 0) batch = 1;
  convert(batch, rows, columns, source, x.batch_stride, x.leading, buffer.data<float>(), rows * columns, columns);
  return {buffer.raw_data(), columns, x.batch_stride == 0 ? 0 : rows * columns, x.transposed};
}

/// Returns the dot product of a 16-bit row and x, summed in float32.
template <class T>
float dot(const T* row, const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 32;  // sums that run at a time
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
#pragma GCC ivdep
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += float(row[i + lane]) * x[i + lane];
  for (std::int64_t lane = 0; i + lane < n; ++lane) sums[lane] += float(row[i + lane]) * x[i + lane];
  return std::accumulate(sums, sums + kLanes, 0.f);
}

/// Computes a 16-bit product with one row or one column, reading the other operand once: converting it to float32 first would
/// take longer than the product. Returns false, and does nothing, if the numbers that it sums up are not contiguous.
template <class T, class Out>
bool multiply_by_vector(const Gemm& p) {
  const bool one_row = p.m == 1;
  const GemmMatrix &matrix = one_row ? p.b : p.a, &vector = one_row ? p.a : p.b;
  if (p.batch != 1 || !(one_row || p.n == 1) || matrix.transposed != one_row) return false;
  check_interrupt();
  const Tensor wide = empty({p.k});
  widen<T>(vector, 0, 1, 0, 0, one_row ? 1 : p.k, one_row ? p.k : 1, wide);
  const float* const x = wide.data<float>();
  parallel_for(one_row ? p.n : p.m, kGrain / p.k + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float sum = dot(static_cast<const T*>(matrix.data) + i * matrix.leading, x, p.k);
      if (p.bias != nullptr) sum += float(static_cast<const T*>(p.bias)[one_row ? i : 0]);
      if (p.addend != nullptr) sum += float(static_cast<const Out*>(p.addend)[i]);
      static_cast<Out*>(p.out)[i] = Out(sum);
    }
  });
  return true;
}

/// 16-bit products: blocks of the operands are converted to float32, multiplied there, and the result is rounded once. Out: T or
/// float.
template <class T, class Out>
void multiply_through_float32(const Gemm& p) {
  if (multiply_by_vector<T, Out>(p)) return;
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;  // floats of an operand's block
  const std::int64_t columns = std::min(p.n, std::max<std::int64_t>(kBlock / p.k, 64));
  const std::int64_t rows = std::min(p.m, std::max<std::int64_t>(kBlock / std::max(p.k, columns), 64));
  const bool whole = rows == p.m && columns == p.n;
  const std::int64_t batch =
      whole ? std::clamp<std::int64_t>(kBlock / std::max({rows * p.k, p.k * columns, rows * columns}), 1, p.batch) : 1;
  const Tensor a = empty({batch * rows * p.k}), b = empty({batch * p.k * columns}), out = empty({batch * rows * columns}),
               bias = empty({p.n});
  if (p.bias != nullptr) convert(1, 1, p.n, static_cast<const T*>(p.bias), 0, 0, bias.data<float>(), 0, 0);

  for (std::int64_t i = 0; i < p.batch; i += batch) {
    for (std::int64_t column = 0; column < p.n; column += columns) {
      Gemm block{.device = p.device, .k = p.k};
      block.batch = std::min(batch, p.batch - i);
      block.n = std::min(columns, p.n - column);
      block.b = widen<T>(p.b, i, block.batch, 0, column, p.k, block.n, b);
      if (p.bias != nullptr) block.bias = bias.data<float>() + column;
      block.out = out.raw_data();
      for (std::int64_t row = 0; row < p.m; row += rows) {
        block.m = std::min(rows, p.m - row);
        block.a = widen<T>(p.a, i, block.batch, row, 0, block.m, p.k, a);
        block.out_batch_stride = block.m * block.n;
        multiply_batch<float>(block);
        const std::int64_t at = i * p.out_batch_stride + row * p.n + column;
        convert(block.batch, block.m, block.n, out.data<float>(), block.out_batch_stride, block.n, static_cast<Out*>(p.out) + at,
                p.out_batch_stride, p.n, p.addend != nullptr ? static_cast<const Out*>(p.addend) + at : nullptr);
      }
    }
  }
}

}  // namespace

void gemm(const Gemm& p) {
  constexpr std::int64_t limit = std::numeric_limits<int>::max();
  if (std::max({p.m, p.n, p.k, p.a.leading, p.b.leading}) > limit)
    fail<ShapeError>("matmul: [{}, {}] times [{}, {}] with row steps {} and {}: BLAS takes sizes and steps up to {}", p.m, p.k,
                     p.k, p.n, p.a.leading, p.b.leading, limit);
  visit_floating(p.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (sizeof(T) == 2)
      p.out_dtype == p.dtype ? multiply_through_float32<T, T>(p) : multiply_through_float32<T, float>(p);
    else multiply_batch<T>(p);
  });
}

}  // namespace glade::cpu
