// x[key] and x[key] = value, by PyTorch's rules: integers, slices with steps, None, ..., and bool and integer tensors. NumPy's
// differ where integers, or integer tensors of no dimensions, stand beside tensors: there they count as tensors, here they select
// before those.
#include <algorithm>
#include <variant>
#include <vector>

#include <glade/autograd/node.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "python.h"

namespace glade::python {

namespace {

struct Slice {
  std::optional<std::int64_t> start, stop;
  std::int64_t step;
};
struct NewAxis {};
struct Ellipsis {};
using Item = std::variant<std::int64_t, Slice, NewAxis, Ellipsis, Tensor>;

// ---- from Python's key to items ------------------------------------------------------------------------------------

std::int64_t integer(PyObject* object) {
  const Py_ssize_t value = PyNumber_AsSsize_t(object, PyExc_IndexError);
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

std::optional<std::int64_t> bound(PyObject* object) {
  if (object == Py_None) return std::nullopt;
  const Py_ssize_t value = PyNumber_AsSsize_t(object, nullptr);  // clipped where it is huge, as Python's slices do
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

Tensor index_tensor(PyObject* object) {
  Tensor index = tensor_from_array(object);
  if (!index.defined() && PyList_Check(object)) {
    const py::object array = py::module_::import("numpy").attr("asarray")(py::handle(object));
    index = PyList_GET_SIZE(object) == 0 ? empty({0}, {DType::int64, kCPU}) : tensor_from_array(array);
  }
  if (!index.defined())
    throw py::type_error(
        std::string("a tensor's index may be an integer, a slice, None, ..., or a bool or integer tensor, not ") +
        Py_TYPE(object)->tp_name);
  return index;
}

Item parse_item(PyObject* object) {
  if (PyLong_Check(object) && !PyBool_Check(object)) return integer(object);
  if (PySlice_Check(object)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(object);
    return Slice{bound(slice->start), bound(slice->stop), bound(slice->step).value_or(1)};
  }
  if (object == Py_None) return NewAxis{};
  if (object == Py_Ellipsis) return Ellipsis{};
  if (is_tensor(object)) return tensor_of(object);
  if (PyBool_Check(object)) return full({}, object == Py_True, {DType::boolean, kCPU});
  if (PyIndex_Check(object) && !PyMapping_Check(object)) return integer(object);  // NumPy's integers
  return index_tensor(object);
}

std::vector<Item> parse(PyObject* key) {
  std::vector<Item> items;
  if (!PyTuple_Check(key)) {
    items.push_back(parse_item(key));
    return items;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) items.push_back(parse_item(PyTuple_GET_ITEM(key, i)));
  return items;
}

// ---- from items to a view and the tensors that index it ------------------------------------------------------------

struct Indexed {
  Tensor view;
  std::vector<int> dims;      ///< of the view that tensors index, rising
  std::vector<Tensor> index;  ///< for each of them
  int target = 0;             ///< where the dimensions of the broadcast index tensors go
  std::vector<int> flipped;   ///< dimensions of the view that run backwards (only where asked for a writable view)
};

bool is_mask(const Tensor& x) { return x.dtype() == DType::boolean; }

int dims_consumed(const Item& item) {
  if (std::holds_alternative<NewAxis>(item) || std::holds_alternative<Ellipsis>(item)) return 0;
  if (const auto* x = std::get_if<Tensor>(&item); x != nullptr && is_mask(*x)) return x->ndim();
  return 1;
}

/// The positions at which a mask holds, in row-major order. Waits for the device.
Tensor positions_of(const Tensor& mask, Device device) { return to(select(nonzero(reshape(mask, {-1})), 1, 0), device); }

/// Python's meaning of negative positions, and its IndexError (on CUDA both are left to the reading operation).
Tensor wrapped(const Tensor& index, std::int64_t size, int dim) {
  if (index.dtype() != DType::int64 && index.dtype() != DType::int32)
    throw IndexError("index: tensors that index must be bool, int64 or int32, not " + std::string(dtype_name(index.dtype())));
  if (index.is_cuda()) return index;
  if (index.numel() > 0) {
    const auto low = min(index).item<std::int64_t>(), high = max(index).item<std::int64_t>();
    if (low < -size || high >= size)
      throw IndexError("index: position " + std::to_string(low < -size ? low : high) + " is out of range for dimension " +
                       std::to_string(dim) + " of size " + std::to_string(size));
    if (low >= 0) return index;
  }
  return where(lt(index, 0), index + size, index);
}

Tensor sliced(const Tensor& x, int dim, const Slice& s, bool writable, std::vector<int>& flipped) {
  if (s.step >= 0 || !writable) return slice(x, dim, s.start, s.stop, s.step);
  Py_ssize_t start = s.start.value_or(PY_SSIZE_T_MAX), stop = s.stop.value_or(PY_SSIZE_T_MIN);
  const Py_ssize_t count = PySlice_AdjustIndices(x.shape()[dim], &start, &stop, s.step);
  flipped.push_back(dim);
  if (count == 0) return slice(x, dim, 0, 0);
  return slice(x, dim, start + (count - 1) * s.step, start + 1, -s.step);
}

/// Where the dimensions of the broadcast index tensors go: to those that tensors index, or first where others separate these.
/// Tensors of no dimensions select, as integers do: what they index is gone.
int target_of(const Indexed& indexed) {
  int gone = 0;
  std::vector<int> places;
  for (std::size_t i = 0; i < indexed.dims.size(); ++i) {
    if (indexed.index[i].ndim() == 0) ++gone;
    else places.push_back(indexed.dims[i] - gone);
  }
  const bool are_neighbours = !places.empty() && places.back() - places.front() + 1 == std::ssize(places);
  return are_neighbours ? places.front() : 0;
}

/// Takes what is basic and gathers what is not. `writable`: the view shares x's memory, with backward slices noted.
Indexed resolve(const Tensor& x, const std::vector<Item>& items, bool writable) {
  int consumed = 0;
  bool has_ellipsis = false;
  for (const Item& item : items) {
    consumed += dims_consumed(item);
    if (std::holds_alternative<Ellipsis>(item) && std::exchange(has_ellipsis, true))
      throw IndexError("index: only one ellipsis ('...') may be given");
  }
  if (consumed > x.ndim())
    throw IndexError("index: " + std::to_string(consumed) + " indices for a tensor of shape " + x.shape().str());

  Indexed result{x, {}, {}, 0, {}};
  Tensor& view = result.view;
  int dim = 0;
  for (const Item& item : items) {
    if (const auto* i = std::get_if<std::int64_t>(&item)) {
      view = select(view, dim, *i);
    } else if (const auto* s = std::get_if<Slice>(&item)) {
      if (s->start || s->stop || s->step != 1) view = sliced(view, dim, *s, writable, result.flipped);
      ++dim;
    } else if (std::holds_alternative<NewAxis>(item)) {
      view = unsqueeze(view, dim++);
    } else if (std::holds_alternative<Ellipsis>(item)) {
      dim += x.ndim() - consumed;
    } else {
      const Tensor& index = std::get<Tensor>(item);
      if (is_mask(index)) {
        const int n = index.ndim();
        for (int d = 0; d < n; ++d)
          if (view.shape()[dim + d] != index.shape()[d])
            throw IndexError("index: a mask of shape " + index.shape().str() + " for a tensor of shape " + x.shape().str());
        if (writable && n > 1) {  // flattened, it might be a copy
          const Tensor places = to(nonzero(index), x.device());
          for (int d = 0; d < n; ++d) {
            result.index.push_back(select(places, 1, d));
            result.dims.push_back(dim++);
          }
          continue;
        }
        view = n == 0 ? unsqueeze(view, dim) : flatten(view, dim, dim + n - 1);
        result.index.push_back(positions_of(index, x.device()));
      } else {
        result.index.push_back(wrapped(to(index, x.device()), view.shape()[dim], dim));
      }
      result.dims.push_back(dim++);
    }
  }
  result.target = target_of(result);
  return result;
}

/// Moves the `count` dimensions from `from` on to `target`.
Tensor move_dims(const Tensor& x, int from, int count, int target) {
  if (from == target || count == 0) return x;
  std::vector<std::int64_t> order;
  for (int d = 0; d < x.ndim(); ++d)
    if (d < from || d >= from + count) order.push_back(d);
  for (int d = 0; d < count; ++d) order.insert(order.begin() + target + d, from + d);
  return permute(x, order);
}

/// Moves indexed dimensions that are no neighbours to the front, as reading and writing want them.
void bring_together(Indexed& indexed) {
  const int count = static_cast<int>(indexed.dims.size());
  if (indexed.dims.back() - indexed.dims.front() + 1 == count) return;
  std::vector<std::int64_t> order(indexed.dims.begin(), indexed.dims.end());
  for (int d = 0; d < indexed.view.ndim(); ++d)
    if (!std::ranges::count(indexed.dims, d)) order.push_back(d);
  for (int& d : indexed.flipped) d = static_cast<int>(std::ranges::find(order, d) - order.begin());
  for (int i = 0; i < count; ++i) indexed.dims[static_cast<std::size_t>(i)] = i;
  indexed.view = permute(indexed.view, order);
}

/// The shape of the index tensors, broadcast.
Shape index_shape(const Indexed& indexed) {
  Shape shape = indexed.index[0].shape();
  for (const Tensor& index : indexed.index) shape = broadcast_shapes(shape, index.shape(), "index");
  return shape;
}

Tensor gather_indexed(Indexed indexed) {
  const Shape shape = index_shape(indexed);
  bring_together(indexed);
  Tensor x = indexed.view;
  const int dim = indexed.dims[0], count = static_cast<int>(indexed.dims.size());
  if (x.is_cuda()) return move_dims(index_at(x, dim, indexed.index), dim, shape.ndim(), indexed.target);

  // Several indexed dimensions become one, read at row-major positions.
  Tensor position = indexed.index[0];
  if (count > 1) {
    for (int i = 1; i < count; ++i) position = position * x.size(dim + i) + indexed.index[static_cast<std::size_t>(i)];
    x = flatten(x, dim, dim + count - 1);
  }
  const Tensor rows = index_select(x, dim, reshape(expand(position, shape), {-1}));
  Shape unfolded;
  for (int d = 0; d < dim; ++d) unfolded.push_back(rows.shape()[d]);
  for (const std::int64_t size : shape) unfolded.push_back(size);
  for (int d = dim + 1; d < rows.ndim(); ++d) unfolded.push_back(rows.shape()[d]);
  return move_dims(reshape(rows, unfolded), dim, shape.ndim(), indexed.target);
}

/// The mask where the key is one of x's shape, else null.
const Tensor* mask_of_all(const Tensor& x, const std::vector<Item>& items) {
  const auto* const mask = items.size() == 1 ? std::get_if<Tensor>(items.data()) : nullptr;
  return mask != nullptr && is_mask(*mask) && mask->shape() == x.shape() ? mask : nullptr;
}

Tensor read(const Tensor& x, const std::vector<Item>& items) {
  if (const Tensor* const mask = mask_of_all(x, items)) return masked_select(x, to(*mask, x.device()));
  const Indexed indexed = resolve(x, items, false);
  return indexed.index.empty() ? indexed.view : gather_indexed(indexed);
}

// ---- assignment ----------------------------------------------------------------------------------------------------

void write_view(const Indexed& indexed, const Tensor& value) {
  if (indexed.flipped.empty()) {
    copy_(indexed.view, value);
    return;
  }
  const std::vector<std::int64_t> dims(indexed.flipped.begin(), indexed.flipped.end());
  copy_(indexed.view, flip(expand(value, indexed.view.shape()), dims));
}

/// For keys with tensors: the last one of several values for an element stays.
void write_elements(const Tensor& x, const std::vector<Item>& items, const Tensor& value) {
  Indexed indexed = resolve(x, items, true);
  const Shape at = index_shape(indexed);
  bring_together(indexed);
  const int dim = indexed.dims[0], count = static_cast<int>(indexed.dims.size());
  Shape shape = indexed.view.shape();  // of what the key reads
  for (int i = 0; i < count; ++i) shape.erase(dim);
  for (int d = 0; d < at.ndim(); ++d) shape.insert(indexed.target + d, at[d]);
  if (!(broadcast_shapes(shape, value.shape(), "index") == shape))
    throw ShapeError("index: a value of shape " + value.shape().str() + " does not broadcast to the indexed shape " +
                     shape.str());
  const Tensor given = expand(to(to(value, x.device()), x.dtype()), shape);
  Tensor values = move_dims(given, indexed.target, at.ndim(), dim);
  std::vector<std::int64_t> backwards;
  for (const int d : indexed.flipped) backwards.push_back(d < dim ? d : d - count + at.ndim());
  if (!backwards.empty()) values = flip(values, backwards);
  index_put_(indexed.view, dim, indexed.index, values);
}

void write(const Tensor& x, const std::vector<Item>& items, const Tensor& source) {
  if (const Tensor* const mask = mask_of_all(x, items); mask != nullptr && source.ndim() <= 1)
    masked_assign_(x, to(*mask, x.device()), to(to(source, x.device()), x.dtype()));
  else if (std::ranges::any_of(items, [](const Item& item) { return std::holds_alternative<Tensor>(item); }))
    write_elements(x, items, source);
  else write_view(resolve(x, items, true), source);
}

/// Of the elements of a key that were written, 1 for those whose value has stayed, 0 where a later one took the place.
Tensor last_written(const Shape& shape, const std::vector<Item>& items, const TensorOptions& options) {
  const Tensor targets = read(reshape(arange(0, shape.numel(), 1, {DType::int64, kCPU}), shape), items);
  const auto places = targets.to_vector<std::int64_t>();
  std::vector<std::int64_t> last(static_cast<std::size_t>(shape.numel()), -1);
  for (std::size_t i = 0; i < places.size(); ++i) last[static_cast<std::size_t>(places[i])] = static_cast<std::int64_t>(i);
  std::vector<float> stayed(places.size());
  for (std::size_t i = 0; i < places.size(); ++i)
    stayed[i] = last[static_cast<std::size_t>(places[i])] == static_cast<std::int64_t>(i) ? 1.0F : 0.0F;
  return to_data(Tensor::from_vector(stayed, targets.shape(), options.device), options.dtype);
}

/// The key with its tensors as they are now.
std::vector<Item> kept(const std::vector<Item>& items) {
  std::vector<Item> result = items;
  for (Item& item : result)
    if (auto* index = std::get_if<Tensor>(&item)) *index = clone(index->detach());
  return result;
}

void assign(const Tensor& x, const std::vector<Item>& items, const Tensor& source);

/// x[items] = source on the tape: x becomes the result of an operation on what it was and the source. Whatever else reads x's
/// memory would not know, so nothing else may.
void assign_recorded(const Tensor& x, const std::vector<Item>& items, const Tensor& source) {
  if (x.is_leaf() && x.requires_grad())
    throw AutogradError(
        "index: a leaf that requires a gradient cannot be assigned to; write y = x.clone() and then y[...] = value, "
        "or use glade.no_grad()");
  if (x.storage().use_count() > 1)
    throw AutogradError(
        "index: the tensor shares its memory with another one (a view, or what backward needs), so that the "
        "assignment cannot be recorded; write y = y.clone() and then y[...] = value");
  {
    const NoGradGuard no_grad;
    write(x, items, source);
  }
  Tensor result = x;
  autograd::record(
      "assign", result, {&x, &source},
      [items = kept(items), shape = source.shape(), options = source.options()](const autograd::Node& node, const Tensor& grad) {
        Tensors gradients(2);
        if (node.needs_grad(0)) {
          gradients[0] = clone(grad);
          assign(gradients[0], items, zeros({}, grad.options()));
        }
        if (!node.needs_grad(1)) return gradients;
        Tensor read_back = read(grad, items);
        if (std::ranges::any_of(items, [](const Item& item) { return std::holds_alternative<Tensor>(item); }))
          read_back = read_back * last_written(grad.shape(), items, read_back.options());
        gradients[1] = to(to(sum_to(read_back, shape), options.dtype), options.device);
        return gradients;
      });
}

void assign(const Tensor& x, const std::vector<Item>& items, const Tensor& source) {
  if (autograd::any_requires_grad({&x, &source})) assign_recorded(x, items, source);
  else write(x, items, source);
}

}  // namespace

PyObject* get_item(PyObject* self, PyObject* key) {
  return guarded([&] {
    const Tensor& x = tensor_of(self);
    const std::vector<Item> items = parse(key);
    Tensor result;
    {
      py::gil_scoped_release unlocked;
      result = read(x, items);
    }
    return wrap(std::move(result));
  });
}

int set_item(PyObject* self, PyObject* key, PyObject* value) {
  return guarded(
      [&] {
        if (value == nullptr) throw py::type_error("elements of a tensor cannot be deleted");
        const Tensor& x = tensor_of(self);
        const std::vector<Item> items = parse(key);
        Tensor source;
        if (is_tensor(value)) source = tensor_of(value);
        else if (const auto number = scalar_from(value)) source = full({}, *number, {number->promoted(x.dtype()), x.device()});
        else source = py::module_::import("glade").attr("as_tensor")(py::handle(value)).cast<Tensor>();
        if (is_integral(x.dtype()) && is_floating(source.dtype()))
          throw DTypeError("index: " + std::string(dtype_name(source.dtype())) + " values would be truncated in a tensor of " +
                           std::string(dtype_name(x.dtype())));
        py::gil_scoped_release unlocked;
        while (source.ndim() > 0 && source.size(0) == 1) source = select(source, 0, 0);  // changes nothing in broadcasting
        assign(x, items, source);
        return 0;
      },
      -1);
}

}  // namespace glade::python
