// Losses, as functions and as modules.
#include <glade/nn/loss.h>

#include "modules.h"

namespace pybind11::detail {

/// "mean", "sum" or "none".
template <>
struct type_caster<glade::Reduction> {
  PYBIND11_TYPE_CASTER(glade::Reduction, const_name("str"));
  bool load(handle source, bool) {
    if (!isinstance<str>(source)) return false;
    const auto given = source.cast<std::string>();
    if (given == "mean") value = glade::Reduction::mean;
    else if (given == "sum") value = glade::Reduction::sum;
    else if (given == "none") value = glade::Reduction::none;
    else throw glade::ValueError("reduction is '" + given + "', expected 'mean', 'sum' or 'none'");
    return true;
  }
  static handle cast(glade::Reduction reduction, return_value_policy, handle) {
    constexpr const char* names[] = {"mean", "sum", "none"};
    return str(names[static_cast<int>(reduction)]).release();
  }
};

}  // namespace pybind11::detail

namespace glade::python {

namespace {

using namespace nn;
using py::arg;

using TwoTensors = Tensor (*)(const Tensor&, const Tensor&, Reduction);

void def_elementwise_loss(py::module_& module, const char* name, TwoTensors loss, const std::string& what) {
  const std::string doc = what + ", its mean, sum, or with reduction=\"none\" neither. ShapeError unless the shapes are equal.";
  module.def(name, loss, arg("a"), arg("b"), arg("reduction") = "mean", Unlocked(), doc.c_str());
}

void bind_loss(py::module_& module) {
  module.def(
      "cross_entropy",
      [](const Tensor& logits, const Tensor& targets, std::int64_t ignore_index, double label_smoothing,
         const Reduction& reduction) { return cross_entropy(logits, targets, {ignore_index, label_smoothing, reduction}); },
      arg("logits"), arg("targets"), py::kw_only(), arg("ignore_index") = -100, arg("label_smoothing") = 0.0,
      arg("reduction") = "mean", Unlocked(),
      "The cross entropy of logits [..., C] against class indices [...] (int64 or int32): a float32 scalar (float64 for "
      "float64).\n\n"
      "Targets equal to ignore_index count for nothing; label_smoothing in [0, 1) is the share of the target spread over all "
      "classes; "
      "reduction is \"mean\", over the targets that count, \"sum\", or \"none\" for a loss for each target. IndexError for "
      "another target outside [0, C).");
  module.def(
      "linear_cross_entropy",
      [](const Tensor& x, const Tensor& weight, const Tensor& targets, std::int64_t ignore_index, double label_smoothing,
         const Reduction& reduction) {
        return linear_cross_entropy(x, weight, targets, {ignore_index, label_smoothing, reduction});
      },
      arg("x"), arg("weight"), arg("targets"), py::kw_only(), arg("ignore_index") = -100, arg("label_smoothing") = 0.0,
      arg("reduction") = "mean", Unlocked(),
      "cross_entropy(linear(x, weight), targets, ...) for x [..., in] and weight [C, in], without ever holding all logits. "
      "Computed "
      "in x's dtype, whatever the weight's. Errors as for those two.");
  module.def(
      "nll_loss",
      [](const Tensor& log_probabilities, const Tensor& targets, std::int64_t ignore_index, const Reduction& reduction) {
        return nll_loss(log_probabilities, targets, ignore_index, reduction);
      },
      arg("log_probabilities"), arg("targets"), py::kw_only(), arg("ignore_index") = -100, arg("reduction") = "mean", Unlocked(),
      "cross_entropy from log-probabilities [..., C], as log_softmax gives them. IndexError for a target outside [0, C) that is "
      "not "
      "ignore_index.");
  def_elementwise_loss(module, "mse_loss", mse_loss, "(a - b)^2");
  def_elementwise_loss(module, "l1_loss", l1_loss, "|a - b|");
  module.def(
      "binary_cross_entropy", binary_cross_entropy, arg("probabilities"), arg("targets"), arg("reduction") = "mean", Unlocked(),
      "-(y log p + (1 - y) log(1 - p)) for probabilities p and targets y in [0, 1], of equal shapes (ShapeError), its mean, "
      "sum, or with reduction=\"none\" neither; logarithms are at least -100. ValueError for probabilities outside of [0, 1], "
      "on the CPU.");
  module.def(
      "binary_cross_entropy_with_logits",
      [](const Tensor& logits, const Tensor& targets, const Reduction& reduction, const std::optional<Tensor>& pos_weight) {
        return binary_cross_entropy_with_logits(logits, targets, reduction, or_undefined(pos_weight));
      },
      arg("logits"), arg("targets"), arg("reduction") = "mean", arg("pos_weight") = py::none(), Unlocked(),
      "binary_cross_entropy(sigmoid(logits), targets), without overflow. pos_weight, which broadcasts to the targets, weighs the "
      "term of targets that are 1. ShapeError where shapes do not fit.");
  module.def(
      "kl_div", kl_div, arg("log_probabilities"), arg("targets"), arg("reduction") = "mean", arg("log_target") = false,
      Unlocked(),
      "t (log t - x) for log-probabilities x and probabilities t, of equal shapes (ShapeError), its mean over all elements, "
      "sum, or with reduction=\"none\" neither. With log_target t is given as its logarithm.");
}

template <class L>
void def_loss(py::module_& module, const char* name, const char* doc) {
  py::class_<L, Loss>(module, name, doc)
      .def(py::init<Reduction>(), py::kw_only(), arg("reduction") = "mean")
      .def("_arguments", [](const L& self) { return py::dict(arg("reduction") = self.reduction()); });
}

}  // namespace

void bind_losses(py::module_& module) { bind_loss(module); }

void bind_loss_modules(py::module_& module) {
  py::class_<Loss, Module>(module, "Loss", "A loss of an input and targets.")
      .def("forward", &Loss::forward, arg("input"), arg("targets"), Unlocked(), "The loss.");
  py::class_<CrossEntropyLoss, Loss>(
      module, "CrossEntropyLoss",
      "The cross entropy of logits [C], [N, C] or [N, C, d1, ...], with the classes in dimension 1 as in PyTorch "
      "(glade.cross_entropy "
      "has them last), against class indices of the other dimensions. The arguments are those of glade.cross_entropy.")
      .def(py::init([](std::int64_t ignore_index, const Reduction& reduction, double label_smoothing) {
             return std::make_unique<CrossEntropyLoss>(CrossEntropyOptions{ignore_index, label_smoothing, reduction});
           }),
           py::kw_only(), arg("ignore_index") = -100, arg("reduction") = "mean", arg("label_smoothing") = 0.0)
      .def("_arguments", [](const CrossEntropyLoss& self) {
        return py::dict(arg("ignore_index") = self.options().ignore_index, arg("reduction") = self.options().reduction,
                        arg("label_smoothing") = self.options().label_smoothing);
      });
  py::class_<NLLLoss, Loss>(module, "NLLLoss",
                            "cross entropy from log-probabilities, with the classes in dimension 1 as in CrossEntropyLoss.")
      .def(py::init([](std::int64_t ignore_index, const Reduction& reduction) {
             return std::make_unique<NLLLoss>(ignore_index, reduction);
           }),
           py::kw_only(), arg("ignore_index") = -100, arg("reduction") = "mean")
      .def("_arguments", [](const NLLLoss& self) {
        return py::dict(arg("ignore_index") = self.ignore_index(), arg("reduction") = self.reduction());
      });
  def_loss<MSELoss>(module, "MSELoss", "glade.mse_loss as a module: (input - targets)^2.");
  def_loss<L1Loss>(module, "L1Loss", "glade.l1_loss as a module: |input - targets|.");
  def_loss<BCELoss>(module, "BCELoss", "glade.binary_cross_entropy as a module.");
  py::class_<BCEWithLogitsLoss, Loss>(module, "BCEWithLogitsLoss",
                                      "glade.binary_cross_entropy_with_logits as a module; pos_weight is a buffer of it.")
      .def(py::init([](const Reduction& reduction, const std::optional<Tensor>& pos_weight) {
             return std::make_unique<BCEWithLogitsLoss>(reduction, or_undefined(pos_weight));
           }),
           py::kw_only(), arg("reduction") = "mean", arg("pos_weight") = py::none())
      .def_readonly("pos_weight", &BCEWithLogitsLoss::pos_weight, "The weight of the term of targets that are 1, or None.")
      .def("_arguments", [](const BCEWithLogitsLoss& self) {
        return py::dict(arg("reduction") = self.reduction(),
                        arg("pos_weight") = self.pos_weight.defined() ? to_python(self.pos_weight) : py::none());
      });
  py::class_<KLDivLoss, Loss>(module, "KLDivLoss",
                              "glade.kl_div as a module; reduction \"batchmean\" is the sum over the size of dimension 0.")
      .def(py::init([](const std::string& reduction, bool log_target) {
             if (reduction == "batchmean") return std::make_unique<KLDivLoss>(Reduction::sum, log_target, true);
             return std::make_unique<KLDivLoss>(py::cast(reduction).cast<Reduction>(), log_target);
           }),
           py::kw_only(), arg("reduction") = "mean", arg("log_target") = false)
      .def("_arguments", [](const KLDivLoss& self) {
        const py::object reduction = self.is_batch_mean() ? py::str("batchmean") : py::cast(self.reduction());
        return py::dict(arg("reduction") = reduction, arg("log_target") = self.log_target());
      });
}

}  // namespace glade::python
