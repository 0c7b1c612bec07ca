#pragma once
// From operations and dtypes to loop bodies, written once for both devices: a Launcher is made of a device's loop.
#include <glade/core/loops.h>
#include <glade/ops/elementwise/functors.h>

namespace glade {

/// Calls f(TypeTag<T>{}) for every dtype an operation takes: floating point, and integers where takes_integers.
template <bool takes_integers, class F>
void visit_numbers(DType dtype, F&& f) {
  if constexpr (takes_integers) {
    visit_all(dtype, [&](auto tag) {
      if constexpr (std::is_same_v<typename decltype(tag)::type, bool>)
        detail::throw_dtype("a tensor of numbers", DType::boolean);
      else f(tag);
    });
  } else {
    visit_floating(dtype, f);
  }
}

/// The same for integers and bools.
template <class F>
void visit_bits(DType dtype, F&& f) {
  switch (dtype) {
    case DType::uint8: return f(TypeTag<std::uint8_t>{});
    case DType::boolean: return f(TypeTag<bool>{});
    default: return visit_index(dtype, f);
  }
}

/// Calls f with an unsigned integer of `size` bytes, for values that are only moved.
template <class F>
void visit_size(std::size_t size, F&& f) {
  switch (size) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

/// Run is a device's loop: run(plan, body, out, in...).
template <class Run>
struct Launcher {
  Run run;

  void unary(Unary op, const Tensor& out, const Tensor& x) const {
    functors::visit(op, [&](auto functor) {
      using Op = decltype(functor);
      visit_numbers<Op::takes_integers>(out.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        run(plan_loop(out.shape(), out, x), functors::UnaryBody<Op, T>{}, out.data<T>(), x.data<T>());
      });
    });
  }
  void unary_backward(Unary op, const Tensor& out, const Tensor& gradient, const Tensor& saved) const {
    functors::visit(op, [&](auto functor) {
      visit_floating(out.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        run(plan_loop(out.shape(), out, gradient, saved), functors::UnaryBackwardBody<decltype(functor), T>{}, out.data<T>(),
            gradient.data<T>(), saved.data<T>());
      });
    });
  }
  void binary(Binary op, const Tensor& out, const Tensor& a, const Tensor& b) const {
    functors::visit(op, [&](auto functor) {
      using Op = decltype(functor);
      visit_numbers<Op::takes_integers>(out.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        run(plan_loop(out.shape(), out, a, b), functors::BinaryBody<Op, T>{}, out.data<T>(), a.data<T>(), b.data<T>());
      });
    });
  }
  void bitwise(Bitwise op, const Tensor& out, const Tensor& a, const Tensor& b) const {
    functors::visit(op, [&](auto functor) {
      visit_bits(out.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        run(plan_loop(out.shape(), out, a, b), functors::BinaryBody<decltype(functor), T>{}, out.data<T>(), a.data<T>(),
            b.data<T>());
      });
    });
  }
  void logical_not(const Tensor& out, const Tensor& x) const {
    run(plan_loop(out.shape(), out, x), functors::NotBody{}, out.data<bool>(), x.data<bool>());
  }
  void with_scalar(WithScalar op, const Tensor& out, const Tensor& x, Scalar number) const {
    functors::visit(op, [&](auto functor) {
      using Op = decltype(functor);
      visit_numbers<Op::takes_integers>(out.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        const auto apply = [&](const auto& body) { run(plan_loop(out.shape(), out, x), body, out.data<T>(), x.data<T>()); };
        const auto y = number.to<compute_t<T>>();
        if constexpr (std::is_same_v<Op, functors::Power> && std::is_floating_point_v<compute_t<T>>)
          if (functors::visit_power(y, [&](auto power) { apply(functors::UnaryBody<decltype(power), T>{}); })) return;
        apply(functors::WithScalarBody<Op, T>{y});
      });
    });
  }
  void compare(Comparison op, const Tensor& out, const Tensor& a, const Tensor& b) const {
    functors::visit(op, [&](auto functor) {
      visit_all(a.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        run(plan_loop(out.shape(), out, a, b), functors::ComparisonBody<decltype(functor), T>{}, out.data<bool>(), a.data<T>(),
            b.data<T>());
      });
    });
  }
  void clamp(const Tensor& out, const Tensor& x, Scalar low, Scalar high) const {
    visit_numbers<true>(out.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      run(plan_loop(out.shape(), out, x), functors::ClampBody<T>{low.to<compute_t<T>>(), high.to<compute_t<T>>()}, out.data<T>(),
          x.data<T>());
    });
  }
  void add_scaled(const Tensor& out, const Tensor& x, const Tensor& y, Scalar alpha) const {
    visit_numbers<true>(out.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      run(plan_loop(out.shape(), out, x, y), functors::AddScaledBody<T>{alpha.to<compute_t<T>>()}, out.data<T>(), x.data<T>(),
          y.data<T>());
    });
  }
  void scale(const Tensor& out, const Tensor& x, const Tensor& factor) const {
    visit_floating(out.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      run(plan_loop(out.shape(), out, x, factor), functors::ScaleBody<T>{}, out.data<T>(), x.data<T>(),
          factor.data<compute_t<T>>());
    });
  }
  void where(const Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b) const {
    auto select = [&](auto bits) {
      using T = decltype(bits);
      run(plan_loop(out.shape(), out, condition, a, b), functors::WhereBody<T>{}, static_cast<T*>(out.raw_data()),
          static_cast<const std::uint8_t*>(condition.raw_data()), static_cast<const T*>(a.raw_data()),
          static_cast<const T*>(b.raw_data()));
    };
    visit_size(dtype_size(out.dtype()), select);
  }
};

}  // namespace glade
