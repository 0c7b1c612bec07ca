#pragma once
// What the bindings of modules share.
#include <glade/nn/module.h>

#include "python.h"

namespace glade::python {

/// The class Module.
void bind_module(py::module_& module);
void bind_activation_layers(py::module_& module);
/// The initializers, in glade.nn.init.
void bind_init(py::module_& module);
void bind_loss_modules(py::module_& module);
void bind_softmax_attention(py::module_& module);
/// The losses as functions.
void bind_losses(py::module_& module);

/// A layer's parameter as an attribute that can be set: to a parameter, which may be another layer's, or to None.
template <class Class, class Layer>
void def_parameter(Class& type, const char* name, Tensor Layer::*member, const char* doc) {
  type.def_property(
      name, [member](const Layer& self) { return self.*member; },
      [member, name](Layer& self, const py::object& value) {
        if (!value.is_none() &&
            (!is_tensor(value.ptr()) || !tensor_of(value.ptr()).requires_grad() || !tensor_of(value.ptr()).is_leaf()))
          throw py::type_error(std::string(name) + ": expected a parameter, such as nn.Parameter(tensor), or None");
        self.*member = value.is_none() ? Tensor() : tensor_of(value.ptr());
      },
      doc);
}

}  // namespace glade::python
