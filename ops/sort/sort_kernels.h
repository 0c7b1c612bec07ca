#pragma once
// Kernels of ops/sort. Elements are compared by keys, unsigned integers in the order of the elements.
#include <cstdint>
#include <type_traits>

#include <glade/core/tensor.h>

namespace glade {

template <class T>
using sort_key_t = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// NaN is above all numbers, and 0 and -0 are equal.
template <class T>
GLADE_HOST_DEVICE sort_key_t<T> sort_key(T element, bool descending) {
  using Key = sort_key_t<T>;
  constexpr Key sign = Key{1} << (8 * sizeof(Key) - 1);
  const auto x = static_cast<compute_t<T>>(element);
  Key key;
  if constexpr (std::is_unsigned_v<T>) {
    key = x;
  } else if constexpr (std::is_integral_v<T>) {
    key = static_cast<Key>(x) ^ sign;
  } else {
    const auto bits = detail::bits_as<Key>(x + 0);  // -0 + 0 is 0
    key = bits ^ (Key(static_cast<std::make_signed_t<Key>>(bits) >> (8 * sizeof(Key) - 1)) | sign);
    key = x != x ? ~Key{0} : key;
  }
  return key ^ (Key{0} - Key{descending});
}

namespace cpu {
/// indices [rows, k], int64: the positions of the first k elements of each row of x [rows, n] in their order; both row-major.
void argsort(const Tensor& indices, const Tensor& x, bool descending);
}  // namespace cpu

namespace cuda {
void argsort(const Tensor& indices, const Tensor& x, bool descending);
}  // namespace cuda

}  // namespace glade
