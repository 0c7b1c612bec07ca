#pragma once
// Tensors as plain pointers, for kernels and their argument structs.
#include <type_traits>

#include <glade/core/tensor.h>

namespace glade {

/// The first element, in the tensor's device's memory; null where the tensor is undefined. T may be const, void, or CUDA's own
/// name of a 16-bit type. DTypeError where T is another type than the tensor's.
template <class T = void>
T* pointer(const Tensor& x) {
  using Element = std::remove_const_t<T>;
  constexpr bool kHasDType =
      std::is_arithmetic_v<Element> || std::is_same_v<Element, bfloat16> || std::is_same_v<Element, float16>;
  if (!x.defined()) return nullptr;
  if constexpr (kHasDType) return x.data<Element>();
  else return static_cast<T*>(x.raw_data());
}

}  // namespace glade
