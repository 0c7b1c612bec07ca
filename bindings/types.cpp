// Shapes, dtypes, devices and numbers as arguments.
#include <array>

#include "python.h"

namespace glade::python {

namespace {

/// The members of the Python enumeration glade.DType, by DType.
std::array<PyObject*, 8> dtype_objects{};

/// The dtype of a name; nothing for the name of a device, and ValueError for any other.
std::optional<DType> dtype_named(const std::string& name) {
  if (name == "auto" || name.starts_with("cpu") || name.starts_with("cuda")) return std::nullopt;
  if (name == "bool_") return DType::boolean;
  return dtype_from_name(name);
}

bool is_numpy_number(PyObject* object) {
  static PyObject* generic = nullptr;
  if (generic == nullptr) {
    const py::str name("numpy");
    PyObject* numpy = PyImport_GetModule(name.ptr());
    if (numpy == nullptr) return false;  // not loaded: nothing comes from it
    generic = PyObject_GetAttrString(numpy, "generic");
    Py_DECREF(numpy);
    if (generic == nullptr) throw py::error_already_set();
  }
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(generic)) != 0;
}

std::int64_t to_integer(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

}  // namespace

std::optional<Scalar> scalar_from(PyObject* object) {
  if (PyFloat_Check(object)) return Scalar(PyFloat_AS_DOUBLE(object));
  if (PyBool_Check(object)) return Scalar(object == Py_True);
  if (PyLong_Check(object)) return Scalar(to_integer(object));
  if (is_tensor(object)) return std::nullopt;
  const PyNumberMethods* number = Py_TYPE(object)->tp_as_number;
  if (number == nullptr || (number->nb_float == nullptr && number->nb_index == nullptr)) return std::nullopt;
  if (is_numpy_number(object)) {
    const py::object item = py::handle(object).attr("item")();
    return PyComplex_Check(item.ptr()) ? std::nullopt : scalar_from(item.ptr());
  }
  if (PyMapping_Check(object) || PySequence_Check(object)) return std::nullopt;  // arrays
  if (number->nb_index != nullptr) return Scalar(to_integer(py::reinterpret_steal<py::object>(PyNumber_Index(object)).ptr()));
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return Scalar(value);
}

std::vector<std::int64_t> integers_from_arguments(const py::args& arguments, const char* function) {
  py::object sizes = arguments;
  if (arguments.size() == 1 && PyIndex_Check(py::object(arguments[0]).ptr()) == 0) sizes = arguments[0];
  std::vector<std::int64_t> result;
  try {
    for (const py::handle size : sizes)
      result.push_back(to_integer(py::reinterpret_steal<py::object>(PyNumber_Index(size.ptr())).ptr()));
  } catch (py::error_already_set& error) {
    std::string given = py::str(sizes);
    given = given.substr(0, given.find('\n'));
    if (given.size() > 60) given = given.substr(0, 57) + "...";
    throw py::type_error(std::string(function) + ": expected integers or one sequence of them, got " + given);
  }
  return result;
}

Shape shape_from_arguments(const py::args& arguments, const char* function) {
  return Shape(integers_from_arguments(arguments, function));
}

py::module_ public_submodule(py::module_& module, const char* private_name, const char* name) {
  py::module_ submodule = module.def_submodule(private_name);
  submodule.attr("__module__") = name;
  return submodule;
}

Callback::Callback(py::object object)
    : object_(new py::object(std::move(object)), [](py::object* held) {
        if (!Py_IsInitialized()) return;
        const py::gil_scoped_acquire locked;
        delete held;
      }) {}

void bind_types(py::module_& module) {
  const py::object dtype = py::module_::import("glade._dtype").attr("DType");
  for (std::size_t i = 0; i < dtype_objects.size(); ++i) {
    const std::string name(dtype_name(static_cast<DType>(i)));
    dtype_objects[i] = py::object(dtype.attr(name.c_str())).release().ptr();
    module.attr(name.c_str()) = dtype_objects[i];
  }
  module.attr("DType") = dtype;
  using Names = std::initializer_list<std::pair<const char*, const char*>>;
  for (const auto& [name, of] :
       Names{{"double", "float64"}, {"float", "float32"}, {"half", "float16"}, {"long", "int64"}, {"int", "int32"}})
    module.attr(name) = module.attr(of);

  py::class_<Device>(module, "Device",
                     "Where a tensor lives: glade.Device(\"cpu\"), glade.Device(\"cuda:0\"). Names stand for devices everywhere.")
      .def(
          py::init([](const std::string& name) { return Device::parse(name); }), py::arg("name"),
          "The device of a name: \"cpu\", \"cuda\", \"cuda:N\" or \"auto\" (cuda:0 where there is one, else cpu). ValueError for "
          "other names, DeviceError for a device that is not there.")
      .def(py::init([](const std::string& type, int index) {
             return type == "cpu" && index == 0 ? kCPU : Device::parse(type + ":" + std::to_string(index));
           }),
           py::arg("type"), py::arg("index"))
      .def_property_readonly(
          "type", [](const Device& d) { return d.is_cpu() ? "cpu" : "cuda"; }, "\"cpu\" or \"cuda\".")
      .def_property_readonly(
          "index", [](const Device& d) { return d.index; }, "The number of the device among those of its type.")
      .def("__str__", &Device::name)
      .def("__repr__", [](const Device& d) { return "glade.Device('" + d.name() + "')"; })
      .def("__hash__", [](const Device& d) { return py::hash(py::str(d.name())); })
      .def("__reduce__", [](const py::object& d) { return py::make_tuple(py::type::of(d), py::make_tuple(py::str(d))); })
      .def("__eq__", [](const Device& a, const py::object& b) {
        if (py::isinstance<Device>(b)) return a == b.cast<Device>();
        return py::isinstance<py::str>(b) &&
               (b.cast<std::string>() == a.name() || (b.cast<std::string>() == "cuda" && a == kCUDA));
      });
}

}  // namespace glade::python

namespace pybind11::detail {

using namespace glade;
using namespace glade::python;

bool type_caster<Shape>::load(handle source, bool) {
  if (PyIndex_Check(source.ptr()) && !PySequence_Check(source.ptr())) {
    value = Shape{to_integer(reinterpret_steal<object>(PyNumber_Index(source.ptr())).ptr())};
    return true;
  }
  if (!PyTuple_Check(source.ptr()) && !PyList_Check(source.ptr())) return false;
  value = Shape{};
  for (const handle size : source) {
    const object index = reinterpret_steal<object>(PyNumber_Index(size.ptr()));
    if (!index) {
      PyErr_Clear();
      return false;
    }
    value.push_back(to_integer(index.ptr()));
  }
  return true;
}

handle type_caster<Shape>::cast(const Shape& shape, return_value_policy, handle) {
  tuple result(static_cast<std::size_t>(shape.ndim()));
  for (int i = 0; i < shape.ndim(); ++i) PyTuple_SET_ITEM(result.ptr(), i, PyLong_FromLongLong(shape[i]));
  return result.release();
}

bool type_caster<DType>::load(handle source, bool) {
  for (std::size_t i = 0; i < dtype_objects.size(); ++i) {
    if (source.ptr() != dtype_objects[i]) continue;
    value = static_cast<DType>(i);
    return true;
  }
  // A name, one of Python's types (float, int, bool), or one of NumPy's (a dtype, or a scalar type).
  object dtype_name = reinterpret_borrow<object>(source);
  if (source.ptr() == reinterpret_cast<PyObject*>(&PyFloat_Type)) dtype_name = str("float64");  // what Python's numbers are
  else if (source.ptr() == reinterpret_cast<PyObject*>(&PyLong_Type)) dtype_name = str("int64");
  else if (PyType_Check(source.ptr())) dtype_name = source.attr("__name__");
  else if (!isinstance<str>(source) && hasattr(source, "itemsize")) dtype_name = getattr(source, "name", none());
  if (!isinstance<str>(dtype_name)) return false;
  const auto dtype = dtype_named(dtype_name.cast<std::string>());
  if (dtype) value = *dtype;
  return dtype.has_value();
}

handle type_caster<ValuesAndIndices>::cast(const ValuesAndIndices& result, return_value_policy, handle) {
  return module_::import("glade.typing").attr("ValuesAndIndices")(result.values, result.indices).release();
}

handle type_caster<DType>::cast(DType dtype, return_value_policy, handle) {
  return handle(dtype_objects[static_cast<std::size_t>(dtype)]).inc_ref();
}

}  // namespace pybind11::detail
