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

void def_unary(py::module_& module, const char* name, Tensor (*op)(const Tensor&), const char* doc) {
  def_both(module, name, op, arg("x"), Unlocked(), doc);
}

}  // namespace

void bind_elementwise(py::module_& module) {
  def_binary(module, "add", add, add, "a + b, broadcast; b may be a number. The result has the promoted dtype.");
  def_binary(module, "subtract", subtract, subtract,
             "a - b, broadcast; either may be a number. The result has the promoted dtype.");
  module.def("subtract", static_cast<NumberFirst>(subtract), arg("a"), arg("b"), Unlocked());
  def_binary(module, "multiply", multiply, multiply, "a * b, broadcast; b may be a number. The result has the promoted dtype.");
  def_binary(module, "divide", divide, divide, "a / b, broadcast; either may be a number. Integers give float32.");
  module.def("divide", static_cast<NumberFirst>(divide), arg("a"), arg("b"), Unlocked());
  def_binary(module, "power", power, power,
             "a to the power of b, broadcast; b may be a number. The gradient with respect to b is taken as 0 where a is 0.");
  def_binary(
      module, "maximum", maximum, [](const Tensor& a, Scalar b) { return maximum(a, beside(a, b)); },
      "The larger of a and b, broadcast; b may be a number. Ties share the gradient; NaN wins.");
  def_binary(
      module, "minimum", minimum, [](const Tensor& a, Scalar b) { return minimum(a, beside(a, b)); },
      "The smaller of a and b, broadcast; b may be a number. Ties share the gradient; NaN wins.");
  def_binary(module, "equal", equal, equal, "Whether a == b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "not_equal", not_equal, not_equal,
             "Whether a != b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "less", less, less, "Whether a < b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "less_equal", less_equal, less_equal,
             "Whether a <= b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "greater", greater, greater,
             "Whether a > b, element by element, broadcast: a bool tensor. b may be a number.");
  def_binary(module, "greater_equal", greater_equal, greater_equal,
             "Whether a >= b, element by element, broadcast: a bool tensor. b may be a number.");

  constexpr const char* where_doc =
      "a where `condition` (bool) holds, else b; all three broadcast. a or b may be a number. DTypeError for a "
      "condition that is not bool, ShapeError for shapes that do not broadcast.";
  module.def("where", static_cast<Tensor (*)(const Tensor&, const Tensor&, const Tensor&)>(where), arg("condition"), arg("a"),
             arg("b"), Unlocked(), where_doc);
  module.def(
      "where", [](const Tensor& condition, const Tensor& a, Scalar b) { return where(condition, a, beside(a, b)); },
      arg("condition"), arg("a"), arg("b"), Unlocked());
  module.def(
      "where", [](const Tensor& condition, Scalar a, const Tensor& b) { return where(condition, beside(b, a), b); },
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
  def_both(module, "clamp", clamp, arg("x"), arg("low"), arg("high"), Unlocked(),
           "x limited to [low, high], two numbers. ValueError where low > high.");
  def_unary(module, "clone", clone, "A row-major copy with its own memory. Differentiable.");

  def_method("to", static_cast<Tensor (*)(const Tensor&, DType)>(to), arg("dtype"), Unlocked(),
             "Converted to a dtype, moved to a device, or both, in either order; the tensor itself where nothing changes. "
             "Differentiable.");
  def_method("to", static_cast<Tensor (*)(const Tensor&, Device)>(to), arg("device"), Unlocked());
  def_method(
      "to", [](const Tensor& x, const Device& device, DType dtype) { return to(to(x, dtype), device); }, arg("device"),
      arg("dtype"), Unlocked());
  def_method(
      "to", [](const Tensor& x, DType dtype, const Device& device) { return to(to(x, dtype), device); }, arg("dtype"),
      arg("device"), Unlocked());
  def_method("cpu", [](const Tensor& x) { return to(x, kCPU); }, Unlocked(), "On the CPU; the tensor itself where it is there.");
  def_method(
      "cuda", [](const Tensor& x, int index) { return to(x, Device{DeviceType::cuda, index}); }, arg("index") = 0, Unlocked(),
      "On the GPU of that number; the tensor itself where it is there. DeviceError without one.");
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
  def_method(
      "add_", [](const Tensor& x, const Tensor& y, Scalar alpha) { return add_(x, y, alpha); }, arg("y"), py::kw_only(),
      arg("alpha") = 1, Unlocked(),
      "Adds alpha * y, broadcast, to the tensor. Not recorded: AutogradError where either requires a gradient, outside no_grad.");
  def_method("add_", [](const Tensor& x, Scalar y) { return add_(x, beside(x, y)); }, arg("y"), Unlocked());
  def_method(
      "multiply_", [](const Tensor& x, const Tensor& y) { return multiply_(x, y); }, arg("y"), Unlocked(),
      "Multiplies the tensor by y, broadcast; y may be a number. Not recorded: AutogradError where either requires a gradient, "
      "outside no_grad.");
  def_method("multiply_", [](const Tensor& x, Scalar y) { return multiply_(x, y); }, arg("y"), Unlocked());
}

}  // namespace glade::python
