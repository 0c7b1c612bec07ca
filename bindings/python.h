#pragma once
// What all bindings share: the Python type of tensors, and how arguments become C++ values.
//
// Tensor is a Python type of its own making and not a pybind11 class: a + b on small tensors costs little more than the
// addition. All else is pybind11; the casters below let its functions take and give tensors.
#include <optional>
#include <string>
#include <utility>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <glade/core/tensor.h>
#include <glade/ops/reduce/reduce.h>

namespace glade::python {

namespace py = pybind11;

using Unlocked = py::call_guard<py::gil_scoped_release>;

// ---- the type Tensor (tensor.cpp) ----------------------------------------------------------------------------------

struct PyTensor {
  PyObject_HEAD Tensor tensor;
  PyObject* weak_references;
};

extern PyTypeObject* tensor_type;

inline bool is_tensor(PyObject* object) { return Py_TYPE(object) == tensor_type; }  // it cannot be subclassed
inline Tensor& tensor_of(PyObject* object) { return reinterpret_cast<PyTensor*>(object)->tensor; }
/// The tensor's Python object, of which there is one at a time (None for an undefined tensor); a new reference, or null with a
/// Python error set.
PyObject* wrap(Tensor tensor);
inline py::object to_python(Tensor tensor) {
  PyObject* object = wrap(std::move(tensor));
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

/// The value of a tensor of one element.
template <class T>
T value_of(const Tensor& x) {
  const py::gil_scoped_release unlocked;
  return x.item<T>();
}

/// Sets the Python error that belongs to the C++ exception in flight.
void set_error_from_exception();
/// Runs f for a slot of a type, where pybind11 does not translate exceptions.
template <class F>
auto guarded(F f, decltype(f()) failure = {}) -> decltype(f()) {
  try {
    return f();
  } catch (...) {
    set_error_from_exception();
    return failure;
  }
}

/// Adds a function to the class Tensor.
template <class F, class... Extra>
void def_method(const char* name, F&& f, const Extra&... extra) {
  const py::handle type(reinterpret_cast<PyObject*>(tensor_type));
  const py::cpp_function function(std::forward<F>(f), py::name(name), py::is_method(type),
                                  py::sibling(py::getattr(type, name, py::none())), extra...);
  py::setattr(type, name, function);
}
/// Adds a function to the module, and to the class Tensor as a method; `self` names the first argument of the function.
template <class F, class... Extra>
void def_both(py::module_& module, const char* name, F f, const py::arg& self, const Extra&... extra) {
  module.def(name, f, self, extra...);
  def_method(name, f, extra...);
}

// ---- arguments -----------------------------------------------------------------------------------------------------

/// A tensor, or an array that becomes one, without copying where it is writable: NumPy's, or any with DLPack.
struct TensorLike {
  Tensor tensor;
};
/// The tensor over an array's memory, or over a copy where it is read-only; undefined where the object is no array. ml_dtypes'
/// bfloat16 is understood.
Tensor tensor_from_array(py::handle object);

inline Tensor or_undefined(const std::optional<Tensor>& x) { return x.value_or(Tensor{}); }
inline Tensor or_undefined(const std::optional<TensorLike>& x) { return x ? x->tensor : Tensor{}; }

/// The sizes in (2, 3), ([2, 3],) or ((2, 3),): functions that take a shape take its sizes one by one too.
Shape shape_from_arguments(const py::args& arguments, const char* function);
std::vector<std::int64_t> integers_from_arguments(const py::args& arguments, const char* function);

/// A Python number as a Scalar; nothing where it is none. NumPy's numbers count.
std::optional<Scalar> scalar_from(PyObject* object);

/// A submodule whose classes say that they are of the public module `name`.
py::module_ public_submodule(py::module_& module, const char* private_name, const char* name);

/// A Python object held from C++ code that runs without the interpreter lock.
class Callback {
 public:
  explicit Callback(py::object object);
  py::handle get() const { return *object_; }

 private:
  std::shared_ptr<py::object> object_;
};

// ---- the subjects, each in a file of that name ---------------------------------------------------------------------

void bind_errors(py::module_& module);
void bind_types(py::module_& module);
void bind_tensor(py::module_& module);
void bind_methods(py::module_& module);
void bind_dlpack(py::module_& module);
void bind_creation(py::module_& module);
void bind_elementwise(py::module_& module);
void bind_reduce(py::module_& module);
void bind_shape(py::module_& module);
void bind_composite(py::module_& module);
void bind_names(py::module_& module);
void bind_layers(py::module_& module);
void bind_linear_attention(py::module_& module);
void bind_attention_modules(py::module_& module);
void bind_autograd(py::module_& module);
void bind_cuda(py::module_& module);
void bind_modules(py::module_& module);
void bind_models(py::module_& module);
void bind_optim(py::module_& module);
void bind_checkpoint(py::module_& module);
void bind_data(py::module_& module);
void bind_distributed(py::module_& module);
void bind_profiler(py::module_& module);
/// Lets Python's collector free modules in cycles, of all classes bound so far.
void make_modules_collectable();
/// Makes wrong arguments of all that is bound so far an error of one line.
void explain_argument_errors(py::module_& module);

// Slots of the type Tensor.
extern PyType_Slot operator_slots[];
PyObject* get_item(PyObject* self, PyObject* key);
int set_item(PyObject* self, PyObject* key, PyObject* value);
int get_buffer(PyObject* self, Py_buffer* view, int flags);
void release_buffer(PyObject* self, Py_buffer* view);

}  // namespace glade::python

namespace pybind11::detail {

template <>
struct type_caster<glade::Tensor> {
  PYBIND11_TYPE_CASTER(glade::Tensor, const_name("glade.Tensor"));
  bool load(handle source, bool) {
    if (!glade::python::is_tensor(source.ptr())) return false;
    value = glade::python::tensor_of(source.ptr());
    return true;
  }
  static handle cast(glade::Tensor tensor, return_value_policy, handle) {
    PyObject* object = glade::python::wrap(std::move(tensor));
    if (object == nullptr) throw error_already_set();
    return object;
  }
};

template <>
struct type_caster<glade::python::TensorLike> {
  PYBIND11_TYPE_CASTER(glade::python::TensorLike, const_name("glade.typing.ArrayLike"));
  bool load(handle source, bool) {
    if (glade::python::is_tensor(source.ptr())) value.tensor = glade::python::tensor_of(source.ptr());
    else value.tensor = glade::python::tensor_from_array(source);
    return value.tensor.defined();
  }
};

template <>
struct type_caster<glade::Shape> {
  PYBIND11_TYPE_CASTER(glade::Shape, const_name("tuple[int, ...]"));
  bool load(handle source, bool convert);
  static handle cast(const glade::Shape& shape, return_value_policy, handle);
};

/// A named tuple of Python's.
template <>
struct type_caster<glade::ValuesAndIndices> {
  PYBIND11_TYPE_CASTER(glade::ValuesAndIndices, const_name("glade.typing.ValuesAndIndices"));
  bool load(handle, bool) { return false; }
  static handle cast(const glade::ValuesAndIndices& result, return_value_policy, handle);
};

template <>
struct type_caster<glade::DType> {
  PYBIND11_TYPE_CASTER(glade::DType, const_name("glade.DType"));
  bool load(handle source, bool convert);
  static handle cast(glade::DType dtype, return_value_policy, handle);
};

/// A glade.Device, or its name.
template <>
class type_caster<glade::Device> : public type_caster_base<glade::Device> {
 public:
  bool load(handle source, bool convert) {
    if (!isinstance<str>(source)) return type_caster_base<glade::Device>::load(source, convert);
    parsed_ = glade::Device::parse(source.cast<std::string>());
    value = &parsed_;
    return true;
  }

 private:
  glade::Device parsed_;
};

template <>
class type_caster<glade::Scalar> {
 public:
  static constexpr auto name = const_name("float");
  bool load(handle source, bool) {
    value_ = glade::python::scalar_from(source.ptr());
    return value_.has_value();
  }
  operator glade::Scalar() const { return *value_; }  // NOLINT(google-explicit-constructor): pybind11 converts so
  template <class>
  using cast_op_type = glade::Scalar;

 private:
  std::optional<glade::Scalar> value_;
};

}  // namespace pybind11::detail
