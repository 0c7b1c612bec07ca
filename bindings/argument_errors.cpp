// For every function and class at once: one line instead of pybind11's list of signatures and printed arguments, and an error
// instead of a crash for an object that no constructor has made.
#include <unordered_set>

#include "python.h"

namespace glade::python {

namespace {

// All functions that pybind11 makes call one dispatcher, in the convention of its version.
using FastFunction = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
FastFunction dispatch_fast = nullptr;
PyCFunctionWithKeywords dispatch = nullptr;

/// The text of the error that is set, if it is pybind11's for arguments that fit no overload; the error is cleared then.
std::optional<std::string> take_argument_error() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const auto text = static_cast<std::string>(py::str(py::handle(value)));
  const std::string line = text.substr(0, text.find('\n'));
  if (type != PyExc_TypeError || (line.find("(): incompatible function arguments") == line.npos &&
                                  line.find("(): incompatible constructor arguments") == line.npos)) {
    PyErr_Restore(type, value, traceback);
    return std::nullopt;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return text;
}

/// Replaces pybind11's error by one line, which glade/_errors.py writes.
PyObject* explain(const py::tuple& arguments, const py::dict& keywords) {
  return guarded([&]() -> PyObject* {
    if (const auto text = take_argument_error()) {
      const py::object line = py::module_::import("glade._errors").attr("explain")(*text, arguments, keywords);
      PyErr_SetObject(PyExc_TypeError, line.ptr());
    }
    return nullptr;
  });
}

bool may_be_argument_error(PyObject* result) {
  return result == nullptr && PyErr_Occurred() != nullptr && PyErr_GivenExceptionMatches(PyErr_Occurred(), PyExc_TypeError) != 0;
}

PyObject* call_fast(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  PyObject* result = dispatch_fast(self, arguments, count, names);
  if (!may_be_argument_error(result)) return result;
  py::tuple positional(static_cast<std::size_t>(count));
  py::dict keywords;
  for (Py_ssize_t i = 0; i < count; ++i)
    positional[static_cast<std::size_t>(i)] = py::reinterpret_borrow<py::object>(arguments[i]);
  for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_GET_SIZE(names); ++i)
    keywords[py::handle(PyTuple_GET_ITEM(names, i))] = py::handle(arguments[count + i]);
  return explain(positional, keywords);
}

PyObject* call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  PyObject* result = dispatch(self, arguments, keywords);
  if (!may_be_argument_error(result)) return result;
  return explain(py::reinterpret_borrow<py::tuple>(arguments),
                 keywords == nullptr ? py::dict() : py::reinterpret_borrow<py::dict>(keywords));
}

template <class To, class From>
To function_cast(From function) {
  return reinterpret_cast<To>(reinterpret_cast<void (*)()>(function));
}

void wrap_function(PyObject* function) {
  PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (definition->ml_flags == (METH_FASTCALL | METH_KEYWORDS)) {
    const auto own = function_cast<PyCFunction>(call_fast);
    if (definition->ml_meth == own) return;
    dispatch_fast = function_cast<FastFunction>(definition->ml_meth);
    definition->ml_meth = own;
  } else if (definition->ml_flags == (METH_VARARGS | METH_KEYWORDS)) {
    const auto own = function_cast<PyCFunction>(call);
    if (definition->ml_meth == own) return;
    dispatch = function_cast<PyCFunctionWithKeywords>(definition->ml_meth);
    definition->ml_meth = own;
  }
}

/// What pybind11 calls for memory where an object is used that has no C++ part yet: it would use that memory as it comes.
void* refuse_unmade_object(std::size_t) {
  throw py::attribute_error("an object was used before its __init__ called super().__init__()");
}

/// Visits what can be called in a module or class, and in those that it holds.
void visit(py::handle object, std::unordered_set<PyObject*>& seen) {
  if (!object || !seen.insert(object.ptr()).second) return;
  if (PyInstanceMethod_Check(object.ptr())) {
    visit(PyInstanceMethod_GET_FUNCTION(object.ptr()), seen);
  } else if (PyCFunction_Check(object.ptr())) {
    const py::handle self = PyCFunction_GET_SELF(object.ptr());  // in which pybind11 keeps the function's overloads
    if (self && !PyModule_Check(self.ptr()) && !PyType_Check(self.ptr())) wrap_function(object.ptr());
  } else if (Py_TYPE(object.ptr()) == &PyStaticMethod_Type) {
    visit(object.attr("__func__"), seen);
  } else if (Py_TYPE(object.ptr()) == &PyProperty_Type) {
    visit(object.attr("fget"), seen);
    visit(object.attr("fset"), seen);
  } else if (PyModule_Check(object.ptr()) ||
             (PyType_Check(object.ptr()) && py::str(object.attr("__module__")).cast<std::string>().starts_with("glade"))) {
    if (PyType_Check(object.ptr()))
      if (const auto info = py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(object.ptr())))
        info->operator_new = refuse_unmade_object;
    for (const auto& [name, value] : py::dict(object.attr("__dict__"))) visit(value, seen);
  }
}

}  // namespace

void explain_argument_errors(py::module_& module) {
  std::unordered_set<PyObject*> seen;
  visit(module, seen);
}

}  // namespace glade::python
