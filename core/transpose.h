#pragma once
// Transposes of small blocks on the CPU, in registers.
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

namespace glade::cpu {

namespace detail {

/// 16 bytes.
template <class T>
struct Lanes {
  static constexpr int count = 16 / sizeof(T);
  using Vector [[gnu::vector_size(16)]] = T;
};

/// a0 b0 a1 b1 ... of the lower halves, or of the upper ones.
template <class T, bool upper, std::size_t... I>
typename Lanes<T>::Vector interleave(typename Lanes<T>::Vector a, typename Lanes<T>::Vector b, std::index_sequence<I...>) {
  constexpr int n = Lanes<T>::count;
  return __builtin_shufflevector(a, b, (static_cast<int>(I) % 2 * n + (upper ? n / 2 : 0) + static_cast<int>(I) / 2)...);
}

}  // namespace detail

/// to[r * to_stride + c] = from[c * from_stride + r] for r < rows, c < columns. T is an unsigned integer.
template <class T>
void transpose(std::int64_t rows, std::int64_t columns, const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride) {
  using Vector = typename detail::Lanes<T>::Vector;
  constexpr int n = detail::Lanes<T>::count;
  const std::int64_t whole_rows = rows / n * n, whole_columns = columns / n * n;
  for (std::int64_t c = 0; c < whole_columns; c += n) {
    for (std::int64_t r = 0; r < whole_rows; r += n) {
      Vector block[n], next[n];
      for (int i = 0; i < n; ++i) std::memcpy(&block[i], from + (c + i) * from_stride + r, sizeof(Vector));
      for (int stage = 1; stage < n; stage *= 2) {  // interleaving rows with those half of them later, log2(n) times
        for (int i = 0; i < n / 2; ++i) {
          next[2 * i] = detail::interleave<T, false>(block[i], block[i + n / 2], std::make_index_sequence<n>{});
          next[2 * i + 1] = detail::interleave<T, true>(block[i], block[i + n / 2], std::make_index_sequence<n>{});
        }
        std::memcpy(block, next, sizeof block);
      }
      for (int i = 0; i < n; ++i) std::memcpy(to + (r + i) * to_stride + c, &block[i], sizeof(Vector));
    }
    for (std::int64_t r = whole_rows; r < rows; ++r)
      for (std::int64_t i = c; i < c + n; ++i) to[r * to_stride + i] = from[i * from_stride + r];
  }
  for (std::int64_t c = whole_columns; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r) to[r * to_stride + c] = from[c * from_stride + r];
}

}  // namespace glade::cpu
