#pragma once
// The loops of vector_math.h over SLEEF's functions, for the vectors of the file that includes this (*_avx2.cpp, *_avx512.cpp).
#include <cmath>
#include <cstring>
#include <limits>
#include <sleef.h>
#include <type_traits>

#include <glade/core/vector_math.h>

namespace glade::cpu {
namespace {

/// out = f(in...) in whole vectors; the last one is filled up with ones. Arguments are Vector in every f.
template <class Result, class Vector, class... More, class T, class... In>
void over_vectors(std::int64_t n, Result (*f)(Vector, More...), T* out, const In*... in) {
  constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(T);
  const auto step = [&](std::int64_t i, std::size_t bytes) {
    const auto load = [bytes](const T* from) {
      Vector v = Vector{} + T(1);
      std::memcpy(&v, from, bytes);
      return v;
    };
    const Vector y = f(load(in + i)...);
    std::memcpy(out + i, &y, bytes);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) step(i, sizeof(Vector));
  if (i < n) step(i, sizeof(T) * static_cast<std::size_t>(n - i));
}

/// fmod by the quotient's integer part, which rounding can only make one too large: so the rest is exact, and a second step at
/// most mends it. Where a quotient has no unit digit, by <cmath>.
template <class T>
void exact_remainder(std::int64_t n, const T* x, const T* y, T* out) {
  using Flag = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;  // as wide as T, for the loop to be vectorised
  const auto is_unsafe = [](T quotient) -> Flag { return !(std::abs(quotient) <= 1 / std::numeric_limits<T>::epsilon()); };
  Flag unsafe = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const T a = x[i], b = y[i], quotient = a / b, whole = std::trunc(quotient);
    const T rest = whole == 0 ? a : std::fma(-whole, b, a);
    const T mended = rest * std::copysign(T(1), a) < 0 ? rest + std::copysign(b, a) : rest;
    out[i] = std::copysign(mended, a);
    unsafe |= is_unsafe(quotient);
  }
  if (unsafe == 0) return;
  for (std::int64_t i = 0; i < n; ++i)
    if (is_unsafe(x[i] / y[i])) out[i] = std::fmod(x[i], y[i]);
}

template <class T, auto* sine, auto* cosine, auto* power>
constexpr VectorMath<T> kLoops{
    [](std::int64_t n, const T* x, T* out) { over_vectors(n, sine, out, x); },
    [](std::int64_t n, const T* x, T* out) { over_vectors(n, cosine, out, x); },
    [](std::int64_t n, const T* x, const T* y, T* out) { over_vectors(n, power, out, x, y); },
    [](std::int64_t n, const T* x, const T* y, T* out) { exact_remainder(n, x, y, out); },
};

}  // namespace
}  // namespace glade::cpu
