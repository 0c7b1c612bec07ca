// The second names under which PyTorch has some operations, of the module and of Tensor.
#include "python.h"

namespace glade::python {

namespace {

struct Name {
  const char *name, *of;
};

constexpr Name kNames[] = {
    {"sub", "subtract"},       {"mul", "multiply"},
    {"div", "divide"},         {"true_divide", "divide"},
    {"pow", "power"},          {"neg", "negative"},
    {"not_equal", "ne"},       {"less", "lt"},
    {"less_equal", "le"},      {"greater", "gt"},
    {"greater_equal", "ge"},   {"clip", "clamp"},
    {"concat", "cat"},         {"mm", "matmul"},
    {"bmm", "matmul"},         {"swapaxes", "transpose"},
    {"sub_", "subtract_"},     {"mul_", "multiply_"},
    {"div_", "divide_"},       {"clip_", "clamp_"},
    {"nelement", "numel"},     {"ndimension", "dim"},
    {"swapdims", "transpose"}, {"moveaxis", "movedim"},
    {"concatenate", "cat"},    {"from_numpy", "as_tensor"},
};

}  // namespace

void bind_names(py::module_& module) {
  const py::object type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(tensor_type));
  for (const py::object& owner : {py::object(module), type}) {
    const py::object members = owner.attr("__dict__");  // where methods are not yet bound
    for (const auto& [name, of] : kNames)
      if (members.contains(of)) py::setattr(owner, name, members[of]);
  }
  module.attr("device") = module.attr("Device");
  module.attr("dtype") = module.attr("DType");
}

}  // namespace glade::python
