#pragma once
// Element types of tensors, their promotion, and the step from a run-time DType to a C++ type.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include <glade/core/error.h>
#include <glade/core/float16.h>

namespace glade {

/// Element types: four of floating point, then integers and bool.
enum class DType : std::uint8_t { float64, float32, bfloat16, float16, int64, int32, uint8, boolean };

/// Bytes of one element.
std::size_t dtype_size(DType dtype);
/// "float32", "bool", ...
std::string_view dtype_name(DType dtype);
/// The inverse of dtype_name; ValueError for an unknown name.
DType dtype_from_name(std::string_view name);

constexpr bool is_floating(DType dtype) { return dtype <= DType::float16; }  ///< float64, float32, bfloat16 or float16.
constexpr bool is_integral(DType dtype) { return dtype > DType::float16; }   ///< bool included

/// The type of `a op b` by the array API standard; where the standard is silent, floating point beats integers and
/// bfloat16 with float16 gives float32.
DType promote(DType a, DType b);

/// The DType whose elements are T; a compile-time error for other types.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) return DType::float64;
  else if constexpr (std::is_same_v<T, float>) return DType::float32;
  else if constexpr (std::is_same_v<T, bfloat16>) return DType::bfloat16;
  else if constexpr (std::is_same_v<T, float16>) return DType::float16;
  else if constexpr (std::is_same_v<T, std::int64_t>) return DType::int64;
  else if constexpr (std::is_same_v<T, std::int32_t>) return DType::int32;
  else if constexpr (std::is_same_v<T, std::uint8_t>) return DType::uint8;
  else if constexpr (std::is_same_v<T, bool>) return DType::boolean;
  else static_assert(!sizeof(T*), "no DType for this type");
}

/// A bool in memory: any byte but 0 is true. Other libraries write more than 0 and 1, which is all that C++ expects of a bool.
struct BoolByte {
  std::uint8_t byte;  ///< 0 for false.

  BoolByte() = default;
  /// The byte that C++ writes for it.
  GLADE_HOST_DEVICE GLADE_INLINE BoolByte(bool value) : byte(value) {}  // NOLINT(google-explicit-constructor): is a bool
  GLADE_HOST_DEVICE GLADE_INLINE operator bool() const { return byte != 0; }
};
/// As what elements of type T are read.
template <class T>
using stored_t = std::conditional_t<std::is_same_v<T, bool>, BoolByte, T>;
/// Elements of type T, to be read.
template <class T>
const stored_t<T>* stored(const T* elements) {
  return reinterpret_cast<const stored_t<T>*>(elements);
}

/// Stands for a C++ type where a value is needed, in calls of visit_floating() and the like.
template <class T>
struct TypeTag {
  using type = T;  ///< The C++ type that the tag stands for.
};

namespace detail {
[[noreturn]] void throw_dtype(const char* expected, DType given);
}

/// Calls f(TypeTag<T>{}) for the C++ type of a float64, float32, bfloat16 or float16 dtype; DTypeError for others.
template <class F>
decltype(auto) visit_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float64: return f(TypeTag<double>{});
    case DType::float32: return f(TypeTag<float>{});
    case DType::bfloat16: return f(TypeTag<bfloat16>{});
    case DType::float16: return f(TypeTag<float16>{});
    default: detail::throw_dtype("a floating-point tensor", dtype);
  }
}

/// The same for every dtype.
template <class F>
decltype(auto) visit_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::int64: return f(TypeTag<std::int64_t>{});
    case DType::int32: return f(TypeTag<std::int32_t>{});
    case DType::uint8: return f(TypeTag<std::uint8_t>{});
    case DType::boolean: return f(TypeTag<bool>{});
    default: return visit_floating(dtype, std::forward<F>(f));
  }
}

/// The same for int64 and int32, the types of indices; DTypeError for others.
template <class F>
decltype(auto) visit_index(DType dtype, F&& f) {
  switch (dtype) {
    case DType::int64: return f(TypeTag<std::int64_t>{});
    case DType::int32: return f(TypeTag<std::int32_t>{});
    default: detail::throw_dtype("int64 or int32 indices", dtype);
  }
}

/// A number given where a tensor could stand. It never widens a tensor's dtype within its kind: a real number leaves
/// every floating dtype and turns integers into float32; an integer leaves every dtype but bool.
class Scalar {
 public:
  /// A real number stands for every floating-point type, an integer for every type but bool.
  template <class T>
    requires std::is_arithmetic_v<T>
  Scalar(T value)  // NOLINT(google-explicit-constructor): literals stand for scalars
      : kind_(std::is_same_v<T, bool>       ? DType::boolean
              : std::is_floating_point_v<T> ? DType::float32
                                            : DType::int64),
        real_(static_cast<double>(value)),
        integer_(static_cast<std::int64_t>(value)) {}

  /// The dtype of an operation of this number with a tensor of `dtype`.
  DType promoted(DType dtype) const;
  /// The number as a T; real numbers lose their fraction where T is an integer.
  template <class T>
  T to() const {
    if constexpr (std::is_same_v<T, bool>) return kind_ == DType::float32 ? real_ != 0 : integer_ != 0;
    else if constexpr (std::is_integral_v<T>)
      return static_cast<T>(kind_ == DType::float32 ? static_cast<std::int64_t>(real_) : integer_);
    else if constexpr (std::is_same_v<T, double>) return real_;
    else return T(static_cast<float>(real_));
  }
  double real() const { return real_; }  ///< The number as float64, whatever it was given as.
  Scalar negated() const { return kind_ == DType::float32 ? Scalar(-real_) : Scalar(-integer_); }  ///< -x, of the same kind.

 private:
  DType kind_;
  double real_;
  std::int64_t integer_;
};

}  // namespace glade
