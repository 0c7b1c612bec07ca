#include <glade/core/dtype.h>

#include <array>
#include <cmath>
#include <limits>

#include <glade/core/format.h>
#include <glade/core/scalar_range.h>

namespace glade {

namespace {
struct Description {
  std::string_view name;
  std::size_t size;
};
constexpr std::array<Description, 8> kDescriptions{
    {{"float64", 8}, {"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"int64", 8}, {"int32", 4}, {"uint8", 1}, {"bool", 1}}};
const Description& describe(DType dtype) { return kDescriptions[static_cast<std::size_t>(dtype)]; }
}  // namespace

std::size_t dtype_size(DType dtype) { return describe(dtype).size; }
std::string_view dtype_name(DType dtype) { return describe(dtype).name; }

DType dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDescriptions.size(); ++i)
    if (kDescriptions[i].name == name) return static_cast<DType>(i);
  fail<ValueError>("unknown dtype '{}': expected float64, float32, bfloat16, float16, int64, int32, uint8 or bool", name);
}

void detail::throw_dtype(const char* expected, DType given) { fail<DTypeError>("expected {}, got {}", expected, given); }

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) && is_floating(b)) {
    const DType wider = std::min(a, b);
    return wider == DType::bfloat16 ? DType::float32 : wider;  // bfloat16 with float16: neither holds the other
  }
  if (is_floating(a)) return a;
  if (is_floating(b)) return b;
  return std::min(a, b);
}

DType Scalar::promoted(DType dtype) const {
  if (is_floating(dtype)) return dtype;
  if (kind_ == DType::float32) return DType::float32;
  return dtype == DType::boolean ? kind_ : dtype;
}

IntegerRange IntegerRange::of(DType dtype) {
  const auto range = []<class T>(TypeTag<T>) {
    return IntegerRange{std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max()};
  };
  switch (dtype) {
    case DType::int64: return range(TypeTag<std::int64_t>{});
    case DType::int32: return range(TypeTag<std::int32_t>{});
    case DType::uint8: return range(TypeTag<std::uint8_t>{});
    default: detail::throw_dtype("an integer type", dtype);
  }
}

bool fits(Scalar value, DType dtype) {
  if (!is_integral(dtype) || dtype == DType::boolean) return true;
  const bool whole_number = is_integral(value.promoted(DType::boolean));
  if (!whole_number && !(std::abs(value.real()) < 0x1p63)) return false;  // NaN too
  const auto [lowest, highest] = IntegerRange::of(dtype);
  const auto number = value.to<std::int64_t>();
  return number >= lowest && number <= highest;
}

void check_fits(const char* operation, Scalar value, DType dtype) {
  if (!fits(value, dtype)) fail<ValueError>("{}: {} does not fit in {}", operation, value.real(), dtype);
}

}  // namespace glade
