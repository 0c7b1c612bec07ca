// glade.optim: optimizers, learning-rate schedules, gradient clipping.
#include <pybind11/functional.h>

#include <glade/nn/optim/adam.h>
#include <glade/nn/optim/clip.h>
#include <glade/nn/optim/loss_scaler.h>
#include <glade/nn/optim/schedule.h>
#include <glade/nn/optim/sgd.h>

#include "python.h"

namespace glade::python {

namespace {

using namespace nn;
using namespace nn::optim;
using py::arg;

/// (name, tensor) pairs as they are, and tensors under their numbers, from `first` on.
NamedTensors named_tensors(const py::handle& parameters, std::size_t first = 0) {
  NamedTensors result;
  if (is_tensor(parameters.ptr())) return {{std::to_string(first), tensor_of(parameters.ptr())}};  // a group of one
  for (const py::handle item : parameters) {
    if (is_tensor(item.ptr())) result.emplace_back(std::to_string(first + result.size()), tensor_of(item.ptr()));
    else if (py::detail::make_caster<NamedTensors::value_type> pair; pair.load(item, true))
      result.push_back(py::detail::cast_op<NamedTensors::value_type>(pair));
    else
      throw py::type_error("optimizer: parameter " + std::to_string(first + result.size()) + " is a " +
                           std::string(py::str(py::type::of(item).attr("__name__"))) +
                           ", expected a tensor or a pair of a name and a tensor");
  }
  return result;
}

bool are_groups(const py::sequence& parameters) { return !parameters.empty() && py::isinstance<py::dict>(parameters[0]); }

std::vector<ParameterGroup> groups_from(const py::sequence& groups, double lr, double weight_decay) {
  std::vector<ParameterGroup> result;
  std::size_t count = 0;
  for (const py::handle item : groups) {
    const auto group = item.cast<py::dict>();
    for (const auto& [key, value] : group) {
      const std::string name = py::str(key);
      if (name != "params" && name != "lr" && name != "weight_decay" && name != "ranks")
        throw ValueError("optimizer: a group has the key '" + name + "', expected params, lr and weight_decay");
    }
    const auto number = [&](const char* key, double otherwise) {
      return group.contains(key) ? group[key].cast<double>() : otherwise;
    };
    const ProcessGroup ranks = group.contains("ranks") ? group["ranks"].cast<ProcessGroup>() : ProcessGroup();
    result.push_back({named_tensors(group["params"], count), number("lr", lr), number("weight_decay", weight_decay), ranks});
    count += result.back().parameters.size();
  }
  return result;
}

template <class Optimizer, class Options>
std::unique_ptr<Optimizer> make_optimizer(const py::iterable& parameters, const Options& options) {
  if (is_tensor(parameters.ptr()))
    throw py::type_error("optimizer: params is a Tensor, expected a list of tensors, of pairs with names, or of groups");
  const py::list list(parameters);
  if (are_groups(list)) return std::make_unique<Optimizer>(groups_from(list, options.lr, options.weight_decay), options);
  return std::make_unique<Optimizer>(named_tensors(list), options);
}

Tensor clip_grad_norm(const py::iterable& parameters, double max_norm) {
  Tensors tensors;
  if (is_tensor(parameters.ptr())) tensors.push_back(tensor_of(parameters.ptr()));
  else
    for (const py::handle item : parameters) tensors.push_back(item.cast<Tensor>());
  const py::gil_scoped_release unlocked;
  return clip_grad_norm_(tensors, max_norm);
}

/// A group also as a dict, as PyTorch's programs read and write it.
const std::vector<std::string> kGroupKeys{"params", "param_names", "lr", "weight_decay"};

py::object group_item(const py::object& self, const std::string& key) {
  if (std::ranges::count(kGroupKeys, key) > 0) return self.attr(key.c_str());
  throw py::key_error(key);
}

void set_group_item(const py::object& self, const std::string& key, const py::object& value) {
  if (key != "lr" && key != "weight_decay") throw py::key_error(key + ": only lr and weight_decay can be set");
  self.attr(key.c_str()) = value;
}

void bind_groups(py::module_& module) {
  py::class_<ParameterGroup>(module, "ParameterGroup",
                             "Parameters that share a learning rate and a weight decay; group[\"lr\"] is group.lr.")
      .def_property_readonly(
          "params",
          [](const ParameterGroup& self) {
            Tensors result;
            for (const auto& [name, x] : self.parameters) result.push_back(x);
            return result;
          },
          "The parameters.")
      .def_property_readonly(
          "param_names",
          [](const ParameterGroup& self) {
            std::vector<std::string> result;
            for (const auto& [name, x] : self.parameters) result.push_back(name);
            return result;
          },
          "The names of the parameters, or their numbers where none were given.")
      .def_readwrite("lr", &ParameterGroup::lr, "The learning rate.")
      .def_readwrite("weight_decay", &ParameterGroup::weight_decay, "The weight decay.")
      .def("__getitem__", group_item, arg("key"))
      .def("__setitem__", set_group_item, arg("key"), arg("value"))
      .def(
          "keys", [](const ParameterGroup&) { return kGroupKeys; }, "The names of what group[...] reads.")
      .def("__iter__", [](const ParameterGroup&) -> py::object { return py::iter(py::cast(kGroupKeys)); })
      .def("__len__", [](const ParameterGroup&) { return kGroupKeys.size(); })
      .def("__contains__",
           [](const ParameterGroup&, const py::object& key) {
             return py::isinstance<py::str>(key) && std::ranges::count(kGroupKeys, key.cast<std::string>()) > 0;
           })
      .def(
          "items",
          [](const py::object& self) {
            py::list items;
            for (const std::string& key : kGroupKeys) items.append(py::make_tuple(key, group_item(self, key)));
            return items;
          },
          "(name, value) pairs of what group[...] reads.")
      .def(
          "get",
          [](const py::object& self, const std::string& key, const py::object& otherwise) {
            return std::ranges::count(kGroupKeys, key) > 0 ? group_item(self, key) : otherwise;
          },
          arg("key"), arg("default") = py::none(), "group[key], or `default` for another key.")
      .def("__repr__", [](const ParameterGroup& self) {
        std::int64_t count = 0;
        for (const auto& [name, x] : self.parameters) count += x.numel();
        return "ParameterGroup(lr=" + py::repr(py::float_(self.lr)).cast<std::string>() +
               ", weight_decay=" + py::repr(py::float_(self.weight_decay)).cast<std::string>() + ", " +
               std::to_string(self.parameters.size()) + " tensors of " + std::to_string(count) + " parameters)";
      });
}

constexpr const char* kParameters =
    "\n\n`params` are a module's named_parameters(), tensors, or groups: dicts with params and, for the group alone, lr and "
    "weight_decay. ValueError "
    "for no parameters, one given twice or computed from others, or a bad lr or weight_decay; DTypeError, DeviceError for "
    "parameters that are not "
    "floating-point or are on several "
    "devices.";

}  // namespace

void bind_optim(py::module_& module) {
  py::module_ optimizers = public_submodule(module, "_optim", "glade.optim");
  bind_groups(optimizers);
  py::class_<LossScaler>(
      optimizers, "LossScaler",
      "A factor for the loss that is as large as the gradients' range allows, for float16:\n\n"
      "    scaler.scale(loss).backward()\n"
      "    optimizer.step(scaler=scaler)\n\n"
      "It halves (backoff) after a step with a gradient that is not finite, which is skipped, and doubles (growth) after "
      "growth_interval steps without. ValueError for numbers out of range.")
      .def(py::init([](Device device, double initial, double growth, double backoff, std::int64_t growth_interval) {
             return LossScaler(device, {initial, growth, backoff, growth_interval});
           }),
           arg("device"), py::kw_only(), arg("initial") = LossScalerOptions{}.initial, arg("growth") = LossScalerOptions{}.growth,
           arg("backoff") = LossScalerOptions{}.backoff, arg("growth_interval") = LossScalerOptions{}.growth_interval)
      .def("scale", &LossScaler::scale, arg("loss"), Unlocked(), "loss times the scale.")
      .def_property_readonly("value", &LossScaler::value, "The scale, a float32 scalar.")
      .def("__repr__",
           [](const LossScaler& self) {
             return "LossScaler(value=" + py::repr(py::float_(value_of<double>(self.value()))).cast<std::string>() + ")";
           })
      .def("state_dict", &LossScaler::state_dict, "The scale and the number of steps since it last changed, by name.")
      .def("load_state_dict", &LossScaler::load_state_dict, arg("state"),
           "Copies a state_dict's values. ValueError, changing nothing, where it does not fit.");
  py::class_<Optimizer>(optimizers, "Optimizer", "What the optimizers have in common.")
      .def(
          "step",
          [](Optimizer& self, double max_norm, LossScaler* scaler) {
            const Tensor norm = self.step({.max_norm = max_norm, .scaler = scaler});
            return norm.defined() ? std::optional(norm) : std::nullopt;
          },
          py::kw_only(), arg("max_norm") = 0.0, arg("scaler") = py::none(), Unlocked(),
          "Changes the parameters by their gradients; those without one are left alone.\n\n"
          "With max_norm the gradients are clipped on the way as by clip_grad_norm_, with a scaler divided by its scale, and the "
          "step is skipped where one is not finite; then returns their norm before clipping, a float64 scalar. ValueError where "
          "a "
          "parameter was moved or converted since the optimizer was made.")
      .def("zero_grad", &Optimizer::zero_grad, arg("set_to_none") = true, "Forgets the gradients, or fills them with zeros.")
      .def_property_readonly(
          "param_groups", [](Optimizer& self) -> std::vector<ParameterGroup>& { return self.groups(); },
          py::return_value_policy::reference_internal, "The groups, whose lr and weight_decay can be set.")
      .def("__repr__",
           [](const py::object& self) {
             std::string text = py::str(py::type::of(self).attr("__name__"));
             text += "(";
             for (const py::handle group : self.attr("param_groups")) text += "\n  " + py::repr(group).cast<std::string>();
             return text + "\n)";
           })
      .def_property(
          "lr", [](Optimizer& self) { return self.groups().front().lr; }, &Optimizer::set_lr,
          "The learning rate of the first group; setting it sets that of all. ValueError for one that is negative or not finite.")
      .def("state_dict", &Optimizer::state_dict,
           "What the optimizer remembers between steps, by name; not the settings of the groups.")
      .def("load_state_dict", &Optimizer::load_state_dict, arg("state"),
           "Copies a state_dict's values. ValueError, changing nothing, where it does not fit.");

  const std::string adamw_doc =
      std::string(
          "Adam with decoupled weight decay (arXiv 1711.05101) of all parameters; decay_matrices makes groups that leave biases "
          "and the weights of norms out.") +
      kParameters;
  py::class_<AdamW, Optimizer>(optimizers, "AdamW", adamw_doc.c_str())
      .def(py::init(
               [](const py::iterable& parameters, double lr, std::pair<double, double> betas, double eps, double weight_decay) {
                 return make_optimizer<AdamW>(parameters, AdamWOptions{lr, betas.first, betas.second, eps, weight_decay});
               }),
           arg("params"), arg("lr") = AdamWOptions{}.lr, py::kw_only(),
           arg("betas") = std::pair(AdamWOptions{}.beta1, AdamWOptions{}.beta2), arg("eps") = AdamWOptions{}.eps,
           arg("weight_decay") = AdamWOptions{}.weight_decay);
  const std::string adam_doc =
      std::string("Adam (arXiv 1412.6980), with weight_decay * parameter added to the gradient; AdamW decays better.") +
      kParameters;
  py::class_<Adam, AdamW>(optimizers, "Adam", adam_doc.c_str())
      .def(py::init(
               [](const py::iterable& parameters, double lr, std::pair<double, double> betas, double eps, double weight_decay) {
                 return make_optimizer<Adam>(parameters, AdamOptions{lr, betas.first, betas.second, eps, weight_decay});
               }),
           arg("params"), arg("lr") = AdamOptions{}.lr, arg("betas") = std::pair(AdamOptions{}.beta1, AdamOptions{}.beta2),
           arg("eps") = AdamOptions{}.eps, arg("weight_decay") = AdamOptions{}.weight_decay);
  const std::string sgd_doc =
      std::string(
          "buffer = momentum * buffer + gradient + weight_decay * parameter; parameter -= lr * buffer. With nesterov, "
          "parameter -= lr * (gradient + momentum * buffer).") +
      kParameters;
  py::class_<SGD, Optimizer>(optimizers, "SGD", sgd_doc.c_str())
      .def(py::init([](const py::iterable& parameters, double lr, double momentum, double weight_decay, bool nesterov) {
             return make_optimizer<SGD>(parameters, SGDOptions{lr, momentum, weight_decay, nesterov});
           }),
           arg("params"), arg("lr") = SGDOptions{}.lr, py::kw_only(), arg("momentum") = SGDOptions{}.momentum,
           arg("weight_decay") = SGDOptions{}.weight_decay, arg("nesterov") = false);

  optimizers.def("constant_lr", constant_lr, "A schedule that is always 1.");
  optimizers.def("warmup_cosine_lr", warmup_cosine_lr, arg("warmup"), arg("total"), arg("final_factor") = 0.1,
                 "A schedule that rises in equal steps to 1 over `warmup` steps, then falls to final_factor along half a cosine "
                 "until step `total`, and "
                 "stays there. ValueError unless 0 <= warmup <= total and final_factor is in [0, 1].");
  optimizers.def(
      "warmup_stable_decay_lr", warmup_stable_decay_lr, arg("warmup"), arg("decay"), arg("total"), arg("final_factor") = 0.0,
      "A schedule that rises in equal steps to 1 over `warmup` steps, stays there, and over the last `decay` of `total` "
      "steps falls in equal steps to final_factor, where it stays (warmup-stable-decay, arXiv 2404.06395). ValueError "
      "unless warmup and decay are at least 0 and together at most total, and final_factor is in [0, 1].");
  optimizers.def("step_lr", step_lr, arg("step_size"), arg("gamma") = 0.1,
                 "A schedule that multiplies the learning rate by gamma every step_size steps. ValueError unless step_size is "
                 "positive.");
  optimizers.def("cosine_lr", cosine_lr, arg("period"), arg("final_factor") = 0.0,
                 "A schedule along half a cosine from 1 to final_factor over `period` steps, back over the next, and so on. "
                 "ValueError unless period is positive and final_factor in [0, 1].");
  optimizers.def("one_cycle_lr", one_cycle_lr, arg("total"), arg("warmup") = 0.3, arg("initial_factor") = 0.04,
                 arg("final_factor") = 4e-6,
                 "A schedule that rises along half a cosine from initial_factor to 1 over the share `warmup` of the `total` "
                 "steps, then falls to final_factor (arXiv 1708.07120). ValueError for numbers out of range.");
  py::class_<LRScheduler>(optimizers, "LRScheduler", "The part of optim.LRScheduler in C++.")
      .def(py::init<Optimizer&, LRSchedule>(), arg("optimizer"), arg("schedule"), py::keep_alive<1, 2>())
      .def("__repr__",
           [](const py::object& self) {
             const std::string name = py::str(py::type::of(self).attr("__name__"));
             const std::string step = py::str(self.attr("state_dict")()["step"].attr("item")());
             return name + "(step=" + step + ", factor=" + py::repr(self.attr("factor")).cast<std::string>() + ")";
           })
      .def("step", &LRScheduler::step, "Goes on to the next step.")
      .def("get_last_lr", &LRScheduler::learning_rates, "The learning rates of the groups.")
      .def_property_readonly("factor", &LRScheduler::factor, "The factor in use.")
      .def("state_dict", &LRScheduler::state_dict, "The number of steps taken, as \"step\".")
      .def("load_state_dict", &LRScheduler::load_state_dict, arg("state"),
           "Goes to the step of a state_dict. ValueError where it does not fit.");
  optimizers.def("clip_grad_norm_", clip_grad_norm, arg("parameters"), arg("max_norm"),
                 "Scales the gradients of the parameters (tensors, or one) together so that their norm is at most max_norm, and "
                 "returns the norm "
                 "before, a float64 scalar on "
                 "their device. ValueError for a max_norm that is not positive.");
}

}  // namespace glade::python
