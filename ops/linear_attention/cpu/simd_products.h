#pragma once
// Vectors of GLADE_SIMD_BYTES bytes, and the matrix kernels that use them; see cpu/simd.h for what each kernel does.
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <glade/core/math.h>
#include <glade/ops/linear_attention/cpu/simd.h>

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

/// Stores a vector to an aligned address, with a non-temporal store if the processor has one.
template <class F>
GLADE_INLINE void stream(F* x, const Vector<F>& value) {
#if GLADE_SIMD_BYTES == 64
  _mm512_stream_si512(reinterpret_cast<__m512i*>(x), __builtin_bit_cast(__m512i, value));
#elif GLADE_SIMD_BYTES == 32
  _mm256_stream_si256(reinterpret_cast<__m256i*>(x), __builtin_bit_cast(__m256i, value));
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(x), __builtin_bit_cast(__m128i, value));
#else
  store(x, value);
#endif
}

/// The indices of the lanes of a vector, as a parameter pack.
template <class F>
using LaneIndices = std::make_index_sequence<static_cast<std::size_t>(kLanes<F>)>;

/// a0 b0 a1 b1 ... of the lower (`half` = 0) or upper (`half` = kLanes / 2) lanes of a and b.
template <std::size_t half, class F, std::size_t... I>
GLADE_INLINE Vector<F> interleave(const Vector<F>& a, const Vector<F>& b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (half + I / 2 + I % 2 * sizeof...(I))...);
}

/// The sum over the lanes.
template <class F, std::size_t... I>
GLADE_INLINE F sum(const Vector<F>& x, std::index_sequence<I...>) {
  Vector<F> total = x;  // adds one half of the lanes to the other, and so on
  if constexpr (sizeof...(I) > 8) total += __builtin_shufflevector(total, total, (I ^ 8)...);
  if constexpr (sizeof...(I) > 4) total += __builtin_shufflevector(total, total, (I ^ 4)...);
  if constexpr (sizeof...(I) > 2) total += __builtin_shufflevector(total, total, (I ^ 2)...);
  return total[0] + total[1];
}
template <class F>
GLADE_INLINE F sum(const Vector<F>& x) {
  return sum<F>(x, LaneIndices<F>());
}

/// Computes a block of kRows rows and kVectors vectors of c, which stays in registers.
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

/// The vectors per row of a block of four rows, which the registers must hold: 16 registers, or 32 with AVX-512.
constexpr int kBlockVectors = GLADE_SIMD_BYTES == 64 ? 4 : 2;

/// Multiplies all whole blocks of kVectors vectors of columns, then the remaining columns in narrower blocks.
template <int kVectors, class F>
GLADE_INLINE void multiply_columns(std::int64_t m, std::int64_t n, std::int64_t k, const F* a, std::int64_t a_row,
                                   std::int64_t a_column, const F* b, std::int64_t b_row, F* c, std::int64_t c_row, bool add) {
  constexpr std::int64_t kWidth = kVectors * kLanes<F>;
  constexpr int kRows = kVectors <= kBlockVectors / 2 ? 8 : 4;  // enough independent sums to hide the latency of additions
  for (; n >= kWidth; n -= kWidth, b += kWidth, c += kWidth) {
    std::int64_t i = 0;
    for (; i + kRows <= m; i += kRows)
      multiply_block<kRows, kVectors>(k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, add);
    for (; i < m; ++i) multiply_block<1, kVectors>(k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, add);
  }
  if constexpr (kVectors > 1) multiply_columns<kVectors - 1>(m, n, k, a, a_row, a_column, b, b_row, c, c_row, add);
}

template <class F>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const F* a, std::int64_t a_row, std::int64_t a_column, const F* b,
              std::int64_t b_row, F* c, std::int64_t c_row, bool add) {
  multiply_columns<kBlockVectors>(m, n, k, a, a_row, a_column, b, b_row, c, c_row, add);
}

template <class F>
void transpose(std::int64_t rows, std::int64_t columns, const F* in, std::int64_t in_row, F* out, std::int64_t out_row) {
  constexpr std::int64_t L = kLanes<F>;
  for (std::int64_t i = 0; i < rows; i += L)
    for (std::int64_t j = 0; j < columns; j += L) {
      Vector<F> block[L], mixed[L];
      for (std::int64_t r = 0; r < L; ++r) block[r] = load(in + (i + r) * in_row + j);
      for (std::int64_t distance = 1; distance < L; distance *= 2) {  // log2(L) perfect shuffles of the rows transpose the block
        for (std::int64_t r = 0; r < L / 2; ++r) {
          mixed[2 * r] = interleave<0, F>(block[r], block[r + L / 2], LaneIndices<F>());
          mixed[2 * r + 1] = interleave<L / 2, F>(block[r], block[r + L / 2], LaneIndices<F>());
        }
        for (std::int64_t r = 0; r < L; ++r) block[r] = mixed[r];
      }
      for (std::int64_t r = 0; r < L; ++r) store(out + (j + r) * out_row + i, block[r]);
    }
}

template <class F>
void stream_rows(std::int64_t rows, std::int64_t columns, F factor, const F* x, std::int64_t x_row, F* out,
                 std::int64_t out_row) {
  for (std::int64_t i = 0; i < rows; ++i, x += x_row, out += out_row)
    for (std::int64_t j = 0; j < columns; j += kLanes<F>) stream<F>(out + j, factor * load(x + j));
}

template <class F>
void exponentials(std::int64_t size, F* x) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < size; ++i) x[i] = math::exp(x[i]);
}

}  // namespace

}  // namespace glade::cpu
