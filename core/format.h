#pragma once
// fmt for glade's own types, and fail<ErrorType>(...). For .cpp and .cu files only: public headers do not need fmt.
#if defined(__CUDACC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR 1     // which fmt 9 turns off for nvcc, and then fails to compile
#pragma nv_diag_suppress 20208  // double for long double
#endif
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <glade/core/device.h>
#include <glade/core/dtype.h>
#include <glade/core/error.h>
#include <glade/core/shape.h>

template <>
struct fmt::formatter<glade::Shape> : fmt::formatter<std::string> {
  auto format(const glade::Shape& shape, format_context& ctx) const { return formatter<std::string>::format(shape.str(), ctx); }
};
template <>
struct fmt::is_range<glade::Shape, char> : std::false_type {};
template <>
struct fmt::formatter<glade::DType> : fmt::formatter<std::string_view> {
  auto format(glade::DType dtype, format_context& ctx) const {
    return formatter<std::string_view>::format(glade::dtype_name(dtype), ctx);
  }
};
template <>
struct fmt::formatter<glade::Device> : fmt::formatter<std::string> {
  auto format(const glade::Device& device, format_context& ctx) const {
    return formatter<std::string>::format(device.name(), ctx);
  }
};

namespace glade {

/// Throws E with a formatted message: fail<ShapeError>("matmul: {} x {}", a.shape(), b.shape()).
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace glade
