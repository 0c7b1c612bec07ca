// Reductions and matrix products, of the module and as methods of Tensor.
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>

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

constexpr const char* kBadDim = " IndexError for a dimension that x has not, ValueError for one given twice.";

void def_reduction(py::module_& module, const char* name, Tensor (*reduce)(const Tensor&, const Dims&, bool),
                   const std::string& doc) {
  def_both(
      module, name, [reduce](const Tensor& x, const DimsArgument& dim, bool keepdim) { return reduce(x, dims_of(dim), keepdim); },
      arg("x"), arg("dim") = py::none(), arg("keepdim") = false, Unlocked(), (doc + kBadDim).c_str());
}

/// An operation along one dimension, which `extra` names.
template <class F, class... Extra>
void def_along(py::module_& module, const char* name, F f, const std::string& doc, const Extra&... extra) {
  def_both(module, name, f, arg("x"), extra..., Unlocked(), (doc + " IndexError for a dimension that x has not.").c_str());
}

}  // namespace

void bind_reduce(py::module_& module) {
  def_reduction(
      module, "sum", sum,
      "The sum over `dim` (one dimension, several, or all without it); a reduced dimension goes unless keepdim. Integers and "
      "bools give int64.");
  def_reduction(module, "mean", mean, "The mean over `dim` (one dimension, several, or all without it). Integers give float32.");
  def_both(
      module, "var",
      [](const Tensor& x, const DimsArgument& dim, bool keepdim, std::int64_t correction) {
        return var(x, dims_of(dim), keepdim, correction);
      },
      arg("x"), arg("dim") = py::none(), arg("keepdim") = false, arg("correction") = 1, Unlocked(),
      "The variance over `dim` (one dimension, several, or all without it): squares divided by n - correction; NaN where that is "
      "not positive. IndexError for a dimension that x has not, ValueError for one given twice.");
  def_reduction(module, "max", max,
                "The largest element over `dim` (one dimension, several, or all without it). Ties share the gradient; NaN wins. "
                "ShapeError for "
                "no elements.");
  def_reduction(module, "min", min,
                "The smallest element over `dim` (one dimension, several, or all without it). Ties share the gradient; NaN wins. "
                "ShapeError for "
                "no elements.");
  def_along(module, "argmax", argmax,
            "The int64 position of the first largest element along `dim`. ShapeError where it is empty.", arg("dim") = -1,
            arg("keepdim") = false);
  def_reduction(module, "logsumexp", logsumexp,
                "log(sum(exp(x))) over `dim` (one dimension, several, or all without it), without overflow.");
  def_along(module, "softmax", softmax, "exp(x) scaled to a sum of 1 along `dim`.", arg("dim") = -1);
  def_along(module, "log_softmax", log_softmax, "log(softmax(x, dim)), without overflow.", arg("dim") = -1);
  def_along(module, "cumsum", cumsum, "The sums of the elements so far along `dim`.", arg("dim"));
  def_both(module, "sum_to", sum_to, arg("x"), arg("shape"), Unlocked(),
           "x summed down to a shape that broadcasts to its own: the derivative of broadcasting. ShapeError for other shapes.");
  def_both(module, "matmul", matmul, arg("a"), arg("b"), Unlocked(),
           "The matrix product over the last two dimensions, batch dimensions broadcast; vectors as in NumPy's matmul. Floating "
           "point only "
           "(DTypeError); ShapeError where inner sizes differ.");
}

}  // namespace glade::python
