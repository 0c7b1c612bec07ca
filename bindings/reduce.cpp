// Reductions and matrix products, of the module and as methods of Tensor.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/einsum.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/sort/sort.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;

/// One dimension, several, or none, which means all.
using DimsArgument = std::optional<std::variant<std::int64_t, std::vector<std::int64_t>>>;

Dims dims_of(const DimsArgument& argument) {
  if (!argument) return {};
  if (const auto* dim = std::get_if<std::int64_t>(&*argument)) return {*dim};
  return std::get<Dims>(*argument);
}

constexpr const char* kBadDim = " IndexError if x has no such dimension, ValueError for one given twice.";

void def_reduction(py::module_& module, const char* name, Tensor (*reduce)(const Tensor&, const Dims&, bool),
                   const std::string& doc) {
  def_both(
      module, name, [reduce](const Tensor& x, const DimsArgument& dim, bool keepdim) { return reduce(x, dims_of(dim), keepdim); },
      arg("x"), arg("dim") = py::none(), arg("keepdim") = false, Unlocked(), (doc + kBadDim).c_str());
}

using Deviation = Tensor (*)(const Tensor&, const Dims&, bool, std::int64_t);

/// var and std. Their options have names only: PyTorch has another meaning for a bool behind dim.
void def_deviation(py::module_& module, const char* name, Deviation f, const std::string& doc) {
  def_both(
      module, name,
      [f](const Tensor& x, const DimsArgument& dim, bool keepdim, std::int64_t correction, std::optional<bool> unbiased) {
        return f(x, dims_of(dim), keepdim, unbiased ? std::int64_t{*unbiased} : correction);
      },
      arg("x"), arg("dim") = py::none(), py::kw_only(), arg("keepdim") = false, arg("correction") = 1,
      arg("unbiased") = py::none(), Unlocked(), (doc + " unbiased=False stands for correction=0." + kBadDim).c_str());
}

struct Extremum {
  Tensor (*all)(const Tensor&);
  ValuesAndIndices (*along)(const Tensor&, std::int64_t, bool);
  Tensor (*of_two)(const Tensor&, const Tensor&);
};

/// max and min: of all elements, along a dimension with the positions, of two tensors.
void def_extremum(py::module_& module, const char* name, Extremum f, const std::string& which, const std::string& over_dims) {
  const std::string doc = "The " + which + " element. Along `dim`, (values, indices): the " + which +
                          " elements and the int64 positions of the first of them. Of two tensors, the " + which +
                          " of both, element by element. NaN wins. ShapeError for no elements, IndexError if x has no such "
                          "dimension; ValueError for several dimensions, which " +
                          over_dims + " takes.";
  def_both(module, name, f.all, arg("x"), Unlocked(), doc.c_str());
  def_both(module, name, f.along, arg("x"), arg("dim"), arg("keepdim") = false, Unlocked());
  def_both(module, name, f.of_two, arg("x"), arg("other"), Unlocked());
  def_both(
      module, name,
      [name, over_dims](const Tensor&, const std::vector<std::int64_t>&, bool) -> ValuesAndIndices {
        throw ValueError(std::string(name) + ": dim is several dimensions: expected one, or write " + over_dims);
      },
      arg("x"), arg("dim"), arg("keepdim") = false);
}

/// An operation along one dimension, which `extra` names.
template <class F, class... Extra>
void def_along(py::module_& module, const char* name, F f, const std::string& doc, const Extra&... extra) {
  def_both(module, name, f, arg("x"), extra..., Unlocked(), (doc + " IndexError if x has no such dimension.").c_str());
}

}  // namespace

void bind_reduce(py::module_& module) {
  def_reduction(
      module, "sum", sum,
      "The sum over `dim` (one dimension, several, or all without it); a reduced dimension goes unless keepdim. Integers and "
      "bools give int64.");
  def_reduction(module, "mean", mean, "The mean over `dim` (one dimension, several, or all without it). Integers give float32.");
  def_deviation(
      module, "var", var,
      "The variance over `dim` (one dimension, several, or all without it): squares divided by n - correction; NaN where "
      "that is not positive.");
  def_deviation(module, "std", std,
                "The standard deviation, the square root of var, over `dim` (one dimension, several, or all without it).");
  def_reduction(module, "prod", prod,
                "The product over `dim` (one dimension, several, or all without it). Integers and bools give int64.");
  def_reduction(module, "any", any,
                "Whether some element over `dim` (one dimension, several, or all without it) is not 0: bool.");
  def_reduction(module, "all", all, "Whether no element over `dim` (one dimension, several, or all without it) is 0: bool.");
  def_both(
      module, "norm",
      [](const Tensor& x, const std::variant<double, std::string>& p, const DimsArgument& dim, bool keepdim) {
        const auto* name = std::get_if<std::string>(&p);
        if (name != nullptr && *name != "fro") throw ValueError("norm: p is '" + *name + "', expected a number or 'fro'");
        return norm(x, name != nullptr ? 2 : std::get<double>(p), dims_of(dim), keepdim);
      },
      arg("x"), arg("p") = 2.0, arg("dim") = py::none(), arg("keepdim") = false, Unlocked(),
      "(sum of |x|^p)^(1/p) over `dim` (one dimension, several, or all without it): for p = 2 or 'fro' the Euclidean norm, for "
      "infinity the largest |x|, for 0 the number of elements that are not 0. IndexError if x has no such dimension, "
      "DTypeError for integers.");
  def_both(
      module, "equal", equal, arg("x"), arg("other"), Unlocked(),
      "Whether both have one shape and equal elements: a bool. Waits for the device; x == other compares element by element. "
      "DeviceError for tensors on two devices.");
  const auto def_close = [&](const char* name, auto f, const std::string& doc) {
    const std::string with_errors = doc + " ShapeError for shapes that do not broadcast, ValueError for negative tolerances.";
    def_both(module, name, f, arg("x"), arg("other"), arg("rtol") = 1e-5, arg("atol") = 1e-8, arg("equal_nan") = false,
             Unlocked(), with_errors.c_str());
  };
  def_close("isclose", isclose, "Whether |x - other| <= atol + rtol |other|, element by element, broadcast: a bool tensor.");
  def_close("allclose", allclose,
            "Whether |x - other| <= atol + rtol |other| in all elements, broadcast: a bool. Waits for the device.");
  def_reduction(module, "amax", amax,
                "The largest element over `dim` (one dimension, several, or all without it). Ties share the gradient; NaN wins. "
                "ShapeError for no elements.");
  def_reduction(module, "amin", amin,
                "The smallest element over `dim` (one dimension, several, or all without it). Ties share the gradient; NaN wins. "
                "ShapeError for no elements.");
  def_extremum(module, "max", {max, max, maximum}, "largest", "amax");
  def_extremum(module, "min", {min, min, minimum}, "smallest", "amin");
  constexpr const char* position_doc =
      " element along `dim`; without dim, in all elements in row-major order. NaN wins. ShapeError for no elements, IndexError "
      "if x has no such dimension.";
  def_both(module, "argmax", argmax, arg("x"), arg("dim") = py::none(), arg("keepdim") = false, Unlocked(),
           (std::string("The int64 position of the first largest") + position_doc).c_str());
  def_both(module, "argmin", argmin, arg("x"), arg("dim") = py::none(), arg("keepdim") = false, Unlocked(),
           (std::string("The int64 position of the first smallest") + position_doc).c_str());
  def_reduction(module, "logsumexp", logsumexp,
                "log(sum(exp(x))) over `dim` (one dimension, several, or all without it), without overflow.");
  def_along(module, "softmax", softmax, "exp(x) scaled to a sum of 1 along `dim`.", arg("dim") = -1);
  def_along(module, "log_softmax", log_softmax, "log(softmax(x, dim)), without overflow.", arg("dim") = -1);
  def_along(module, "cumsum", cumsum, "The sums of the elements so far along `dim`.", arg("dim"));
  def_both(module, "sum_to", sum_to, arg("x"), arg("shape"), Unlocked(),
           "x summed down to a shape that broadcasts to its own: the derivative of broadcasting. ShapeError for other shapes.");
  const auto def_order = [&](const char* name, auto f, const std::string& doc) {
    def_along(
        module, name, [f](const Tensor& x, std::int64_t dim, bool descending, bool) { return f(x, dim, descending); },
        doc + " NaN counts as the largest, and equal elements keep their order, whatever `stable` says.", arg("dim") = -1,
        arg("descending") = false, py::kw_only(), arg("stable") = true);
  };
  def_order("sort", glade::sort,
            "(values, indices): the elements along `dim` in rising, or falling, order, and where they were.");
  def_order("argsort", argsort, "The int64 positions of the elements along `dim` in rising, or falling, order.");
  def_along(
      module, "topk",
      [](const Tensor& x, std::int64_t k, std::int64_t dim, bool largest, bool) { return topk(x, k, dim, largest); },
      "(values, indices): the k largest elements along `dim` in falling order, or the k smallest in rising order, and their "
      "int64 positions, whatever `sorted` says. ValueError where there are fewer.",
      arg("k"), arg("dim") = -1, arg("largest") = true, arg("sorted") = true);
  module.def(
      "einsum",
      [](const std::string& equation, const py::args& operands) {
        const bool is_list = operands.size() == 1 && !is_tensor(py::object(operands[0]).ptr());
        const auto tensors = (is_list ? py::object(operands[0]) : py::object(operands)).cast<Tensors>();
        const py::gil_scoped_release unlocked;
        return einsum(equation, tensors);
      },
      arg("equation"),
      "Einstein's summation over tensors whose dimensions have letters: einsum(\"ik,kj->ij\", a, b) is the matrix product. "
      "Letters "
      "that the result does not have are summed over; ... stands for leading dimensions. ValueError for an equation that is not "
      "understood, ShapeError where sizes do not fit, DTypeError for integers.");
  def_both(
      module, "matmul", matmul, arg("a"), arg("b"), Unlocked(),
      "The matrix product over the last two dimensions, batch dimensions broadcast; vectors as in NumPy's matmul. Integers wrap "
      "around. ShapeError where inner sizes differ, DTypeError for bool.");
}

}  // namespace glade::python
