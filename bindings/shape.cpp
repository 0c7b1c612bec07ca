// Views and rearrangements, of the module and as methods of Tensor.
#include <glade/ops/shape/shape.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;
using Integers = std::vector<std::int64_t>;

/// A function of a tensor and integers, given one by one, as a sequence or by name: x.reshape(2, 3) or glade.reshape(x, (2, 3)).
template <class F>
void def_with_integers(py::module_& module, const char* name, const char* integers_name, F f, const char* doc) {
  const auto function = [name, f](const Tensor& x, const py::args& integers) {
    const auto values = integers_from_arguments(integers, name);
    py::gil_scoped_release unlocked;
    return f(x, values);
  };
  module.def(name, function, doc);
  def_method(name, function, doc);
  def_both(module, name, f, arg("x"), py::kw_only(), arg(integers_name), Unlocked());
}

Tensor reversed_dims(const Tensor& x) {
  std::vector<std::int64_t> dims;
  for (int d = x.ndim() - 1; d >= 0; --d) dims.push_back(d);
  return permute(x, dims);
}

Tensor transposed(const Tensor& x) {
  if (x.ndim() > 2)
    throw ShapeError("t: x is " + x.shape().str() + ": expected at most two dimensions; transpose names two of more");
  return x.ndim() < 2 ? x : transpose(x, 0, 1);
}

using OneOrMore = std::variant<std::int64_t, std::vector<std::int64_t>>;

std::vector<std::int64_t> several(const OneOrMore& argument) {
  if (const auto* one = std::get_if<std::int64_t>(&argument)) return {*one};
  return std::get<1>(argument);
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) { return expand(x, shape); }

}  // namespace

void bind_shape(py::module_& module) {
  def_with_integers(
      module, "reshape", "shape", [](const Tensor& x, const Integers& sizes) { return reshape(x, Shape(sizes)); },
      "The same elements in row-major order in another shape; one size may be -1. A view where the strides allow, else a copy. "
      "ShapeError where the numbers of elements differ.");
  def_with_integers(
      module, "view", "size", [](const Tensor& x, const Integers& sizes) { return view(x, Shape(sizes)); },
      "The same elements in row-major order in another shape, without a copy; one size may be -1. ShapeError where the numbers "
      "of "
      "elements differ, or the strides do not allow a view (reshape then copies).");
  def_with_integers(
      module, "repeat", "repeats", [](const Tensor& x, const Integers& repeats) { return repeat(x, Shape(repeats)); },
      "x as often as asked along each dimension: x.repeat(2, 1) has the rows twice. ShapeError for fewer numbers than x has "
      "dimensions.");
  def_with_integers(
      module, "permute", "dims", [](const Tensor& x, const Integers& dims) { return permute(x, dims); },
      "A view with the dimensions in the given order. ShapeError unless each is there once.");
  def_with_integers(
      module, "expand", "size", [](const Tensor& x, const Integers& sizes) { return expand(x, Shape(sizes)); },
      "A view broadcast to a shape, without copying; -1 keeps a size. ShapeError where the shape does not fit.");
  def_with_integers(
      module, "flip", "dims", [](const Tensor& x, const Integers& dims) { return flip(x, dims); },
      "A copy with the elements along the given dimensions in reverse order. IndexError if x has no such dimension.");
  def_both(module, "broadcast_to", broadcast_to, arg("x"), arg("shape"),
           "A view broadcast to a shape, without copying. ShapeError where the shape does not fit.");
  def_both(module, "flatten", flatten, arg("x"), arg("start_dim") = 0, arg("end_dim") = -1, Unlocked(),
           "The dimensions from start_dim to end_dim, both included, made one. A view where the strides allow, else a copy. "
           "IndexError if x has no such dimension, ShapeError for start_dim behind end_dim.");
  def_both(module, "transpose", transpose, arg("x"), arg("dim0"), arg("dim1"),
           "A view with two dimensions exchanged. IndexError if x has no such dimension.");
  def_both(module, "unsqueeze", unsqueeze, arg("x"), arg("dim"),
           "A view with a new dimension of size 1 at `dim`. IndexError for a place beyond the last.");
  def_both(
      module, "squeeze", [](const Tensor& x, std::optional<std::int64_t> dim) { return dim ? squeeze(x, *dim) : squeeze(x); },
      arg("x"), arg("dim") = py::none(),
      "A view without dimension `dim`, if its size is 1; without dim, without any of size 1. IndexError if x has no such "
      "dimension.");
  def_both(module, "t", transposed, arg("x"), "A view of a matrix with its dimensions exchanged. ShapeError for three or more.");
  def_both(module, "narrow", narrow, arg("x"), arg("dim"), arg("start"), arg("length"), Unlocked(),
           "x[..., start:start + length, ...] along `dim`, a view. IndexError if x has no such dimension or range.");
  def_both(module, "unbind", unbind, arg("x"), arg("dim") = 0, Unlocked(),
           "Views: the slices along `dim`, without that dimension. IndexError if x has no such dimension.");
  def_both(module, "chunk", chunk, arg("x"), arg("chunks"), arg("dim") = 0, Unlocked(),
           "At most `chunks` views of one size along `dim`, the last one smaller where it does not divide. IndexError if x has "
           "no such dimension, ValueError for no chunks.");
  const auto roll_by = [](const Tensor& x, const OneOrMore& shifts, const std::optional<OneOrMore>& dims) {
    return roll(x, several(shifts), dims ? several(*dims) : std::vector<std::int64_t>{});
  };
  def_both(module, "roll", roll_by, arg("x"), arg("shifts"), arg("dims") = py::none(), Unlocked(),
           "The elements moved on by `shifts` along `dims`; those that leave at one end come in at the other. Without dims in "
           "row-major order. IndexError if x has no such dimension, ValueError for other numbers of shifts and dims.");
  def_both(module, "tril", tril, arg("x"), arg("diagonal") = 0, Unlocked(),
           "The matrices in the last two dimensions, with 0 above the diagonal; diagonal=1 is the one above the main one. "
           "ShapeError for fewer dimensions.");
  def_both(module, "triu", triu, arg("x"), arg("diagonal") = 0, Unlocked(),
           "The matrices in the last two dimensions, with 0 below the diagonal; diagonal=1 is the one above the main one. "
           "ShapeError for fewer dimensions.");
  def_both(module, "slice", slice, arg("x"), arg("dim"), arg("start"), arg("stop"), arg("step") = 1, Unlocked(),
           "x[..., start:stop:step, ...] along `dim`, by Python's rules. A view, but for negative steps, which copy. IndexError "
           "if x has no such dimension, ValueError for a step of 0.");
  def_both(module, "select", select, arg("x"), arg("dim"), arg("index"),
           "x[..., index, ...] along `dim`: a view without that dimension. IndexError for a dimension or index out of range.");
  module.def(
      "cat", cat, arg("tensors"), arg("dim") = 0, Unlocked(),
      "The tensors one after the other along `dim`; dtypes promote. ShapeError where other sizes differ, ValueError for no "
      "tensors.");
  module.def("stack", stack, arg("tensors"), arg("dim") = 0, Unlocked(),
             "The tensors, of one shape (ShapeError), side by side along a new dimension `dim`. ValueError for no tensors.");
  constexpr const char* split_doc =
      "Views along `dim`: of one size, the last one smaller where it does not divide, or of the given sizes, which "
      "must add up (ShapeError).";
  def_both(module, "split", static_cast<Tensors (*)(const Tensor&, std::int64_t, std::int64_t)>(split), arg("x"), arg("size"),
           arg("dim") = 0, Unlocked(), split_doc);
  def_both(module, "split", static_cast<Tensors (*)(const Tensor&, const std::vector<std::int64_t>&, std::int64_t)>(split),
           arg("x"), arg("size"), arg("dim") = 0, Unlocked());
  def_both(
      module, "repeat_interleave",
      [](const Tensor& x, std::int64_t repeats, std::optional<std::int64_t> dim) {
        return dim ? repeat_interleave(x, repeats, *dim) : repeat_interleave(flatten(x), repeats, 0);
      },
      arg("x"), arg("repeats"), arg("dim") = py::none(), Unlocked(),
      "Every element `repeats` times in a row along `dim`; without dim, of all elements in row-major order. IndexError if x has "
      "no such dimension, ValueError for negative repeats.");
  def_both(module, "contiguous", contiguous, arg("x"), Unlocked(),
           "x itself where it is row-major already, else a row-major copy.");

  const py::handle type(reinterpret_cast<PyObject*>(tensor_type));
  const py::handle property(reinterpret_cast<PyObject*>(&PyProperty_Type));
  py::setattr(type, "T",
              property(py::cpp_function(reversed_dims, py::is_method(type)), py::none(), py::none(),
                       "A view with the dimensions reversed."));
  py::setattr(type, "mT",
              property(py::cpp_function([](const Tensor& x) { return transpose(x, -2, -1); }, py::is_method(type)), py::none(),
                       py::none(), "A view with the last two dimensions exchanged."));
}

}  // namespace glade::python
