// The tape: backward, grad, hooks, the recording mode, derivatives written in Python, gradcheck.
#include <algorithm>

#include <glade/autograd/engine.h>
#include <glade/autograd/function.h>
#include <glade/autograd/grad_mode.h>
#include <glade/autograd/gradcheck.h>
#include <glade/autograd/node.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;

/// One tensor or a sequence of them, as a Python function returns them; None stands for an undefined one.
Tensors tensors_from(py::handle object, const char* what) {
  const auto one = [&](py::handle item) {
    if (!item.is_none() && !is_tensor(item.ptr()))
      throw py::type_error(std::string(what) + ": expected tensors, got " + Py_TYPE(item.ptr())->tp_name);
    return item.is_none() ? Tensor{} : tensor_of(item.ptr());
  };
  if (!PyTuple_Check(object.ptr()) && !PyList_Check(object.ptr())) return {one(object)};
  Tensors result;
  for (const py::handle item : object) result.push_back(one(item));
  return result;
}

py::tuple tuple_of(const Tensors& tensors) {
  py::tuple result(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) result[i] = to_python(tensors[i]);
  return result;
}

using OneOrMore = std::variant<Tensor, Tensors>;
Tensors list_of(const OneOrMore& x) {
  if (const auto* one = std::get_if<Tensor>(&x)) return {*one};
  return std::get<Tensors>(x);
}

Tensors gradients_of(const OneOrMore& outputs, const OneOrMore& inputs, const std::optional<OneOrMore>& gradients,
                     bool retain_graph, bool create_graph, bool allow_unused) {
  return autograd::grad(list_of(outputs), list_of(inputs), gradients ? list_of(*gradients) : Tensors{}, retain_graph,
                        create_graph, allow_unused);
}

std::uint64_t register_hook(const Tensor& x, const py::object& function) {
  return x.register_hook([callback = Callback(function)](const Tensor& gradient) {
    const py::gil_scoped_acquire locked;
    const py::object result = callback.get()(to_python(gradient));
    if (!result.is_none() && !is_tensor(result.ptr()))
      throw py::type_error("hook: it returned a " + py::str(py::type::of(result).attr("__name__")).cast<std::string>() +
                           ", expected a tensor or None");
    return result.is_none() ? Tensor{} : tensor_of(result.ptr());
  });
}

std::uint64_t register_post_accumulate_grad_hook(const Tensor& x, const py::object& function) {
  return x.register_post_accumulate_grad_hook([callback = Callback(function)](const Tensor& leaf) {
    const py::gil_scoped_acquire locked;
    callback.get()(to_python(leaf));
  });
}

/// Puts one node on the tape from `inputs` to `outputs`, whose derivative is the Python function `backward`. It is called
/// with the tuple of the `saved` tensors, guarded against in-place changes, and the tuple of the outputs' gradients.
Tensors record_function(const Tensors& inputs, Tensors outputs, const Tensors& saved, const py::object& backward) {
  std::vector<autograd::SavedTensor> kept;
  for (const Tensor& x : saved) {
    const auto output = std::ranges::find_if(outputs, [&](const Tensor& y) { return y.is_same(x); });
    if (output == outputs.end()) kept.emplace_back(x);
    else kept.push_back(autograd::SavedTensor::output(x, static_cast<std::uint32_t>(output - outputs.begin())));
  }
  for (Tensor& y : outputs)
    if (std::ranges::any_of(inputs, [&](const Tensor& x) { return y.is_same(x); })) y = y.detach();
  struct State {
    Callback callback;
    std::vector<autograd::SavedTensor> kept;
    autograd::GradientCheck check;
  };
  auto state = std::make_shared<State>(State{Callback(backward), std::move(kept), autograd::GradientCheck(inputs)});
  autograd::record("Function", outputs, inputs, [state](const autograd::Node& node, const Tensors& gradients) {
    constexpr const char* kWho = "Function.backward";
    const auto own = state;  // the function may run a backward pass that ends this node
    Tensors values;
    for (const autograd::SavedTensor& x : own->kept) values.push_back(x.get());
    const py::gil_scoped_acquire locked;
    Tensors results = tensors_from(own->callback.get()(tuple_of(values), tuple_of(gradients)), kWho);
    own->check(kWho, node, results);
    return results;
  });
  return outputs;
}

using Check = bool (*)(const std::function<Tensors(const Tensors&)>&, const Tensors&, autograd::GradcheckOptions);

void def_check(py::module_& module, const char* name, Check check, const char* doc) {
  module.def(
      name,
      [check](const py::function& function, const OneOrMore& inputs, double step, double absolute, double relative) {
        const auto call = [callback = Callback(function)](const Tensors& x) {
          const py::gil_scoped_acquire locked;
          if (PyErr_CheckSignals() != 0) throw py::error_already_set();
          return tensors_from(callback.get()(*tuple_of(x)), "gradcheck");
        };
        const py::gil_scoped_release unlocked;
        return check(call, list_of(inputs), {step, absolute, relative});
      },
      arg("function"), arg("inputs"), py::kw_only(), arg("step") = 1e-6, arg("absolute") = 1e-7, arg("relative") = 1e-5, doc);
}

}  // namespace

void bind_autograd(py::module_& module) {
  def_method(
      "backward",
      [](const Tensor& x, const std::optional<Tensor>& gradient, bool retain_graph, bool create_graph) {
        x.backward(or_undefined(gradient), retain_graph, create_graph);
      },
      arg("gradient") = py::none(), arg("retain_graph") = false, arg("create_graph") = false, Unlocked(),
      "Adds the gradient of sum(self * gradient) to the .grad of every leaf that the tensor was computed from. `gradient` is 1 "
      "by default, "
      "for tensors of one element.\n\nWhat was saved for it is freed unless retain_graph; with create_graph the gradients can be "
      "differentiated in turn. AutogradError where nothing requires a gradient, or where an earlier backward freed the tape.");
  def_method("retain_grad", autograd::retain_grad,
             "Keeps the gradient of a result of recorded operations in .grad too; nothing for a leaf, which keeps it anyway. "
             "AutogradError where the tensor requires no gradient.");
  def_method("detach", &Tensor::detach, "The same values and memory, cut off from the tape.");
  def_method(
      "requires_grad_", [](Tensor x, bool value) { return x.set_requires_grad(value); }, arg("value") = true,
      "Sets requires_grad, and returns the tensor. DTypeError for tensors that are not floating-point, AutogradError for results "
      "of recorded "
      "operations.");
  def_method(
      "register_hook", register_hook, arg("hook"),
      "Calls hook(gradient) with the tensor's gradient during backward; a tensor that it returns, of the same shape, dtype and "
      "device, replaces the gradient. Returns a key for remove_hook. A hook that refers to its own tensor or module keeps it in "
      "memory until it is removed. AutogradError where the tensor requires no gradient.");
  def_method(
      "register_post_accumulate_grad_hook", register_post_accumulate_grad_hook, arg("hook"),
      "Calls hook(self) in every backward that adds to .grad, as soon as the last contribution is in, while backward goes on. "
      "What it returns is ignored. Returns a key for remove_hook. AutogradError unless the tensor is a leaf that requires a "
      "gradient.");
  def_method("remove_hook", &Tensor::remove_hook, arg("key"), "Removes the hook with that key, which its registration returned.");

  py::module_ tape = public_submodule(module, "_autograd", "glade.autograd");
  tape.def("grad", gradients_of, arg("outputs"), arg("inputs"), arg("gradients") = py::none(), py::kw_only(),
           arg("retain_graph") = false, arg("create_graph") = false, arg("allow_unused") = false, Unlocked(),
           "The gradients of sum(outputs[i] * gradients[i]) with respect to `inputs`, a list, without touching any .grad. "
           "Outputs and inputs are one "
           "tensor or several. AutogradError for an input that the outputs do not depend on, unless allow_unused (its gradient "
           "is None then).");
  tape.def("is_grad_enabled", &GradMode::enabled, "Whether operations are recorded on this thread.");
  tape.def("set_grad_enabled", &GradMode::set_enabled, arg("value"), "Sets whether operations are recorded on this thread.");
  tape.def("record_function", record_function);

  def_check(tape, "gradcheck", autograd::gradcheck,
            "Compares the gradients that backward gives for `function`, which takes the inputs one by one and returns one tensor "
            "or several, with "
            "central differences in every element of every input that requires a gradient. The inputs must be float64 leaves. "
            "Returns True; "
            "AutogradError, naming input, element and both values, where they differ by more than absolute + relative * "
            "|numeric|.");
  def_check(tape, "gradgradcheck", autograd::gradgradcheck, "Like gradcheck, for the gradients of the gradients.");
}

}  // namespace glade::python
