// Functions without parameters as modules.
#include <glade/nn/activation.h>

#include "modules.h"

namespace glade::python {

namespace {

using namespace nn;
using py::arg;

template <class M>
void def_plain(py::module_& module, const char* name, const char* doc) {
  py::class_<M, UnaryModule>(module, name, doc).def(py::init<>()).def("_arguments", [](const M&) { return py::dict(); });
}

}  // namespace

void bind_activation_layers(py::module_& module) {
  def_plain<ReLU>(module, "ReLU", "max(x, 0)");
  def_plain<SiLU>(module, "SiLU", "x * sigmoid(x)");
  def_plain<Tanh>(module, "Tanh", "The hyperbolic tangent.");
  def_plain<Sigmoid>(module, "Sigmoid", "1 / (1 + exp(-x))");
  def_plain<Softplus>(module, "Softplus", "log(1 + exp(x)), without overflow");
  def_plain<Identity>(module, "Identity", "x itself");
  py::class_<GELU, UnaryModule>(module, "GELU",
                                "x * Phi(x), Phi the normal distribution; approximate=\"tanh\" takes the form by tanh.")
      .def(py::init([](const std::string& approximate) {
             if (approximate != "none" && approximate != "tanh")
               throw ValueError("GELU: approximate is '" + approximate + "', expected 'none' or 'tanh'");
             return std::make_unique<GELU>(approximate == "tanh" ? GeluForm::tanh : GeluForm::erf);
           }),
           arg("approximate") = "none")
      .def("_arguments",
           [](const GELU& self) { return py::dict(arg("approximate") = self.form() == GeluForm::tanh ? "tanh" : "none"); });
  py::class_<Softmax, UnaryModule>(module, "Softmax", "exp(x) / sum(exp(x)) along `dim`.")
      .def(py::init<std::int64_t>(), arg("dim") = -1)
      .def("_arguments", [](const Softmax& self) { return py::dict(arg("dim") = self.dim()); });
  py::class_<Flatten, UnaryModule>(module, "Flatten", "The dimensions from start_dim to end_dim as one.")
      .def(py::init<std::int64_t, std::int64_t>(), arg("start_dim") = 1, arg("end_dim") = -1)
      .def("_arguments",
           [](const Flatten& self) { return py::dict(arg("start_dim") = self.start(), arg("end_dim") = self.end()); });
}

}  // namespace glade::python
