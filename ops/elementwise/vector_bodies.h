#pragma once
// Loop bodies on the CPU of the operations whose functions are called for many elements at once (core/vector_math.h).
#include <tuple>

#include <glade/core/cpu_loops.h>
#include <glade/core/vector_math.h>
#include <glade/ops/elementwise/functors.h>

namespace glade::cpu {

/// f(n, out, in...) computes n <= detail::kBlock elements in the type that T's are computed in.
template <class T, class F>
struct VectorBody {
  using C = compute_t<T>;
  F f;

  template <class... In>
  void of_many(std::int64_t n, T* out, const In*... in) const {
    detail::Block<C> result;
    std::tuple<Widened<In>...> blocks;
    for (std::int64_t first = 0; first < n; first += detail::kBlock) {
      const std::int64_t count = std::min(detail::kBlock, n - first);
      std::apply(
          [&](auto&... block) {
            if constexpr (std::is_same_v<T, C>) {
              f(count, out + first, block.of(in + first, count)...);
            } else {
              f(count, result.values, block.of(in + first, count)...);
              for (std::int64_t i = 0; i < count; ++i) out[first + i] = T(result.values[i]);
            }
          },
          blocks);
    }
  }

 private:
  template <class In>
  struct Widened {
    detail::Block<C> block;
    const C* of(const In* x, std::int64_t n) {
      if constexpr (std::is_same_v<In, C>) {
        return x;
      } else {
        for (std::int64_t i = 0; i < n; ++i) block.values[i] = static_cast<C>(x[i]);
        return block.values;
      }
    }
  };
};

template <class T, class F>
VectorBody<T, F> vector_body(F f) {
  return {f};
}

/// The body that the CPU's loops run for `body`.
template <class Body>
const Body& cpu_body(const Body& body) {
  return body;
}
// Of 16 bits no conversion is needed.
/// From -0 to -infinity bits become 0, while positive numbers and NaN stay.
template <class T>
  requires(sizeof(T) == 2)
auto cpu_body(const functors::UnaryBody<functors::Relu, T>&) {
  return [](T x) {
    constexpr std::uint16_t kNegative = 0x8000, kNegativeInfinity = std::is_same_v<T, bfloat16> ? 0xff80 : 0xfc00;
    const bool negative = static_cast<std::uint16_t>(x.bits - kNegative) <= kNegativeInfinity - kNegative;
    x.bits = negative ? std::uint16_t{0} : x.bits;
    return x;
  };
}
template <class T>
  requires(sizeof(T) == 2)
auto cpu_body(const functors::UnaryBody<functors::Negative, T>&) {
  return [](T x) {
    x.bits ^= 0x8000;
    return x;
  };
}
template <class T>
  requires(sizeof(T) == 2)
auto cpu_body(const functors::UnaryBody<functors::Abs, T>&) {
  return [](T x) {
    x.bits &= 0x7fff;
    return x;
  };
}
/// One of the two, as floats compare.
template <class Op, class T>
  requires(sizeof(T) == 2) && (std::is_same_v<Op, functors::Maximum> || std::is_same_v<Op, functors::Minimum>)
auto cpu_body(const functors::BinaryBody<Op, T>&) {
  return [](T a, T b) {
    const float x = a, y = b;
    const bool wins = std::is_same_v<Op, functors::Maximum> ? x > y : x < y, is_nan = x != x;
    a.bits = wins | is_nan ? a.bits : b.bits;
    return a;
  };
}
template <class T>
auto cpu_body(const functors::UnaryBody<functors::Sin, T>&) {
  return vector_body<T>([f = vector_math<compute_t<T>>().sin](std::int64_t n, auto* out, const auto* x) { f(n, x, out); });
}
template <class T>
auto cpu_body(const functors::UnaryBody<functors::Cos, T>&) {
  return vector_body<T>([f = vector_math<compute_t<T>>().cos](std::int64_t n, auto* out, const auto* x) { f(n, x, out); });
}
template <class T>
auto cpu_body(const functors::UnaryBackwardBody<functors::Sin, T>&) {
  return vector_body<T>([f = vector_math<compute_t<T>>().cos](std::int64_t n, auto* out, const auto* gradient, const auto* x) {
    detail::Block<compute_t<T>> cosine;
    f(n, x, cosine.values);
    for (std::int64_t i = 0; i < n; ++i) out[i] = gradient[i] * cosine.values[i];
  });
}
template <class T>
auto cpu_body(const functors::UnaryBackwardBody<functors::Cos, T>&) {
  return vector_body<T>([f = vector_math<compute_t<T>>().sin](std::int64_t n, auto* out, const auto* gradient, const auto* x) {
    detail::Block<compute_t<T>> sine;
    f(n, x, sine.values);
    for (std::int64_t i = 0; i < n; ++i) out[i] = -gradient[i] * sine.values[i];
  });
}
template <class T>
  requires std::is_floating_point_v<compute_t<T>>
auto cpu_body(const functors::BinaryBody<functors::Power, T>&) {
  return vector_body<T>(
      [f = vector_math<compute_t<T>>().pow](std::int64_t n, auto* out, const auto* x, const auto* y) { f(n, x, y, out); });
}
template <class T>
  requires std::is_floating_point_v<compute_t<T>>
auto cpu_body(const functors::WithScalarBody<functors::Power, T>& body) {
  return vector_body<T>([f = vector_math<compute_t<T>>().pow, y = body.number](std::int64_t n, auto* out, const auto* x) {
    detail::Block<compute_t<T>> exponents;
    std::fill_n(exponents.values, n, y);
    f(n, x, exponents.values, out);
  });
}
template <class T>
  requires std::is_floating_point_v<compute_t<T>>
auto cpu_body(const functors::BinaryBody<functors::Remainder, T>&) {
  return vector_body<T>([f = vector_math<compute_t<T>>().fmod](std::int64_t n, auto* out, const auto* a, const auto* b) {
    detail::Block<compute_t<T>> rest;
    f(n, a, b, rest.values);
    for (std::int64_t i = 0; i < n; ++i) out[i] = functors::Remainder::from_rest(b[i], rest.values[i]);
  });
}
template <class T>
  requires std::is_floating_point_v<compute_t<T>>
auto cpu_body(const functors::BinaryBody<functors::FloorDivide, T>&) {
  return vector_body<T>([f = vector_math<compute_t<T>>().fmod](std::int64_t n, auto* out, const auto* a, const auto* b) {
    detail::Block<compute_t<T>> rest;
    f(n, a, b, rest.values);
    for (std::int64_t i = 0; i < n; ++i) out[i] = functors::FloorDivide::from_rest(a[i], b[i], rest.values[i]);
  });
}

}  // namespace glade::cpu
