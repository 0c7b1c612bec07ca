#include <glade/ops/elementwise/elementwise.h>

#include <cmath>
#include <limits>

#include <glade/autograd/node.h>
#include <glade/autograd/running_pass.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/loops.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/elementwise/elementwise_kernels.h>
#include <glade/ops/reduce/reduce.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

constexpr DType real_dtype(DType dtype) { return is_floating(dtype) ? dtype : DType::float32; }

void check_defined(const char* operation, const Tensor& x) {
  if (!x.defined()) fail<ValueError>("{}: an operand is undefined", operation);
}

// ---- one operand -----------------------------------------------------------------------------------------------------

/// Whether the derivative is a function of the result rather than of the operand (see unary_functors.h).
constexpr bool saves_output(Unary op) {
  switch (op) {
    case Unary::relu:
    case Unary::exp:
    case Unary::sqrt:
    case Unary::rsqrt:
    case Unary::reciprocal:
    case Unary::expm1:
    case Unary::tanh:
    case Unary::sigmoid: return true;
    default: return false;
  }
}

constexpr bool keeps_integers(Unary op) {
  switch (op) {
    case Unary::negative:
    case Unary::abs:
    case Unary::square:
    case Unary::relu:
    case Unary::floor:
    case Unary::ceil:
    case Unary::round:
    case Unary::trunc:
    case Unary::sign: return true;
    default: return false;
  }
}

/// The derivative in differentiable operations, for backward passes that are themselves recorded.
Tensor derivative(Unary op, const Tensor& saved) {
  const Tensor& x = saved;
  const Tensor& y = saved;
  switch (op) {
    case Unary::negative: return full(x.shape(), -1, x.options());
    case Unary::abs: return to(gt(x, 0), x.dtype()) - to(lt(x, 0), x.dtype());
    case Unary::square: return x * 2;
    case Unary::relu: return to(gt(y, 0), y.dtype());
    case Unary::exp: return y;
    case Unary::log: return reciprocal(x);
    case Unary::sqrt: return 0.5 / y;
    case Unary::rsqrt: return y * y * y * -0.5;
    case Unary::reciprocal: return -(y * y);
    case Unary::expm1: return y + 1;
    case Unary::log1p: return reciprocal(x + 1);
    case Unary::erf: return exp(-square(x)) * 1.1283791670955126;
    case Unary::floor:
    case Unary::ceil:
    case Unary::round:
    case Unary::trunc:
    case Unary::sign: return zeros_like(x);
    case Unary::sin: return cos(x);
    case Unary::cos: return -sin(x);
    case Unary::tanh: return 1 - y * y;
    case Unary::sigmoid: return y * (1 - y);
    case Unary::logsigmoid: return sigmoid(-x);
    case Unary::softplus: return sigmoid(x);
    case Unary::silu: {
      const Tensor s = sigmoid(x);
      return s * (1 + x * (1 - s));
    }
    case Unary::gelu_erf: {
      // Phi(x) = gelu(x) / x has no closed form in the other operations; its derivative is the normal density.
      const Tensor density = exp(square(x) * -0.5) * 0.39894228040143268;
      Tensor phi = empty_like(x);
      const Tensor reference = x.detach();
      GLADE_DISPATCH(x.device(), unary_backward, Unary::gelu_erf, phi, ones_like(reference), reference);
      phi = phi - (reference * density).detach();  // gelu'(x) = Phi(x) + x density(x)
      autograd::record("normal_cdf", phi, {&x}, [density = SavedTensor(density)](const Node&, const Tensor& gradient) {
        return Tensors{gradient * density.get()};
      });
      return phi + x * density;
    }
    case Unary::gelu_tanh: {
      constexpr double c = 2 * 0.79788456080286536;
      const Tensor s = sigmoid((x + x * x * x * 0.044715) * c);
      return s + x * s * (1 - s) * ((x * x * (3 * 0.044715) + 1) * c);
    }
  }
  return {};
}

Tensor apply(const char* name, Unary op, const Tensor& x) {
  check_defined(name, x);
  if (x.dtype() == DType::boolean && keeps_integers(op)) fail<DTypeError>("{}: expected numbers, got bool", name);
  if (!keeps_integers(op) && !is_floating(x.dtype())) return apply(name, op, to(x, real_dtype(x.dtype())));
  Tensor y = empty_result(x.shape(), x.dtype(), {&x});
  GLADE_DISPATCH(x.device(), unary, op, y, x);
  if (!autograd::any_requires_grad({&x})) return y;
  autograd::record(
      name, y, {&x},
      [op, saved = saves_output(op) ? SavedTensor::output(y) : SavedTensor(x)](const Node& node, const Tensor& gradient) {
        const Tensor at = saved.get();
        if (GradMode::enabled()) return Tensors{gradient * derivative(op, at)};
        Tensor result = autograd::empty_gradient_with_gaps(node, 0, at);
        GLADE_DISPATCH(at.device(), unary_backward, op, result, gradient, at);
        return Tensors{result};
      });
  return y;
}

[[noreturn]] void fail_bools(const char* name) {
  fail<DTypeError>("{}: expected numbers, got bool and bool (for logic write &, | or ^)", name);
}

// ---- two operands ----------------------------------------------------------------------------------------------------

/// What two operands have in common: the dtype to compute in and the shape of the result.
struct Common {
  DType dtype;
  Shape shape;
  bool is_dtype_of(const Tensor& a, const Tensor& b) const { return a.dtype() == dtype && b.dtype() == dtype; }
};

Common common(const char* name, const Tensor& a, const Tensor& b, bool real) {
  check_defined(name, a);
  check_defined(name, b);
  check_same_device(name, {{"the first operand", &a}, {"the second operand", &b}});
  DType dtype = promote(a.dtype(), b.dtype());
  if (real) dtype = real_dtype(dtype);
  if (dtype == DType::boolean) fail_bools(name);
  return {dtype, broadcast_shapes(a.shape(), b.shape(), name)};
}

/// Sums a gradient over the dimensions that its operand was broadcast along.
void unbroadcast(Tensor& gradient, const Shape& shape) {
  if (gradient.defined() && !(gradient.shape() == shape)) gradient = sum_to(gradient, shape);
}

/// Backward is F(node, gradient, a, b) -> {gradient of a, gradient of b}, before summing over broadcast dimensions.
template <class F>
Tensor apply(const char* name, Binary op, const Tensor& a, const Tensor& b, bool real, F backward) {
  const Common of = common(name, a, b, real);
  if (!of.is_dtype_of(a, b)) return apply(name, op, to(a, of.dtype), to(b, of.dtype), real, backward);
  Tensor out = empty_result(of.shape, of.dtype, {&a, &b});
  GLADE_DISPATCH(out.device(), binary, op, out, a, b);
  if (!autograd::any_requires_grad({&a, &b})) return out;
  autograd::record(name, out, {&a, &b},
                   [backward, a = SavedTensor(a), b = SavedTensor(b)](const Node& node, const Tensor& gradient) {
                     const Tensor x = a.get(), y = b.get();
                     Tensors gradients = backward(node, gradient, x, y);
                     unbroadcast(gradients[0], x.shape());
                     unbroadcast(gradients[1], y.shape());
                     return gradients;
                   });
  return out;
}

/// For add and subtract, whose derivatives need the operands' shapes alone.
Tensor apply_linear(const char* name, Binary op, const Tensor& a, const Tensor& b) {
  const Common of = common(name, a, b, false);
  if (!of.is_dtype_of(a, b)) return apply_linear(name, op, to(a, of.dtype), to(b, of.dtype));
  Tensor out = empty_result(of.shape, of.dtype, {&a, &b});
  GLADE_DISPATCH(out.device(), binary, op, out, a, b);
  if (!autograd::any_requires_grad({&a, &b})) return out;
  autograd::record(name, out, {&a, &b}, [op, a_shape = a.shape(), b_shape = b.shape()](const Node& node, const Tensor& gradient) {
    Tensors gradients(2);
    if (node.needs_grad(0)) gradients[0] = gradient;
    if (node.needs_grad(1)) gradients[1] = op == Binary::subtract ? -gradient : gradient;
    unbroadcast(gradients[0], a_shape);
    unbroadcast(gradients[1], b_shape);
    return gradients;
  });
  return out;
}

/// The extremes share their gradient where the operands tie.
template <class Wins>
Tensor apply_extreme(const char* name, Binary op, const Tensor& first, const Tensor& second, Wins wins) {
  return apply(name, op, first, second, false, [wins](const Node&, const Tensor& gradient, const Tensor& a, const Tensor& b) {
    const Tensor share = to(wins(a, b), gradient.dtype()) + to(eq(a, b), gradient.dtype()) * 0.5;
    return Tensors{gradient * share, gradient * (1 - share)};
  });
}

/// One bound of clamp. Unlike the extremes, x has all of the gradient where it is at the bound.
Tensor apply_bound(Binary op, const Tensor& x, const Tensor& bound) {
  return apply("clamp", op, x, bound, false, [op](const Node&, const Tensor& gradient, const Tensor& a, const Tensor& b) {
    const bool is_lower = op == Binary::maximum;
    const Tensor keeps = is_lower ? ge(a, b) : le(a, b), changes = is_lower ? lt(a, b) : gt(a, b);
    return Tensors{gradient * to(keeps, gradient.dtype()), gradient * to(changes, gradient.dtype())};
  });
}

// ---- a tensor and a number -------------------------------------------------------------------------------------------

/// Backward is F(gradient, x) -> the gradient of x; x is undefined unless saves_x.
template <class F>
Tensor apply(const char* name, WithScalar op, const Tensor& x, Scalar number, bool real, bool saves_x, F backward) {
  check_defined(name, x);
  DType dtype = number.promoted(x.dtype());
  if (real) dtype = real_dtype(dtype);
  if (dtype == DType::boolean) fail_bools(name);
  if (x.dtype() != dtype) return apply(name, op, to(x, dtype), number, real, saves_x, backward);
  Tensor y = empty_result(x.shape(), dtype, {&x});
  GLADE_DISPATCH(x.device(), with_scalar, op, y, x, number);
  if (!autograd::any_requires_grad({&x})) return y;
  autograd::record(name, y, {&x}, [backward, x = saves_x ? SavedTensor(x) : SavedTensor()](const Node&, const Tensor& gradient) {
    return Tensors{backward(gradient, x.get())};
  });
  return y;
}

Tensor compare(const char* name, Comparison op, const Tensor& first, const Tensor& second) {
  check_defined(name, first);
  check_defined(name, second);
  check_same_device(name, {{"the first operand", &first}, {"the second operand", &second}});
  const DType dtype = promote(first.dtype(), second.dtype());
  const Tensor out = empty_result(broadcast_shapes(first.shape(), second.shape(), name), DType::boolean, {&first, &second});
  GLADE_DISPATCH(out.device(), compare, op, out, to_data(first, dtype), to_data(second, dtype));
  return out;
}

/// That the result's type can hold the number.
void check_number(const char* name, const Tensor& x, Scalar number) {
  check_defined(name, x);
  const DType dtype = number.promoted(x.dtype());
  if (dtype == DType::boolean) fail_bools(name);
  check_fits(name, number, dtype);
}

/// A number as an operand of arithmetic.
Tensor operand_like(const char* name, const Tensor& x, Scalar number) {
  check_number(name, x, number);
  return full({}, number, {number.promoted(x.dtype()), x.device()});
}

/// Refuses a number by which no integer can be divided.
void check_divisor(const char* name, const Tensor& x, Scalar divisor) {
  check_number(name, x, divisor);
  if (divisor.real() == 0 && is_integral(divisor.promoted(x.dtype()))) fail<ValueError>("{}: division of integers by 0", name);
}

/// To compare with x: in int64 what x's own type cannot hold. Bools are beside 0 and 1 what they are beside false and true.
Tensor scalar_like(const Tensor& x, Scalar value) {
  if (x.dtype() == DType::boolean && (value.real() == 0 || value.real() == 1)) value = value.real() == 1;
  const DType dtype = value.promoted(x.dtype());
  return full({}, value, {fits(value, dtype) ? dtype : DType::int64, x.device()});
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return apply_linear("add", Binary::add, a, b); }
Tensor subtract(const Tensor& a, const Tensor& b) { return apply_linear("subtract", Binary::subtract, a, b); }

Tensor multiply(const Tensor& a, const Tensor& b) {
  return apply("multiply", Binary::multiply, a, b, false,
               [](const Node& node, const Tensor& gradient, const Tensor& x, const Tensor& y) {
                 Tensors gradients(2);
                 if (node.needs_grad(0) && node.needs_grad(1) && !GradMode::enabled() && x.shape() == y.shape()) {
                   gradients = {empty_like(x), empty_like(y)};
                   GLADE_DISPATCH(x.device(), multiply_backward, gradients[0], gradients[1], gradient, x, y);
                   return gradients;
                 }
                 if (node.needs_grad(0)) gradients[0] = gradient * y;
                 if (node.needs_grad(1)) gradients[1] = gradient * x;
                 return gradients;
               });
}

Tensor divide(const Tensor& a, const Tensor& b) {
  return apply("divide", Binary::divide, a, b, true,
               [](const Node& node, const Tensor& gradient, const Tensor& x, const Tensor& y) {
                 const Tensor over = gradient / y;
                 return Tensors{over, node.needs_grad(1) ? -(over * (x / y)) : Tensor{}};
               });
}

Tensor power(const Tensor& a, const Tensor& b) {
  return apply("power", Binary::power, a, b, false,
               [](const Node& node, const Tensor& gradient, const Tensor& x, const Tensor& y) {
                 Tensors gradients(2);
                 const Tensor zero = scalar_like(x, 0.0);
                 if (node.needs_grad(0)) gradients[0] = where(eq(y, zero), zero, gradient * y * power(x, y - 1));  // 0^0 is flat
                 if (node.needs_grad(1)) gradients[1] = where(eq(x, zero), zero, gradient * power(x, y) * log(x));
                 return gradients;
               });
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  return apply_extreme("maximum", Binary::maximum, a, b, [](const Tensor& x, const Tensor& y) { return gt(x, y); });
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return apply_extreme("minimum", Binary::minimum, a, b, [](const Tensor& x, const Tensor& y) { return lt(x, y); });
}

Tensor add(const Tensor& a, Scalar b) {
  check_number("add", a, b);
  return apply("add", WithScalar::add, a, b, false, false, [](const Tensor& gradient, const Tensor&) { return gradient; });
}
Tensor subtract(const Tensor& a, Scalar b) {
  check_number("subtract", a, b);
  return apply("subtract", WithScalar::add, a, b.negated(), false, false,
               [](const Tensor& gradient, const Tensor&) { return gradient; });
}
Tensor subtract(Scalar a, const Tensor& b) {
  check_number("subtract", b, a);
  return apply("subtract", WithScalar::reverse_subtract, b, a, false, false,
               [](const Tensor& gradient, const Tensor&) { return -gradient; });
}
Tensor multiply(const Tensor& a, Scalar b) {
  check_number("multiply", a, b);
  return apply("multiply", WithScalar::multiply, a, b, false, false,
               [b](const Tensor& gradient, const Tensor&) { return gradient * b; });
}
Tensor divide(const Tensor& a, Scalar b) {
  return apply("divide", WithScalar::divide, a, b, true, false,
               [b](const Tensor& gradient, const Tensor&) { return gradient / b; });
}
Tensor divide(Scalar a, const Tensor& b) {
  return apply("divide", WithScalar::reverse_divide, b, a, true, true,
               [a](const Tensor& gradient, const Tensor& x) { return -(gradient * (a / square(x))); });
}
Tensor power(const Tensor& a, Scalar b) {
  check_number("power", a, b);
  if (b.real() < 0 && is_integral(b.promoted(a.dtype())))
    fail<ValueError>("power: integers to the power {} are no integers; convert them to floating point first", b.real());
  return apply("power", WithScalar::power, a, b, false, true, [b](const Tensor& gradient, const Tensor& x) {
    const double exponent = b.real();
    return exponent == 0 ? zeros_like(gradient) : gradient * (power(x, exponent - 1) * exponent);
  });
}

Tensor power(Scalar a, const Tensor& b) { return power(operand_like("power", b, a), b); }

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  NoGradGuard no_grad;
  return apply("floor_divide", Binary::floor_divide, a, b, false,
               [](const Node&, const Tensor&, const Tensor&, const Tensor&) { return Tensors(2); });
}
Tensor floor_divide(const Tensor& a, Scalar b) {
  check_divisor("floor_divide", a, b);
  return floor_divide(a, operand_like("floor_divide", a, b));
}
Tensor floor_divide(Scalar a, const Tensor& b) { return floor_divide(operand_like("floor_divide", b, a), b); }

Tensor remainder(const Tensor& a, const Tensor& b) {
  return apply("remainder", Binary::remainder, a, b, false,
               [](const Node& node, const Tensor& gradient, const Tensor& x, const Tensor& y) {
                 return Tensors{gradient, node.needs_grad(1) ? -(gradient * floor_divide(x, y)) : Tensor{}};
               });
}
Tensor remainder(const Tensor& a, Scalar b) {
  check_divisor("remainder", a, b);
  return remainder(a, operand_like("remainder", a, b));
}
Tensor remainder(Scalar a, const Tensor& b) { return remainder(operand_like("remainder", b, a), b); }

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", Comparison::equal, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", Comparison::not_equal, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", Comparison::less, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", Comparison::less_equal, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", Comparison::less, b, a); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare("ge", Comparison::less_equal, b, a); }
Tensor eq(const Tensor& a, Scalar b) { return eq(a, scalar_like(a, b)); }
Tensor ne(const Tensor& a, Scalar b) { return ne(a, scalar_like(a, b)); }
Tensor lt(const Tensor& a, Scalar b) { return lt(a, scalar_like(a, b)); }
Tensor le(const Tensor& a, Scalar b) { return le(a, scalar_like(a, b)); }
Tensor gt(const Tensor& a, Scalar b) { return gt(a, scalar_like(a, b)); }
Tensor ge(const Tensor& a, Scalar b) { return ge(a, scalar_like(a, b)); }

Tensor where(const Tensor& condition, const Tensor& first, const Tensor& second) {
  check_defined("where", condition);
  check_defined("where", first);
  check_defined("where", second);
  if (condition.dtype() != DType::boolean) fail<DTypeError>("where: the condition must be bool, got {}", condition.dtype());
  check_same_device("where", {{"the condition", &condition}, {"the first operand", &first}, {"the second operand", &second}});
  const DType dtype = promote(first.dtype(), second.dtype());
  const Shape shape = broadcast_shapes(condition.shape(), broadcast_shapes(first.shape(), second.shape(), "where"), "where");
  const Tensor a = to(first, dtype), b = to(second, dtype);
  Tensor out = empty_result(shape, dtype, {&a, &b, &condition});
  GLADE_DISPATCH(out.device(), where, out, condition, a, b);
  autograd::record(
      "where", out, {&a, &b},
      [condition = SavedTensor(condition), a_shape = a.shape(), b_shape = b.shape()](const Node& node, const Tensor& gradient) {
        const Tensor zero = scalar_like(gradient, 0.0), chosen = condition.get();
        Tensors gradients(2);
        if (node.needs_grad(0)) gradients[0] = sum_to(where(chosen, gradient, zero), a_shape);
        if (node.needs_grad(1)) gradients[1] = sum_to(where(chosen, zero, gradient), b_shape);
        return gradients;
      });
  return out;
}

Tensor negative(const Tensor& x) { return apply("negative", Unary::negative, x); }
Tensor abs(const Tensor& x) { return apply("abs", Unary::abs, x); }
Tensor square(const Tensor& x) { return apply("square", Unary::square, x); }
Tensor exp(const Tensor& x) { return apply("exp", Unary::exp, x); }
Tensor log(const Tensor& x) { return apply("log", Unary::log, x); }
Tensor sqrt(const Tensor& x) { return apply("sqrt", Unary::sqrt, x); }
Tensor rsqrt(const Tensor& x) { return apply("rsqrt", Unary::rsqrt, x); }
Tensor reciprocal(const Tensor& x) { return apply("reciprocal", Unary::reciprocal, x); }
Tensor expm1(const Tensor& x) { return apply("expm1", Unary::expm1, x); }
Tensor log1p(const Tensor& x) { return apply("log1p", Unary::log1p, x); }
Tensor erf(const Tensor& x) { return apply("erf", Unary::erf, x); }
Tensor floor(const Tensor& x) { return apply("floor", Unary::floor, x); }
Tensor ceil(const Tensor& x) { return apply("ceil", Unary::ceil, x); }
Tensor round(const Tensor& x) { return apply("round", Unary::round, x); }
Tensor trunc(const Tensor& x) { return apply("trunc", Unary::trunc, x); }
Tensor sign(const Tensor& x) { return apply("sign", Unary::sign, x); }
Tensor sin(const Tensor& x) { return apply("sin", Unary::sin, x); }
Tensor cos(const Tensor& x) { return apply("cos", Unary::cos, x); }
Tensor tanh(const Tensor& x) { return apply("tanh", Unary::tanh, x); }
Tensor sigmoid(const Tensor& x) { return apply("sigmoid", Unary::sigmoid, x); }
Tensor logsigmoid(const Tensor& x) { return apply("logsigmoid", Unary::logsigmoid, x); }
Tensor softplus(const Tensor& x) { return apply("softplus", Unary::softplus, x); }
Tensor relu(const Tensor& x) { return apply("relu", Unary::relu, x); }
Tensor silu(const Tensor& x) { return apply("silu", Unary::silu, x); }
Tensor gelu(const Tensor& x, GeluForm form) {
  return apply("gelu", form == GeluForm::erf ? Unary::gelu_erf : Unary::gelu_tanh, x);
}

Tensor clamp(const Tensor& operand, std::optional<Scalar> min, std::optional<Scalar> max) {
  check_defined("clamp", operand);
  if (!min && !max) fail<ValueError>("clamp: expected min, max or both");
  if (min && max && min->real() > max->real()) fail<ValueError>("clamp: min {} is above max {}", min->real(), max->real());
  if (operand.dtype() == DType::boolean) fail<DTypeError>("clamp: expected numbers, got bool");
  DType dtype = operand.dtype();
  for (const auto& bound : {min, max})
    if (bound) dtype = promote(dtype, bound->promoted(operand.dtype()));
  const Tensor x = to(operand, dtype);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Scalar low = min.value_or(-infinity), high = max.value_or(infinity);
  if (is_integral(dtype)) {  // bounds beyond what it can hold bound nothing, but for those on the other side
    const auto [lowest, highest] = IntegerRange::of(dtype);
    const std::int64_t least = min ? min->to<std::int64_t>() : lowest, most = max ? max->to<std::int64_t>() : highest;
    if (least > highest) check_fits("clamp", least, dtype);
    if (most < lowest) check_fits("clamp", most, dtype);
    low = std::max(least, lowest);
    high = std::min(most, highest);
  }
  Tensor y = empty_result(x.shape(), dtype, {&x});
  const auto is_nan = [](const std::optional<Scalar>& bound) { return bound && std::isnan(bound->real()); };
  if (is_nan(min) || is_nan(max)) fill_data(y, std::numeric_limits<double>::quiet_NaN());
  else GLADE_DISPATCH(x.device(), clamp, y, x, low, high);
  if (!autograd::any_requires_grad({&x})) return y;
  autograd::record("clamp", y, {&x}, [x = SavedTensor(x), y = SavedTensor::output(y)](const Node&, const Tensor& gradient) {
    return Tensors{gradient * to(eq(x.get(), y.get()), gradient.dtype())};  // inside the range nothing was changed
  });
  return y;
}

Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max) {
  if (!min.defined() && !max.defined()) fail<ValueError>("clamp: expected min, max or both");
  const Tensor raised = !min.defined() ? x : apply_bound(Binary::maximum, x, min);
  return !max.defined() ? raised : apply_bound(Binary::minimum, raised, max);
}

Tensor to(const Tensor& x, DType dtype) {
  check_defined("to", x);
  if (dtype == x.dtype()) return x;
  Tensor y = to_data(x, dtype);
  autograd::record("to", y, {&x},
                   [from = x.dtype()](const Node&, const Tensor& gradient) { return Tensors{to(gradient, from)}; });
  return y;
}

Tensor to(const Tensor& x, Device device) {
  check_defined("to", x);
  if (device == x.device()) return x;
  Tensor y = to_data(x, device);
  autograd::record("to", y, {&x},
                   [from = x.device()](const Node&, const Tensor& gradient) { return Tensors{to(gradient, from)}; });
  return y;
}

Tensor to(const Tensor& x, Device device, DType dtype) { return to(to(x, dtype), device); }

Tensor Tensor::to(DType dtype) const { return glade::to(*this, dtype); }
Tensor Tensor::to(Device device) const { return glade::to(*this, device); }
Tensor Tensor::to(Device device, DType dtype) const { return glade::to(*this, device, dtype); }

Tensor clone(const Tensor& x) {
  check_defined("clone", x);
  Tensor y = empty_like(x);
  copy_data(y, x);
  autograd::record("clone", y, {&x}, [](const Node&, const Tensor& gradient) { return Tensors{gradient}; });
  return y;
}

}  // namespace glade
