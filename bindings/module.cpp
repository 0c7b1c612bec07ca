// The extension module glade._glade.
#include "python.h"

PYBIND11_MODULE(_glade, module) {
  using namespace glade::python;
  module.attr("__version__") = GLADE_VERSION;
  bind_errors(module);
  bind_types(module);
  bind_tensor(module);
  bind_methods(module);
  bind_dlpack(module);
  bind_creation(module);
  bind_elementwise(module);
  bind_reduce(module);
  bind_shape(module);
  bind_layers(module);
  bind_linear_attention(module);
  bind_autograd(module);
}
