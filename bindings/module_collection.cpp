// Garbage collection of modules: Python's collector visits what a module's attributes hold, so that it frees cycles through them.
#include <glade/nn/module.h>

#include "modules.h"

namespace glade::python {

namespace {

/// Whether the collector's own function for a class written in Python visits the __dict__ of an instance, though the class
/// inherits it: with some versions of Python it does, with others it leaves that to the base.
bool python_visits_dict = false;

/// A dict that is visited twice counts as referenced from outside, one that is not visited keeps all it holds: either way no
/// cycle is freed.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (python_visits_dict && Py_TYPE(self)->tp_traverse != traverse) return 0;
#if PY_VERSION_HEX >= 0x030D0000
  return PyObject_VisitManagedDict(self, visit, arg);
#else
  PyObject** const dict = _PyObject_GetDictPtr(self);
  if (dict != nullptr) Py_VISIT(*dict);
  return 0;
#endif
}

void set_traverse(py::handle type) {
  reinterpret_cast<PyTypeObject*>(type.ptr())->tp_traverse = traverse;
  for (const py::handle derived : type.attr("__subclasses__")()) set_traverse(derived);
}

/// Counts how often the attributes of an instance of a derived class are visited where the base visits them too.
void find_out_what_python_visits(py::handle type) {
  const py::object derived =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyType_Type))("Derived", py::make_tuple(type), py::dict());
  const py::object instance = derived();
  instance.attr("__dict__")["attribute"] = 0;  // which makes it a dict
  int visits = 0;
  const visitproc count = [](PyObject* object, void* visited) {
    *static_cast<int*>(visited) += PyDict_Check(object);
    return 0;
  };
  Py_TYPE(instance.ptr())->tp_traverse(instance.ptr(), count, &visits);
  python_visits_dict = visits > 1;
}

}  // namespace

void make_modules_collectable() {
  set_traverse(py::type::of<nn::Module>());
  find_out_what_python_visits(py::type::of<nn::Module>());
}

}  // namespace glade::python
