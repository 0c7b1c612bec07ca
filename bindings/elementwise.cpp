// Elementwise functions, of the module and as methods of Tensor.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;
using TwoTensors = Tensor (*)(const Tensor&, const Tensor&);
using WithNumber = Tensor (*)(const Tensor&, Scalar);
using NumberFirst = Tensor (*)(Scalar, const Tensor&);

/// A number as a tensor that does not widen the other operand's dtype.
Tensor beside(const Tensor& x, Scalar number) { return full({}, number, {number.promoted(x.dtype()), x.device()}); }

void def_binary(py::module_& module, const char* name, TwoTensors two, WithNumber with_number, const std::string& doc) {
  const std::string with_errors = doc + " ShapeError for shapes that do not broadcast, DeviceError for tensors on two devices.";
  def_both(module, name, two, arg("a"), arg("b"), Unlocked(), with_errors.c_str());
  def_both(module, name, with_number, arg("a"), arg("b"), Unlocked());
}

DType promoted_dtype(const Tensor& a, const Tensor& b) { return promote(a.dtype(), b.dtype()); }
DType promoted_dtype(const Tensor& a, Scalar b) { return b.promoted(a.dtype()); }

/// op(a, alpha * b), a sum or a difference. In 16 bits it is rounded once.
template <class B>
Tensor scaled(TwoTensors op, const Tensor& a, const B& b, Scalar alpha) {
  const DType dtype = promoted_dtype(a, b);
  const bool widens = dtype == DType::bfloat16 || dtype == DType::float16;
  Tensor other;
  if constexpr (std::is_same_v<B, Tensor>) other = widens ? to(b, DType::float32) : b;
  else other = widens ? full({}, b, {DType::float32, a.device()}) : beside(a, b);
  const Tensor product = multiply(other, alpha);
  return widens ? to(op(to(a, DType::float32), product), dtype) : op(a, product);
}
template <class B>
void def_scaled_by(py::module_& module, const char* name, TwoTensors op) {
  def_both(
      module, name, [op](const Tensor& a, const B& b, Scalar alpha) { return scaled(op, a, b, alpha); }, arg("a"), arg("b"),
      py::kw_only(), arg("alpha"), Unlocked());
}
/// a + alpha * b, or a - alpha * b.
void def_scaled(py::module_& module, const char* name, TwoTensors op) {
  def_scaled_by<Tensor>(module, name, op);
  def_scaled_by<Scalar>(module, name, op);
}

/// divide(a, b, rounding_mode="floor") and "trunc".
template <class B>
void def_rounded_division(py::module_& module) {
  def_both(
      module, "divide",
      [](const Tensor& a, const B& b, const std::optional<std::string>& rounding_mode) {
        if (!rounding_mode) return divide(a, b);
        if (*rounding_mode == "floor") return floor_divide(a, b);
        if (*rounding_mode != "trunc")
          throw ValueError("divide: rounding_mode is '" + *rounding_mode + "', expected 'floor' or 'trunc'");
        if (!is_floating(promoted_dtype(a, b)))
          throw DTypeError("divide: rounding_mode 'trunc' takes floating-point tensors; 'floor' takes integers too");
        return trunc(divide(a, b));
      },
      arg("a"), arg("b"), py::kw_only(), arg("rounding_mode"), Unlocked());
}

void def_unary(py::module_& module, const char* name, Tensor (*op)(const Tensor&), const char* doc) {
  def_both(module, name, op, arg("x"), Unlocked(), doc);
}

}  // namespace

void bind_elementwise(py::module_& module) {
  def_binary(module, "add", add, add,
             "a + b, or a + alpha * b, broadcast; b may be a number. The result has the promoted dtype.");
  def_scaled(module, "add", add);
  def_binary(module, "subtract", subtract, subtract,
             "a - b, or a - alpha * b, broadcast; either may be a number. The result has the promoted dtype.");
  def_scaled(module, "subtract", subtract);
  module.def("subtract", static_cast<NumberFirst>(subtract), arg("a"), arg("b"), Unlocked());
  def_binary(module, "multiply", multiply, multiply, "a * b, broadcast; b may be a number. The result has the promoted dtype.");
  def_binary(
      module, "divide", divide, divide,
      "a / b, broadcast; either may be a number. Integers give float32. With rounding_mode=\"floor\" it is floor_divide, with "
      "\"trunc\" rounded towards 0, of floating point alone.");
  def_rounded_division<Tensor>(module);
  def_rounded_division<Scalar>(module);
  module.def("divide", static_cast<NumberFirst>(divide), arg("a"), arg("b"), Unlocked());
  def_binary(
      module, "power", power, power,
      "a to the power of b, broadcast; either may be a number. Integers to the power of integers stay integers, which wrap "
      "around. The gradient with respect to b is taken as 0 where a is 0. ValueError for integers to the power of a negative "
      "number.");
  module.def("power", static_cast<NumberFirst>(power), arg("a"), arg("b"), Unlocked());
  def_binary(
      module, "floor_divide", floor_divide, floor_divide,
      "a / b rounded down, as Python's //; either may be a number. Integers stay integers, and give 0 where an element of b "
      "is 0. Without a gradient. ValueError for integers and the number 0.");
  module.def("floor_divide", static_cast<NumberFirst>(floor_divide), arg("a"), arg("b"), Unlocked());
  def_binary(module, "remainder", remainder, remainder,
             "What floor_divide leaves, of b's sign, as Python's %; either may be a number. Integers stay integers, and give 0 "
             "where an element of b is 0. ValueError for integers and the number 0.");
  module.def("remainder", static_cast<NumberFirst>(remainder), arg("a"), arg("b"), Unlocked());
  def_binary(
      module, "maximum", maximum, [](const Tensor& a, Scalar b) { return maximum(a, beside(a, b)); },
      "The larger of a and b, broadcast; b may be a number. Ties share the gradient; NaN wins.");
  def_binary(
      module, "minimum", minimum, [](const Tensor& a, Scalar b) { return minimum(a, beside(a, b)); },
      "The smaller of a and b, broadcast; b may be a number. Ties share the gradient; NaN wins.");
  def_binary(module, "eq", eq, eq, "Whether a == b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "ne", ne, ne, "Whether a != b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "lt", lt, lt, "Whether a < b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "le", le, le, "Whether a <= b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "gt", gt, gt, "Whether a > b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "ge", ge, ge, "Whether a >= b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "bitwise_and", bitwise_and, bitwise_and,
             "a & b, bit by bit for integers, logic for bools; broadcast, b may be a number. DTypeError for floating point.");
  def_binary(module, "bitwise_or", bitwise_or, bitwise_or,
             "a | b, bit by bit for integers, logic for bools; broadcast, b may be a number. DTypeError for floating point.");
  def_binary(module, "bitwise_xor", bitwise_xor, bitwise_xor,
             "a ^ b, bit by bit for integers, logic for bools; broadcast, b may be a number. DTypeError for floating point.");
  def_unary(module, "bitwise_not", bitwise_not, "~x, bit by bit for integers, logic for bools. DTypeError for floating point.");
  def_unary(module, "isnan", isnan, "Whether each element is NaN: a bool tensor.");
  def_unary(module, "isinf", isinf, "Whether each element is infinite: a bool tensor.");
  def_unary(module, "isfinite", isfinite, "Whether each element is neither infinite nor NaN: a bool tensor.");

  constexpr const char* where_doc =
      "a where `condition` (bool) holds, else b; all three broadcast. a and b may be numbers, which alone give int64, float32 or "
      "bool. Without a and b, nonzero(condition, as_tuple=True). DTypeError for a condition that is not bool, ShapeError for "
      "shapes that do not broadcast.";
  module.def("where", static_cast<Tensor (*)(const Tensor&, const Tensor&, const Tensor&)>(where), arg("condition"), arg("a"),
             arg("b"), Unlocked(), where_doc);
  module.def(
      "where", [](const Tensor& condition, const Tensor& a, Scalar b) { return where(condition, a, beside(a, b)); },
      arg("condition"), arg("a"), arg("b"), Unlocked());
  module.def(
      "where", [](const Tensor& condition, Scalar a, const Tensor& b) { return where(condition, beside(b, a), b); },
      arg("condition"), arg("a"), arg("b"), Unlocked());
  module.def(
      "where",
      [](const Tensor& condition, Scalar a, Scalar b) {
        const DType dtype = b.promoted(a.promoted(DType::boolean));
        return where(condition, full({}, a, {dtype, condition.device()}), full({}, b, {dtype, condition.device()}));
      },
      arg("condition"), arg("a"), arg("b"), Unlocked());

  def_method(
      "where", [](const Tensor& self, const Tensor& condition, const Tensor& other) { return where(condition, self, other); },
      arg("condition"), arg("other"), Unlocked(), "glade.where(condition, self, other), which says more.");
  def_method(
      "where",
      [](const Tensor& self, const Tensor& condition, Scalar other) { return where(condition, self, beside(self, other)); },
      arg("condition"), arg("other"), Unlocked());

  def_unary(module, "negative", negative, "-x. DTypeError for bool.");
  def_unary(module, "abs", abs, "|x|. DTypeError for bool.");
  def_unary(module, "square", square, "x * x. DTypeError for bool.");
  def_unary(module, "exp", exp, "e to the power of x. Integers give float32.");
  def_unary(module, "log", log, "The natural logarithm of x. Integers give float32.");
  def_unary(module, "sqrt", sqrt, "The square root of x. Integers give float32.");
  def_unary(module, "rsqrt", rsqrt, "1 / sqrt(x). Integers give float32.");
  def_unary(module, "reciprocal", reciprocal, "1 / x. Integers give float32.");
  def_unary(module, "expm1", expm1, "exp(x) - 1, exact near 0. Integers give float32.");
  def_unary(module, "log1p", log1p, "log(1 + x), exact near 0. Integers give float32.");
  def_unary(module, "erf", erf, "The error function. Integers give float32.");
  def_unary(module, "floor", floor, "x rounded down. DTypeError for bool.");
  def_unary(module, "ceil", ceil, "x rounded up. DTypeError for bool.");
  def_unary(module, "round", round, "x rounded to whole numbers, halves to even ones. DTypeError for bool.");
  def_unary(module, "trunc", trunc, "x without its fraction. DTypeError for bool.");
  def_unary(module, "sign", sign, "-1, 0 or 1; 0 for NaN. DTypeError for bool.");
  def_unary(module, "sin", sin, "The sine of x. Integers give float32.");
  def_unary(module, "cos", cos, "The cosine of x. Integers give float32.");
  def_unary(module, "tanh", tanh, "The hyperbolic tangent of x. Integers give float32.");
  def_unary(module, "sigmoid", sigmoid, "1 / (1 + exp(-x)). Integers give float32.");
  def_unary(module, "logsigmoid", logsigmoid, "log(sigmoid(x)), without overflow. Integers give float32.");
  def_unary(module, "softplus", softplus, "log(1 + exp(x)), without overflow. Integers give float32.");
  def_unary(module, "relu", relu, "max(x, 0). DTypeError for bool.");
  def_unary(module, "silu", silu, "x * sigmoid(x), also called swish. Integers give float32.");
  def_both(
      module, "gelu",
      [](const Tensor& x, const std::string& approximate) {
        if (approximate != "none" && approximate != "tanh")
          throw ValueError("gelu: approximate is '" + approximate + "', expected 'none' or 'tanh'");
        return gelu(x, approximate == "tanh" ? GeluForm::tanh : GeluForm::erf);
      },
      arg("x"), arg("approximate") = "none", Unlocked(),
      "x * Phi(x), Phi the normal distribution (arXiv 1606.08415); approximate=\"tanh\" takes the faster form by tanh. "
      "ValueError for "
      "another `approximate`.");
  def_both(
      module, "clamp", static_cast<Tensor (*)(const Tensor&, std::optional<Scalar>, std::optional<Scalar>)>(clamp), arg("x"),
      arg("min") = py::none(), arg("max") = py::none(), Unlocked(),
      "x limited to [min, max], numbers or tensors, of which one may be left out. ValueError where min > max, or without both.");
  def_both(
      module, "clamp",
      [](const Tensor& x, const std::optional<Tensor>& min, const std::optional<Tensor>& max) {
        return clamp(x, or_undefined(min), or_undefined(max));
      },
      arg("x"), arg("min") = py::none(), arg("max") = py::none(), Unlocked());
  def_both(
      module, "masked_fill", static_cast<Tensor (*)(const Tensor&, const Tensor&, Scalar)>(masked_fill), arg("x"), arg("mask"),
      arg("value"), Unlocked(),
      "`value`, a number or a tensor, where `mask` (bool) holds, else x, in x's dtype; broadcast. DTypeError for another mask "
      "or a value that x's dtype cannot hold.");
  def_both(
      module, "masked_fill",
      [](const Tensor& x, const Tensor& mask, const Tensor& value) {
        const Tensor number = to(value, x.dtype());  // one without dimensions may lie on the CPU, as in PyTorch
        return where(mask, number.ndim() == 0 ? to(number, x.device()) : number, x);
      },
      arg("x"), arg("mask"), arg("value"), Unlocked());
  def_unary(module, "clone", clone, "A row-major copy with its own memory. Differentiable.");

  def_method("to", static_cast<Tensor (*)(const Tensor&, DType)>(to), arg("dtype"), Unlocked(),
             "Converted to a dtype, moved to a device, or both, in either order, or both as another tensor is; the tensor itself "
             "where nothing changes. Differentiable. non_blocking is read for PyTorch's programs and changes nothing.");
  def_method(
      "to", [](const Tensor& x, const Device& device, bool) { return to(x, device); }, arg("device"), py::kw_only(),
      arg("non_blocking") = false, Unlocked());
  def_method(
      "to", [](const Tensor& x, const Tensor& other) { return to(x, other.device(), other.dtype()); }, arg("other"), Unlocked());
  def_method(
      "to", [](const Tensor& x, const Device& device, DType dtype) { return to(to(x, dtype), device); }, arg("device"),
      arg("dtype"), Unlocked());
  def_method(
      "to", [](const Tensor& x, DType dtype, const Device& device) { return to(to(x, dtype), device); }, arg("dtype"),
      arg("device"), Unlocked());
  def_method("cpu", [](const Tensor& x) { return to(x, kCPU); }, Unlocked(), "On the CPU; the tensor itself where it is there.");
  def_method(
      "cuda", [](const Tensor& x, int index, bool) { return to(x, Device{DeviceType::cuda, index}); }, arg("index") = 0,
      py::kw_only(), arg("non_blocking") = false, Unlocked(),
      "On the GPU of that number; the tensor itself where it is there. non_blocking changes nothing. DeviceError without one.");
  def_method("float", [](const Tensor& x) { return to(x, DType::float32); }, Unlocked(), "Converted to float32.");
  def_method("double", [](const Tensor& x) { return to(x, DType::float64); }, Unlocked(), "Converted to float64.");
  def_method("half", [](const Tensor& x) { return to(x, DType::float16); }, Unlocked(), "Converted to float16.");
  def_method("bfloat16", [](const Tensor& x) { return to(x, DType::bfloat16); }, Unlocked(), "Converted to bfloat16.");
  def_method("int", [](const Tensor& x) { return to(x, DType::int32); }, Unlocked(), "Converted to int32.");
  def_method("long", [](const Tensor& x) { return to(x, DType::int64); }, Unlocked(), "Converted to int64.");
  def_method(
      "bool", [](const Tensor& x) { return to(x, DType::boolean); }, Unlocked(),
      "Converted to bool: whether each element is not 0.");

  // In place. Methods return self, so that calls can follow one another.
  def_method(
      "copy_", [](const Tensor& x, const Tensor& source) { return copy_(x, source); }, arg("source"), Unlocked(),
      "Overwrites the tensor with `source`, converted to its dtype and device and broadcast. Not recorded: AutogradError where "
      "either requires a gradient, outside no_grad.");
  def_method(
      "fill_", [](const Tensor& x, Scalar value) { return fill_(x, value); }, arg("value"), Unlocked(),
      "Overwrites all elements with a number. Not recorded: AutogradError where the tensor requires a gradient, outside "
      "no_grad.");
  def_method(
      "zero_", [](const Tensor& x) { return zero_(x); }, Unlocked(),
      "Overwrites all elements with 0. Not recorded: AutogradError where the tensor requires a gradient, outside no_grad.");
  const auto def_in_place = [](const char* name, auto tensor, auto number, const std::string& what) {
    const std::string doc =
        what +
        ", broadcast; y may be a number. Not recorded: AutogradError where either requires a gradient, outside "
        "no_grad. DTypeError where a tensor of integers cannot hold the result.";
    def_method(name, tensor, arg("y"), Unlocked(), doc.c_str());
    def_method(name, number, arg("y"), Unlocked());
  };
  def_method(
      "add_", [](const Tensor& x, const Tensor& y, Scalar alpha) { return add_(x, y, alpha); }, arg("y"), py::kw_only(),
      arg("alpha") = 1, Unlocked(),
      "Adds alpha * y, broadcast, to the tensor; y may be a number. Not recorded: AutogradError where either requires a "
      "gradient, "
      "outside no_grad.");
  def_method("add_", [](const Tensor& x, Scalar y) { return add_(x, y); }, arg("y"), Unlocked());
  def_method(
      "subtract_", [](const Tensor& x, const Tensor& y, Scalar alpha) { return add_(x, y, alpha.negated()); }, arg("y"),
      py::kw_only(), arg("alpha") = 1, Unlocked(),
      "Subtracts alpha * y, broadcast, from the tensor; y may be a number. Not recorded: AutogradError where either requires a "
      "gradient, outside no_grad.");
  def_method(
      "subtract_",  // uint8 holds no negative number
      [](const Tensor& x, Scalar y) { return is_floating(x.dtype()) ? add_(x, y.negated()) : add_(x, beside(x, y), -1); },
      arg("y"), Unlocked());
  def_in_place(
      "multiply_", [](const Tensor& x, const Tensor& y) { return multiply_(x, y); },
      [](const Tensor& x, Scalar y) { return multiply_(x, y); }, "Multiplies the tensor by y");
  def_in_place(
      "divide_", [](const Tensor& x, const Tensor& y) { return divide_(x, y); },
      [](const Tensor& x, Scalar y) { return divide_(x, y); }, "Divides the tensor by y");
  def_method(
      "clamp_", [](const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max) { return clamp_(x, min, max); },
      arg("min") = py::none(), arg("max") = py::none(), Unlocked(),
      "Limits the elements to [min, max]. Not recorded: AutogradError where the tensor requires a gradient, outside no_grad. "
      "ValueError where min > max, or without both.");
  def_method(
      "masked_fill_", [](const Tensor& x, const Tensor& mask, Scalar value) { return masked_fill_(x, mask, value); }, arg("mask"),
      arg("value"), Unlocked(),
      "Overwrites the elements where `mask` (bool, broadcast) holds with a number. Not recorded: AutogradError where the tensor "
      "requires a gradient, outside no_grad. DTypeError for a value that the dtype cannot hold.");
}

}  // namespace glade::python
