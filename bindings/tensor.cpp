// The Python type Tensor: its object, its properties, and what the language asks of it besides operators and indexing.
#include <new>

#include <glade/autograd/node.h>

#include "python.h"

#include <structmember.h>  // after Python.h

namespace glade::python {

PyTypeObject* tensor_type = nullptr;

PyObject* wrap(Tensor tensor) {
  if (!tensor.defined()) Py_RETURN_NONE;
  TensorImpl& impl = *tensor.impl();
  if (impl.python_object != nullptr) return Py_NewRef(static_cast<PyObject*>(impl.python_object));
  PyObject* object = tensor_type->tp_alloc(tensor_type, 0);
  if (object == nullptr) return nullptr;
  new (&tensor_of(object)) Tensor(std::move(tensor));
  impl.python_object = object;
  return object;
}

namespace {

void deallocate(PyObject* self) {
  tensor_of(self).impl()->python_object = nullptr;  // first: what runs below may ask for the tensor again
  if (reinterpret_cast<PyTensor*>(self)->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  tensor_of(self).~Tensor();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// ---- properties ----------------------------------------------------------------------------------------------------

template <auto get>
PyObject* getter(PyObject* self, void*) {
  return guarded([&] { return py::cast(get(tensor_of(self))).release().ptr(); });
}

PyObject* nbytes(PyObject* self, void*) {  // with Python's integers, which an expanded tensor does not overflow
  return guarded([&] {
    const Tensor& x = tensor_of(self);
    return (py::int_(x.numel()) * py::int_(dtype_size(x.dtype()))).release().ptr();
  });
}

int set_requires_grad(PyObject* self, PyObject* value, void*) {
  return guarded(
      [&] {
        const int flag = value == nullptr ? -1 : PyObject_IsTrue(value);
        if (flag < 0) throw py::type_error("requires_grad must be True or False");
        tensor_of(self).set_requires_grad(flag != 0);
        return 0;
      },
      -1);
}

int set_grad(PyObject* self, PyObject* value, void*) {
  return guarded(
      [&] {
        if (value != nullptr && value != Py_None && !is_tensor(value)) throw py::type_error("grad must be a Tensor or None");
        tensor_of(self).set_grad(value == nullptr || value == Py_None ? Tensor{} : tensor_of(value));
        return 0;
      },
      -1);
}

int refuse_data(PyObject*, PyObject*, void*) {
  PyErr_SetString(PyExc_AttributeError, "a tensor's data stays where it is: write x.copy_(value) within glade.no_grad()");
  return -1;
}

PyGetSetDef properties[] = {
    {"shape", getter<[](const Tensor& x) { return x.shape(); }>, nullptr, "The sizes of the dimensions, a tuple of ints.",
     nullptr},
    {"strides", getter<[](const Tensor& x) { return x.strides(); }>, nullptr, "The strides in elements, a tuple of ints.",
     nullptr},
    {"dtype", getter<[](const Tensor& x) { return x.dtype(); }>, nullptr, "The element type, such as glade.float32.", nullptr},
    {"device", getter<[](const Tensor& x) { return x.device(); }>, nullptr, "Where the tensor lives, a glade.Device.", nullptr},
    {"is_cuda", getter<[](const Tensor& x) { return x.is_cuda(); }>, nullptr, "Whether the tensor is on a GPU.", nullptr},
    {"is_cpu", getter<[](const Tensor& x) { return x.is_cpu(); }>, nullptr, "Whether the tensor is on the CPU.", nullptr},
    {"ndim", getter<[](const Tensor& x) { return x.ndim(); }>, nullptr, "The number of dimensions.", nullptr},
    {"itemsize", getter<[](const Tensor& x) { return dtype_size(x.dtype()); }>, nullptr, "Bytes of one element.", nullptr},
    {"nbytes", nbytes, nullptr, "Bytes of all elements; of an expanded tensor more than memory may hold.", nullptr},
    {"requires_grad", getter<[](const Tensor& x) { return x.requires_grad(); }>, set_requires_grad,
     "Whether operations on this tensor are recorded for backward(). Can be set on leaves of floating-point dtype.", nullptr},
    {"data", getter<[](const Tensor& x) { return x.detach(); }>, refuse_data,
     "detach(): the same values and memory, cut off from the tape.", nullptr},
    {"is_leaf", getter<[](const Tensor& x) { return x.is_leaf(); }>, nullptr, "Whether no recorded operation made this tensor.",
     nullptr},
    {"grad", getter<[](const Tensor& x) { return x.grad(); }>, set_grad,
     "The gradient gathered by backward(): a tensor of this one's shape, dtype and device, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(PyTensor, weak_references), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

// ---- sequence ------------------------------------------------------------------------------------------------------

Py_ssize_t length(PyObject* self) {
  const Tensor& x = tensor_of(self);
  if (x.ndim() > 0) return x.shape()[0];
  PyErr_SetString(PyExc_TypeError, "len() of a tensor without dimensions");
  return -1;
}

PyObject* iterate(PyObject* self) {
  if (tensor_of(self).ndim() > 0) return PySeqIter_New(self);
  PyErr_SetString(PyExc_TypeError, "iteration over a tensor without dimensions");
  return nullptr;
}

// Iteration ends with an IndexError, which here costs no message.
PyObject* item_at(PyObject* self, Py_ssize_t i) {
  const Tensor& x = tensor_of(self);
  if (x.ndim() > 0 && (i < 0 || i >= x.shape()[0])) {
    PyErr_SetNone(PyExc_IndexError);
    return nullptr;
  }
  PyObject* index = PyLong_FromSsize_t(i);
  PyObject* result = get_item(self, index);
  Py_DECREF(index);
  return result;
}

// ---- attributes that are not there -----------------------------------------------------------------------------------

/// As any object's, but that the error says what to write instead of a name of PyTorch's.
PyObject* get_attribute(PyObject* self, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(self, name);
  if (found != nullptr || PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return found;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  guarded([&] {
    const std::string text = py::str(py::handle(name));
    if (text.starts_with('_')) return 0;  // which libraries ask for
    const py::object message = py::module_::import("glade._missing").attr("explain")(text);
    if (py::len(message) > 0) py::setattr(value, "args", py::make_tuple(message));
    return 0;
  });
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  PyErr_Restore(type, value, traceback);
  return nullptr;
}

// ---- numbers and text ----------------------------------------------------------------------------------------------

/// As PyTorch prints a tensor: the values, and what is not as usual.
std::string described(const Tensor& x, const std::string& whole) {
  const std::string values = whole.substr(0, whole.rfind('\n'));
  std::string text = "tensor(";
  for (const char c : values) text += c == '\n' ? std::string("\n       ") : std::string(1, c);
  std::string rest;
  const auto add = [&](const std::string& part) { rest += ", " + part; };
  const bool is_cut = values.find("...") != values.npos;
  if (is_cut || (x.numel() == 0 && x.ndim() != 1)) add("shape=" + py::str(py::cast(x.shape())).cast<std::string>());
  const bool is_usual = x.dtype() == DType::float32 || x.dtype() == DType::int64 || x.dtype() == DType::boolean;
  if (!is_usual || (x.numel() == 0 && x.dtype() != DType::float32)) add("dtype=" + std::string(dtype_name(x.dtype())));
  if (!x.is_cpu()) add("device='" + x.device().name() + "'");
  if (!x.is_leaf()) add(std::string("grad_fn=<") + x.impl()->autograd->grad_fn->name() + ">");
  else if (x.requires_grad()) add("requires_grad=True");
  const std::size_t last_line = text.size() - (text.rfind('\n') + 1);
  if (last_line + rest.size() > 90 && !rest.empty()) rest.replace(1, 1, "\n       ");
  return text + rest + ")";
}

PyObject* as_text(PyObject* self) {
  return guarded([&] {
    std::string text;
    {
      const py::gil_scoped_release unlocked;
      text = tensor_of(self).str();
    }
    return py::str(described(tensor_of(self), text)).release().ptr();
  });
}

int as_bool(PyObject* self) {
  return guarded([&] { return static_cast<int>(value_of<bool>(tensor_of(self))); }, -1);
}

PyObject* as_float(PyObject* self) {
  return guarded([&] { return PyFloat_FromDouble(value_of<double>(tensor_of(self))); });
}

PyObject* as_int(PyObject* self) {
  return guarded([&] {
    const Tensor& x = tensor_of(self);
    if (is_integral(x.dtype())) return PyLong_FromLongLong(value_of<std::int64_t>(x));
    return PyLong_FromDouble(value_of<double>(x));
  });
}

PyObject* as_index(PyObject* self) {
  const Tensor& x = tensor_of(self);
  if (is_integral(x.dtype()) && x.dtype() != DType::boolean && x.ndim() == 0) return as_int(self);
  PyErr_SetString(PyExc_TypeError, "only integer tensors without dimensions can be used as an index");
  return nullptr;
}

PyObject* refuse_to_make(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "a Tensor is made by glade.tensor(values), glade.zeros(sizes) and the like");
  return nullptr;
}

Py_hash_t hash(PyObject* self) {
  // Tensors compare element by element, so equal hashes must mean the same object: a tensor has but one at a time.
  return static_cast<Py_hash_t>(reinterpret_cast<std::uintptr_t>(self) >> 4);
}

}  // namespace

void bind_tensor(py::module_& module) {
  constexpr const char* doc =
      "A strided, typed array on a device, with a place on the tape for gradients.\n\n"
      "Made by glade.tensor, glade.zeros, glade.randn and the like, glade.from_dlpack, and by operations. Operators "
      "broadcast and promote dtypes as in NumPy and the array API standard; slices are views of the same memory.";
  std::vector<PyType_Slot> slots = {
      {Py_tp_doc, const_cast<char*>(doc)},
      {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
      {Py_tp_getset, properties},
      {Py_tp_members, members},
      {Py_tp_new, reinterpret_cast<void*>(refuse_to_make)},
      {Py_tp_repr, reinterpret_cast<void*>(as_text)},
      {Py_tp_hash, reinterpret_cast<void*>(hash)},
      {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
      {Py_tp_iter, reinterpret_cast<void*>(iterate)},
      {Py_sq_length, reinterpret_cast<void*>(length)},
      {Py_sq_item, reinterpret_cast<void*>(item_at)},
      {Py_mp_length, reinterpret_cast<void*>(length)},
      {Py_mp_subscript, reinterpret_cast<void*>(get_item)},
      {Py_mp_ass_subscript, reinterpret_cast<void*>(set_item)},
      {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
      {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
      {Py_nb_bool, reinterpret_cast<void*>(as_bool)},
      {Py_nb_float, reinterpret_cast<void*>(as_float)},
      {Py_nb_int, reinterpret_cast<void*>(as_int)},
      {Py_nb_index, reinterpret_cast<void*>(as_index)},
  };
  for (PyType_Slot* slot = operator_slots;; ++slot) {
    slots.push_back(*slot);
    if (slot->slot == 0) break;
  }
  PyType_Spec spec{"glade.Tensor", sizeof(PyTensor), 0, Py_TPFLAGS_DEFAULT, slots.data()};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  tensor_type = reinterpret_cast<PyTypeObject*>(type);
  py::setattr(type, "__array_priority__", py::int_(1000));  // array + tensor is ours to compute
  module.add_object("Tensor", type);
}

}  // namespace glade::python
