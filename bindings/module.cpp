// The extension module glade._glade.
#include "python.h"

PYBIND11_MODULE(_glade, module) {
  using namespace glade::python;
  module.attr("__module__") = "glade";  // where classes say that they come from
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
  bind_composite(module);
  bind_names(module);
  bind_linear_attention(module);
  bind_attention_modules(module);
  bind_autograd(module);
  bind_cuda(module);
  bind_modules(module);
  bind_optim(module);
  bind_checkpoint(module);
  bind_distributed(module);
  bind_models(module);
  bind_data(module);
  bind_profiler(module);
  make_modules_collectable();
  explain_argument_errors(module);
}
