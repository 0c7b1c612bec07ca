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

/// The element with this key; of several (0 and -0, all NaN) one of them, for which `is_unique` is false.
template <class T>
GLADE_HOST_DEVICE stored_t<T> element_of_key(sort_key_t<T> key, bool descending, bool& is_unique) {
  using Key = sort_key_t<T>;
  constexpr Key sign = Key{1} << (8 * sizeof(Key) - 1);
  key ^= Key{0} - Key{descending};
  is_unique = true;
  if constexpr (std::is_unsigned_v<T>) {
    return static_cast<stored_t<T>>(key);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(key ^ sign);
  } else {
    const auto x = detail::bits_as<compute_t<T>>(key & sign ? key ^ sign : static_cast<Key>(~key));
    is_unique = x == x && x != 0;
    return T(x);
  }
}

namespace cpu {
/// values and indices [rows, k]: the first k elements of each row of x [rows, n] in their order, and their positions, int64. All
/// are row-major. `values` may be undefined.
void sort(const Tensor& values, const Tensor& indices, const Tensor& x, bool descending);
}  // namespace cpu

namespace cuda {
void sort(const Tensor& values, const Tensor& indices, const Tensor& x, bool descending);
}  // namespace cuda

}  // namespace glade
