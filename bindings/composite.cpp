// Operations put together of others, of the module and as methods of Tensor, and methods that take another tensor's properties.
#include <glade/ops/composite/composite.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/shape/shape.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;
using OneOrMore = std::variant<std::int64_t, Dims>;

Dims several(const OneOrMore& argument) {
  if (const auto* one = std::get_if<std::int64_t>(&argument)) return {*one};
  return std::get<Dims>(argument);
}

void bind_logic(py::module_& module) {
  const auto def_logic = [&](const char* name, auto f, const std::string& doc) {
    def_both(module, name, f, arg("a"), arg("b"), Unlocked(),
             (doc + " What is not 0 counts as true. ShapeError for shapes that "
                    "do not broadcast.")
                 .c_str());
  };
  def_logic("logical_and", logical_and, "Whether a and b hold, element by element, broadcast: a bool tensor of any dtypes.");
  def_logic("logical_or", logical_or, "Whether a or b holds, element by element, broadcast: a bool tensor of any dtypes.");
  def_logic("logical_xor", logical_xor, "Whether just one of a and b holds, element by element, broadcast: a bool tensor.");
  def_both(module, "logical_not", logical_not, arg("x"), Unlocked(), "Whether each element is 0: a bool tensor, of any dtype.");
  def_both(
      module, "masked_select", masked_select, arg("x"), arg("mask"), Unlocked(),
      "The elements of x where `mask` (bool) holds, in row-major order: [n]. Both broadcast. Waits for the device. DTypeError "
      "for another mask, ShapeError for shapes that do not broadcast.");
  def_both(
      module, "count_nonzero",
      [](const Tensor& x, const std::optional<OneOrMore>& dim) { return count_nonzero(x, dim ? several(*dim) : Dims{}); },
      arg("x"), arg("dim") = py::none(), Unlocked(),
      "How many elements are not 0 over `dim` (one dimension, several, or all without it): int64. IndexError if x has no such "
      "dimension.");
}

void bind_sums(py::module_& module) {
  constexpr const char* lerp_doc =
      "a + weight * (b - a), broadcast; the weight is a number or a tensor. ShapeError for shapes that "
      "do not broadcast.";
  def_both(module, "lerp", static_cast<Tensor (*)(const Tensor&, const Tensor&, Scalar)>(lerp), arg("a"), arg("b"), arg("weight"),
           Unlocked(), lerp_doc);
  def_both(module, "lerp", static_cast<Tensor (*)(const Tensor&, const Tensor&, const Tensor&)>(lerp), arg("a"), arg("b"),
           arg("weight"), Unlocked());
  def_both(module, "addcmul", addcmul, arg("x"), arg("a"), arg("b"), py::kw_only(), arg("value") = 1, Unlocked(),
           "x + value * a * b, broadcast. ShapeError for shapes that do not broadcast.");
  def_both(module, "addcdiv", addcdiv, arg("x"), arg("a"), arg("b"), py::kw_only(), arg("value") = 1, Unlocked(),
           "x + value * a / b, broadcast. ShapeError for shapes that do not broadcast.");
  def_both(module, "outer", outer, arg("a"), arg("b"), Unlocked(),
           "a[i] * b[j] of two vectors: [n, m]. ShapeError for other numbers of dimensions.");
  def_both(module, "dot", dot, arg("a"), arg("b"), Unlocked(),
           "The sum of a * b of two vectors of one size. ShapeError for others; matmul takes more dimensions.");
  def_both(module, "mv", mv, arg("matrix"), arg("v"), Unlocked(),
           "The product of a matrix [n, m] and a vector [m]: [n]. ShapeError for others; matmul takes more dimensions.");
  const auto def_plus_product = [&](const char* name, auto f, const std::string& doc) {
    def_both(module, name, f, arg("x"), arg("a"), arg("b"), py::kw_only(), arg("beta") = 1, arg("alpha") = 1, Unlocked(),
             doc.c_str());
  };
  def_plus_product("addmm", addmm,
                   "beta * x + alpha * (a @ b) of matrices [n, k] and [k, m]; x broadcasts to [n, m], and is not looked at where "
                   "beta is 0. ShapeError for other shapes.");
  def_plus_product(
      "baddbmm", baddbmm,
      "beta * x + alpha * (a @ b) of batches [batch, n, k] and [batch, k, m]; x broadcasts to the product, and is not "
      "looked at where beta is 0. ShapeError for other shapes.");
}

/// Of nn.functional, which names their arguments.
void bind_for_functional(py::module_& module) {
  module.def("_pad", pad, Unlocked());
  module.def("_normalize", normalize, Unlocked());
}

void bind_rearrangements(py::module_& module) {
  const auto tile_by = [](const Tensor& x, const py::args& repeats) {
    const auto counts = integers_from_arguments(repeats, "tile");
    const py::gil_scoped_release unlocked;
    return tile(x, Shape(counts));
  };
  constexpr const char* tile_doc =
      "x as often as asked along its last dimensions: x.tile(2) has rows of twice the size. "
      "ValueError for negative numbers.";
  module.def("tile", tile_by, tile_doc);
  def_method("tile", tile_by, tile_doc);
  def_both(
      module, "movedim",
      [](const Tensor& x, const OneOrMore& source, const OneOrMore& destination) {
        return movedim(x, several(source), several(destination));
      },
      arg("x"), arg("source"), arg("destination"),
      "A view with the dimensions `source` (one, or several) at the places `destination`, and the others in their order. "
      "IndexError if x has no such dimension, ValueError for one given twice.");
  def_method(
      "expand_as", [](const Tensor& x, const Tensor& other) { return expand(x, other.shape()); }, arg("other"),
      "A view broadcast to another tensor's shape. ShapeError where that does not fit.");
  def_method(
      "view_as", [](const Tensor& x, const Tensor& other) { return view(x, other.shape()); }, arg("other"),
      "The same elements in another tensor's shape, without a copy. ShapeError where the strides do not allow it.");
  def_method(
      "reshape_as", [](const Tensor& x, const Tensor& other) { return reshape(x, other.shape()); }, arg("other"), Unlocked(),
      "The same elements in another tensor's shape. ShapeError where the numbers of elements differ.");
  def_method(
      "type_as", [](const Tensor& x, const Tensor& other) { return to(x, other.device(), other.dtype()); }, arg("other"),
      Unlocked(), "Converted to another tensor's dtype and moved to its device.");
}

/// Methods that change the tensor. They are not recorded.
void bind_in_place() {
  const std::string rules = " Not recorded: AutogradError where a tensor requires a gradient, outside no_grad.";
  const auto def_by_position = [&](const char* name, auto f, const std::string& doc) {
    def_method(name, f, arg("dim"), arg("indices"), arg("source"), Unlocked(), (doc + rules).c_str());
  };
  def_by_position(
      "scatter_", [](const Tensor& x, std::int64_t d, const Tensor& i, const Tensor& s) { return scatter_(x, d, i, s); },
      "Overwrites what gather(dim, indices) reads by `source`, a tensor of at least the sizes of indices, or a number.");
  def_method(
      "scatter_", [](const Tensor& x, std::int64_t d, const Tensor& i, Scalar value) { return scatter_(x, d, i, value); },
      arg("dim"), arg("indices"), arg("value"), Unlocked());
  def_by_position(
      "scatter_add_", [](const Tensor& x, std::int64_t d, const Tensor& i, const Tensor& s) { return scatter_add_(x, d, i, s); },
      "Adds `source`, a tensor of at least the sizes of indices, to what gather(dim, indices) reads.");
  def_by_position(
      "index_add_", [](const Tensor& x, std::int64_t d, const Tensor& i, const Tensor& s) { return index_add_(x, d, i, s); },
      "Adds the slices of `source` along `dim` to those at indices [m].");
  const auto generator_or = [](Generator* generator) -> Generator& {
    return generator != nullptr ? *generator : default_generator();
  };
  def_method(
      "uniform_",
      [generator_or](const Tensor& x, double low, double high, Generator* generator) {
        check_in_place("uniform_", x);
        return copy_(x, uniform(x.shape(), low, high, x.options(), generator_or(generator)));
      },
      arg("low") = 0.0, arg("high") = 1.0, py::kw_only(), arg("generator") = py::none(), Unlocked(),
      ("Overwrites the tensor with random numbers, uniform in [low, high)." + rules + " DTypeError for integers.").c_str());
  def_method(
      "normal_",
      [generator_or](const Tensor& x, double mean, double deviation, Generator* generator) {
        check_in_place("normal_", x);
        return copy_(x, normal(x.shape(), mean, deviation, x.options(), generator_or(generator)));
      },
      arg("mean") = 0.0, arg("deviation") = 1.0, py::kw_only(), arg("generator") = py::none(), Unlocked(),
      ("Overwrites the tensor with random numbers, normal with this mean and deviation." + rules + " DTypeError for integers.")
          .c_str());
}

}  // namespace

void bind_composite(py::module_& module) {
  bind_logic(module);
  bind_sums(module);
  bind_rearrangements(module);
  bind_in_place();
  bind_for_functional(module);
}

}  // namespace glade::python
