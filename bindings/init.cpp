// glade.nn.init: initializers.
#include <glade/nn/init.h>

#include <cmath>

#include "modules.h"

namespace glade::python {

namespace {

using namespace nn;
using py::arg;

/// An initializer with some numbers for parameters, which returns the tensor it filled.
template <class... Numbers, class Fill, class... Extra>
void def_initializer(py::module_& module, const char* name, Fill fill, const Extra&... extra) {
  module.def(
      name,
      [fill, name](const py::object& x, Numbers... numbers) {
        if (!is_tensor(x.ptr())) throw py::type_error(std::string(name) + ": expected a tensor");
        if constexpr (std::is_invocable_v<Fill, const Tensor&, Numbers...>) fill(tensor_of(x.ptr()), numbers...);
        else fill(tensor_of(x.ptr()), numbers..., default_generator());
        return x;
      },
      arg("x"), extra...);
}

/// The gain of a nonlinearity, as PyTorch's initializers by He et al. (2015) take it; a is the slope of leaky_relu below 0.
double gain_of(const char* function, double a, const std::string& nonlinearity) {
  if (nonlinearity == "leaky_relu") return std::sqrt(2 / (1 + a * a));
  if (nonlinearity == "relu") return std::sqrt(2.0);
  if (nonlinearity == "linear" || nonlinearity == "sigmoid") return 1;
  if (nonlinearity == "tanh") return 5.0 / 3;
  throw ValueError(std::string(function) + ": nonlinearity is '" + nonlinearity +
                   "', expected 'leaky_relu', 'relu', 'linear', 'sigmoid' or 'tanh'");
}

using Kaiming = const Tensor& (*)(const Tensor&, double, Generator&, init::Fan);

void def_kaiming(py::module_& module, const char* name, Kaiming fill, const char* doc) {
  module.def(
      name,
      [fill, name](const py::object& x, double a, const std::string& mode, const std::string& nonlinearity) {
        if (!is_tensor(x.ptr())) throw py::type_error(std::string(name) + ": expected a tensor");
        if (mode != "fan_in" && mode != "fan_out")
          throw ValueError(std::string(name) + ": mode is '" + mode + "', expected 'fan_in' or 'fan_out'");
        fill(tensor_of(x.ptr()), gain_of(name, a, nonlinearity), default_generator(),
             mode == "fan_in" ? init::Fan::in : init::Fan::out);
        return x;
      },
      arg("x"), arg("a") = 0.0, arg("mode") = "fan_in", arg("nonlinearity") = "leaky_relu", doc);
}

}  // namespace

void bind_init(py::module_& module) {
  def_initializer<double>(module, "constant_", init::constant_, arg("val"),
                          "Fills x with one value, unrecorded, and returns it.");
  def_initializer<>(module, "zeros_", init::zeros_, "Fills x with 0, unrecorded, and returns it.");
  def_initializer<>(module, "ones_", init::ones_, "Fills x with 1, unrecorded, and returns it.");
  def_initializer<double, double>(module, "uniform_", init::uniform_, arg("a") = 0.0, arg("b") = 1.0,
                                  "Fills x with uniform random numbers in [a, b), unrecorded, and returns it.");
  def_initializer<double, double>(module, "normal_", init::normal_, arg("mean") = 0.0, arg("std") = 1.0,
                                  "Fills x with normal random numbers, unrecorded, and returns it.");
  def_initializer<double, double, double, double>(
      module, "trunc_normal_", init::trunc_normal_, arg("mean") = 0.0, arg("std") = 1.0, arg("a") = -2.0, arg("b") = 2.0,
      "Fills x with normal random numbers of which only those in [a, b] count, unrecorded, and returns it. ValueError unless std "
      "is positive and a < b.");
  def_kaiming(
      module, "kaiming_uniform_", init::kaiming_uniform_,
      "Fills a weight [out, in, ...] uniformly within +-gain * sqrt(3 / fan) (He et al. 2015), unrecorded, and returns it. "
      "mode \"fan_in\" counts what an output is summed over, \"fan_out\" what an input goes to. The gain is that of the "
      "nonlinearity: sqrt(2 / (1 + a^2)) for leaky_relu. ShapeError for less than two dimensions, ValueError for other modes "
      "and nonlinearities.");
  def_kaiming(
      module, "kaiming_normal_", init::kaiming_normal_,
      "Fills a weight [out, in, ...] normally with deviation gain / sqrt(fan) (He et al. 2015), unrecorded, and returns it. "
      "mode \"fan_in\" counts what an output is summed over, \"fan_out\" what an input goes to. The gain is that of the "
      "nonlinearity: sqrt(2 / (1 + a^2)) for leaky_relu. ShapeError for less than two dimensions, ValueError for other modes "
      "and nonlinearities.");
  def_initializer<double>(
      module, "xavier_uniform_", init::xavier_uniform_, arg("gain") = 1.0,
      "Fills a weight [out, in, ...] uniformly within +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio "
      "2010), unrecorded, and returns it. ShapeError for less than two dimensions.");
  def_initializer<double>(
      module, "xavier_normal_", init::xavier_normal_, arg("gain") = 1.0,
      "Fills a weight [out, in, ...] normally with deviation gain * sqrt(2 / (fan_in + fan_out)), unrecorded, "
      "and returns it. ShapeError for less than two dimensions.");
}

}  // namespace glade::python
