// glade.nn: Module, which classes in Python derive from, and the layers.
#include <glade/nn/attention.h>
#include <glade/nn/convolution.h>
#include <glade/nn/dropout.h>
#include <glade/nn/embedding.h>
#include <glade/nn/init.h>
#include <glade/nn/linear.h>
#include <glade/nn/mlp.h>
#include <glade/nn/norm.h>

#include "python.h"

namespace glade::python {

namespace {

using namespace nn;
using py::arg;

/// Module's protected members, which a class in Python calls by setting attributes.
struct Registry : Module {
  using Module::register_buffer;
  using Module::register_module;
  using Module::register_parameter;
  using Module::unregister;
};
constexpr auto add_parameter = &Registry::register_parameter;
constexpr auto add_buffer = &Registry::register_buffer;
constexpr auto add_module = &Registry::register_module;
constexpr auto remove = &Registry::unregister;

/// The C++ part of a module, which a class in Python has from super().__init__() on.
Module& module_of(const py::object& self) {
  if (reinterpret_cast<py::detail::instance*>(self.ptr())->get_value_and_holder().value_ptr() == nullptr)
    throw py::attribute_error("a module has no parts before its __init__ calls super().__init__()");
  return self.cast<Module&>();
}

// Children are found by address, so an attribute that holds one keeps it alive as long as the parent refers to it.
void set_attribute(const py::object& self, const py::str& name, const py::object& value) {
  Module& module = module_of(self);
  if (PyObject_GenericSetAttr(self.ptr(), name.ptr(), value.ptr()) != 0) throw py::error_already_set();
  (module.*remove)(name);
  if (py::isinstance<Module>(value)) {
    (module.*add_module)(name, value.cast<Module&>());
  } else if (is_tensor(value.ptr())) {
    const Tensor& x = tensor_of(value.ptr());
    if (x.requires_grad() && x.is_leaf()) (module.*add_parameter)(name, x);
  }
}

void delete_attribute(const py::object& self, const py::str& name) {
  Module& module = module_of(self);
  if (PyObject_GenericSetAttr(self.ptr(), name.ptr(), nullptr) != 0) throw py::error_already_set();
  (module.*remove)(name);
}

void register_buffer(const py::object& self, const py::str& name, const py::object& tensor) {
  if (!is_tensor(tensor.ptr())) throw py::type_error("register_buffer: expected a tensor");
  Module& module = module_of(self);
  if (PyObject_GenericSetAttr(self.ptr(), name.ptr(), tensor.ptr()) != 0) throw py::error_already_set();
  (module.*remove)(name);
  (module.*add_buffer)(name, tensor_of(tensor.ptr()));
}

py::object child(const py::object& self, Module* module) {
  return py::cast(module, py::return_value_policy::reference_internal, self);
}

/// Of the layers written in C++, whose parts are no attributes.
py::object find_child(const py::object& self, const std::string& name) {
  for (const auto& [key, module] : module_of(self).named_children())
    if (key == name) return child(self, module);
  throw py::attribute_error("'" + py::str(py::type::of(self).attr("__name__")).cast<std::string>() + "' has no attribute '" +
                            name + "'");
}

py::list named_children(const py::object& self) {
  py::list result;
  for (const auto& [name, module] : self.cast<const Module&>().named_children())
    result.append(py::make_tuple(name, child(self, module)));
  return result;
}

void collect_modules(const py::object& module, const std::string& prefix, py::list& result) {
  result.append(py::make_tuple(prefix, module));
  for (const auto& [name, below] : module.cast<const Module&>().named_children())
    collect_modules(child(module, below), prefix.empty() ? name : prefix + "." + name, result);
}

py::list named_modules(const py::object& self) {
  py::list result;
  collect_modules(self, "", result);
  return result;
}

/// The module's type, the shapes of its own parameters, and the same of those below, a line each.
std::string describe(const py::object& self, const std::string& indent) {
  const auto& described = self.cast<const Module&>();
  const auto& children = described.named_children();
  std::string text = py::str(py::type::of(self).attr("__name__")), separator = "(";
  for (const auto& [name, x] : described.named_parameters()) {
    if (name.find('.') != std::string::npos) continue;
    text += separator + name + " " + x.shape().str();
    separator = ", ";
  }
  if (separator == "(") text += separator;
  for (const auto& [name, module] : children)
    text += "\n" + indent + "  (" + name + "): " + describe(child(self, module), indent + "  ");
  return text + (children.empty() ? ")" : "\n" + indent + ")");
}

/// A change of the module, as a method that returns it.
template <class... Args>
auto returning_self(void (Module::*change)(Args...)) {
  return [change](const py::object& self, Args... args) {
    (self.cast<Module&>().*change)(args...);
    return self;
  };
}

void bind_module(py::module_& module) {
  py::class_<Module>(module, "Module", py::dynamic_attr(),
                     "The base of all layers and models. A class derives from it, makes its parts in __init__ after "
                     "super().__init__(), and has a "
                     "`forward` of its own; calling the module calls forward.\n\nParts are found by attribute: modules, and "
                     "tensors that require a "
                     "gradient (nn.Parameter), which become parameters. register_buffer adds what is saved but not trained.")
      .def(py::init<>())
      .def("__setattr__", set_attribute)
      .def("__delattr__", delete_attribute)
      .def("__getattr__", find_child)
      .def(
          "__call__",
          [](const py::object& self, const py::args& args, const py::kwargs& kwargs) {
            return self.attr("forward")(*args, **kwargs);
          },
          "forward(...)")
      .def("__repr__", [](const py::object& self) { return describe(self, ""); })
      .def(
          "__reduce__",  // also what copy.deepcopy calls
          [](const py::object& self) -> py::object {
            const std::string name = py::str(py::type::of(self).attr("__name__"));
            throw py::type_error("a " + name + " cannot be pickled or copied: make another one and load this one's state_dict()");
          })
      .def("register_buffer", register_buffer, arg("name"), arg("tensor"),
           "Sets an attribute to a tensor that is saved and moved with the module, but not trained. ValueError for a name with "
           "'.' or '/'.")
      .def("named_children", named_children, "(name, module) for each module right below this one.")
      .def("named_modules", named_modules, "(dotted name, module) for this module (named \"\") and all below.")
      .def("named_parameters", &Module::named_parameters,
           "(dotted name, tensor) for each parameter of this module and all below, a shared one under its first name only.")
      .def("parameters", &Module::parameters, "The parameters of this module and all below.")
      .def("state_dict", &Module::state_dict,
           "Every parameter and buffer by dotted name, a shared one under each of its names. The values share the module's "
           "memory.")
      .def("load_state_dict", &Module::load_state_dict, arg("state"), arg("strict") = true, Unlocked(),
           "Copies a state_dict's values into the parameters and buffers. ValueError that lists missing, unexpected, mis-shaped "
           "and mistyped entries at once; nothing is changed then. Unless `strict`, missing and unexpected ones are no error.")
      .def_property_readonly("training", &Module::training, "Whether the module is in training mode.")
      .def("train", returning_self(&Module::train), arg("mode") = true,
           "Sets training mode for this module and all below, and returns the module.")
      .def("eval", returning_self(&Module::eval), "Sets evaluation mode for this module and all below, and returns the module.")
      .def("to", returning_self<DType>(&Module::to), arg("dtype"),
           "Moves the parameters, buffers and gradients to a device, or converts the floating-point ones to a dtype, and returns "
           "the module. The "
           "tensors stay the same objects. Not between a forward pass and its backward. DTypeError for a dtype that is not "
           "floating-point.")
      .def("to", returning_self<Device>(&Module::to), arg("device"))
      .def("zero_grad", &Module::zero_grad, "Forgets the gradients of all parameters.")
      .def("requires_grad_", returning_self(&Module::set_requires_grad), arg("value") = true,
           "Sets whether gradients are wanted for the parameters, and returns the module.");
}

void bind_simple_layers(py::module_& module) {
  py::class_<UnaryModule, Module>(module, "UnaryModule", "A module of one tensor to one tensor.")
      .def("forward", &UnaryModule::forward, arg("x"), Unlocked(), "The layer's result for x.");
  py::class_<Sequential, UnaryModule>(module, "Sequential", "Modules one after the other, in the layers written in C++.");
  py::class_<Linear, UnaryModule>(
      module, "Linear",
      "x weight^T + bias for x [..., in]: [..., out]. Computes in x's dtype. Starts uniform within +-1 / sqrt(in).")
      .def(py::init<std::int64_t, std::int64_t, bool>(), arg("in_features"), arg("out_features"), arg("bias") = true)
      .def_static(
          "from_weight", [](const Tensor& weight) { return std::make_unique<Linear>(weight); }, arg("weight"),
          "A layer without bias that shares a weight [out, in] of another module.")
      .def_readonly("weight", &Linear::weight, "[out, in]")
      .def_readonly("bias", &Linear::bias, "[out], or None.");
  py::class_<Embedding, UnaryModule>(
      module, "Embedding",
      "weight[indices] for int64 or int32 indices of any shape: [..., dim]. Starts normal with deviation 1. No gradient "
      "flows to row padding_index where it is >= 0.")
      .def(py::init<std::int64_t, std::int64_t, std::int64_t>(), arg("num_embeddings"), arg("dim"), arg("padding_index") = -1)
      .def_readonly("weight", &Embedding::weight, "[num_embeddings, dim]");
  py::class_<RMSNorm, UnaryModule>(module, "RMSNorm",
                                   "x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv 1910.07467).")
      .def(py::init<std::int64_t, double, bool>(), arg("dim"), arg("eps") = 1e-5, arg("elementwise_affine") = true)
      .def("forward_sum", &RMSNorm::forward_sum, arg("x"), arg("residual"), Unlocked(),
           "(forward(x + residual), x + residual) in one pass.")
      .def("forward_gated", &RMSNorm::forward_gated, arg("x"), arg("gate"), Unlocked(),
           "forward(x) * silu(gate) in one pass; gate has x's shape.")
      .def_readonly("weight", &RMSNorm::weight, "[dim], ones at first; None without elementwise_affine.");
  py::class_<LayerNorm, UnaryModule>(module, "LayerNorm",
                                     "(x - mean) / sqrt(var + eps) * weight + bias over the last dimension (arXiv 1607.06450).")
      .def(py::init<std::int64_t, double, bool, bool>(), arg("dim"), arg("eps") = 1e-5, arg("elementwise_affine") = true,
           arg("bias") = true)
      .def_readonly("weight", &LayerNorm::weight, "[dim], ones at first; None without elementwise_affine.")
      .def_readonly("bias", &LayerNorm::bias, "[dim], zeros at first, or None.");
  py::class_<Dropout, UnaryModule>(
      module, "Dropout",
      "Zeroes elements with probability p and scales the others by 1 / (1 - p) while training; x itself in evaluation. "
      "ValueError for p outside [0, 1].")
      .def(py::init<double>(), arg("p") = 0.5);
  py::class_<GatedMLP, UnaryModule>(module, "GatedMLP",
                                    "down_proj(silu(gate_proj(x)) * up_proj(x)) (arXiv 2002.05202), without biases.")
      .def(py::init<std::int64_t, std::int64_t>(), arg("hidden_size"), arg("intermediate_size"))
      .def_static("default_intermediate_size", &GatedMLP::default_intermediate_size, arg("hidden_size"),
                  arg("hidden_ratio") = 4.0,
                  "The intermediate size with the parameters of a plain MLP of hidden_ratio: two thirds of it, rounded up to a "
                  "multiple of 256.");
  py::class_<ShortConvolution, Module>(
      module, "ShortConvolution",
      "Depthwise causal convolution over x [B, T, dim] with a window of kernel_size, then silu unless switched off.")
      .def(py::init<std::int64_t, std::int64_t, bool, bool>(), arg("dim"), arg("kernel_size") = 4, arg("bias") = false,
           arg("silu") = true)
      .def(
          "forward",
          [](const ShortConvolution& self, const Tensor& x, const std::optional<Tensor>& state,
             const std::optional<Tensor>& cu_seqlens) {
            Tensor window = or_undefined(state);
            Tensor y = self.forward(x, &window, or_undefined(cu_seqlens));
            return std::pair(y, window);
          },
          arg("x"), arg("state") = py::none(), arg("cu_seqlens") = py::none(), Unlocked(),
          "(y, state): the window after the last input, [N, dim, kernel_size - 1], from which the next call goes on.")
      .def_readonly("weight", &ShortConvolution::weight, "[dim, kernel_size]")
      .def_readonly("bias", &ShortConvolution::bias, "[dim], or None.");
}

void bind_attention(py::module_& module) {
  py::class_<AttentionState>(module, "AttentionState",
                             "What an attention layer remembers of the tokens so far; its size does not depend on their number. "
                             "Fields are None at first.")
      .def(py::init<>())
      .def_readwrite("recurrent", &AttentionState::recurrent, "[N, heads, key dim, value dim]")
      .def_readwrite("q_conv", &AttentionState::q_conv, "Window of the query's short convolution.")
      .def_readwrite("k_conv", &AttentionState::k_conv, "Window of the key's short convolution.")
      .def_readwrite("v_conv", &AttentionState::v_conv, "Window of the value's short convolution.");
  py::class_<LinearAttention, Module>(module, "LinearAttention",
                                      "A layer [B, T, hidden] -> [B, T, hidden] in which a token sees those before it.")
      .def(
          "forward",
          [](const LinearAttention& self, const Tensor& x, AttentionState* state, const std::optional<Tensor>& cu_seqlens) {
            return self.forward(x, state, or_undefined(cu_seqlens));
          },
          arg("x"), arg("state") = py::none(), arg("cu_seqlens") = py::none(), Unlocked(),
          "The layer's result. `state`, where given, is what came before x, and becomes what came up to its end. With cu_seqlens "
          "[N + 1] B is 1, and "
          "x holds N sequences in a row.");

  using GLA = GatedLinearAttentionOptions;
  py::class_<GatedLinearAttention, LinearAttention>(module, "GatedLinearAttention",
                                                    "The layer of the GLA paper (arXiv 2312.06635): heads of linear attention "
                                                    "whose state decays by a learned factor for every key channel, "
                                                    "normalised and gated at the output.\n\nnum_kv_heads (all by default) heads "
                                                    "of key, value and gate are each shared by a group; expand_k and expand_v "
                                                    "are the key and value dimensions of all heads over hidden_size; feature_map "
                                                    "of query and key is relu, sqrelu, silu, sigmoid, logsigmoid, "
                                                    "gelu or None; clamp_min is a lower limit of the log decay. ValueError where "
                                                    "sizes do not divide or the feature map is unknown.")
      .def(py::init([](std::int64_t hidden_size, std::int64_t num_heads, std::optional<std::int64_t> num_kv_heads,
                       double expand_k, double expand_v, std::optional<std::string> feature_map, bool use_short_conv,
                       std::int64_t conv_size, bool conv_bias, bool use_output_gate, bool elementwise_affine, double norm_eps,
                       double gate_logit_normalizer, std::int64_t gate_low_rank_dim, std::optional<double> clamp_min) {
             return std::make_unique<GatedLinearAttention>(
                 hidden_size,
                 GLA{num_heads, num_kv_heads, expand_k, expand_v, std::move(feature_map), use_short_conv, conv_size, conv_bias,
                     use_output_gate, elementwise_affine, norm_eps, gate_logit_normalizer, gate_low_rank_dim, clamp_min});
           }),
           arg("hidden_size"), py::kw_only(), arg("num_heads") = GLA{}.num_heads, arg("num_kv_heads") = py::none(),
           arg("expand_k") = GLA{}.expand_k, arg("expand_v") = GLA{}.expand_v, arg("feature_map") = py::none(),
           arg("use_short_conv") = GLA{}.use_short_conv, arg("conv_size") = GLA{}.conv_size, arg("conv_bias") = GLA{}.conv_bias,
           arg("use_output_gate") = GLA{}.use_output_gate, arg("elementwise_affine") = GLA{}.elementwise_affine,
           arg("norm_eps") = GLA{}.norm_eps, arg("gate_logit_normalizer") = GLA{}.gate_logit_normalizer,
           arg("gate_low_rank_dim") = GLA{}.gate_low_rank_dim, arg("clamp_min") = py::none());

  using Lightning = LightningAttentionOptions;
  py::class_<LightningAttention, LinearAttention>(
      module, "LightningAttention",
      "Lightning attention (arXiv 2401.04658): queries and keys through silu, a fixed decay a head that weakens with the layer's "
      "depth, normalised and "
      "gated at the output. ValueError where sizes do not divide or layer_idx is outside [0, num_layers).")
      .def(py::init([](std::int64_t hidden_size, std::int64_t layer_idx, std::int64_t num_layers, std::int64_t num_heads,
                       double expand_k, double expand_v, bool use_output_gate, double norm_eps) {
             return std::make_unique<LightningAttention>(hidden_size, layer_idx, num_layers,
                                                         Lightning{num_heads, expand_k, expand_v, use_output_gate, norm_eps});
           }),
           arg("hidden_size"), arg("layer_idx"), arg("num_layers"), py::kw_only(), arg("num_heads") = Lightning{}.num_heads,
           arg("expand_k") = Lightning{}.expand_k, arg("expand_v") = Lightning{}.expand_v,
           arg("use_output_gate") = Lightning{}.use_output_gate, arg("norm_eps") = Lightning{}.norm_eps);
}

/// An initialiser with some numbers for parameters, which returns the tensor it filled.
template <class... Numbers, class Fill, class... Extra>
void def_initializer(py::module_& module, const char* name, Fill fill, const Extra&... extra) {
  module.def(
      name,
      [fill](const py::object& x, Numbers... numbers) {
        if (!is_tensor(x.ptr())) throw py::type_error("expected a tensor");
        if constexpr (std::is_invocable_v<Fill, const Tensor&, Numbers...>) fill(tensor_of(x.ptr()), numbers...);
        else fill(tensor_of(x.ptr()), numbers..., default_generator());
        return x;
      },
      arg("x"), extra...);
}

void bind_init(py::module_& module) {
  def_initializer<double>(module, "constant_", init::constant_, arg("value"),
                          "Fills x with one value, unrecorded, and returns it.");
  def_initializer<double, double>(module, "uniform_", init::uniform_, arg("low"), arg("high"),
                                  "Fills x with uniform random numbers, unrecorded, and returns it.");
  def_initializer<double, double>(module, "normal_", init::normal_, arg("mean") = 0.0, arg("deviation") = 1.0,
                                  "Fills x with normal random numbers, unrecorded, and returns it.");
  def_initializer<double>(
      module, "kaiming_uniform_", init::kaiming_uniform_, arg("gain") = 1.0,
      "Fills a weight [out, in, ...] uniformly within +-gain * sqrt(3 / fan_in) (He et al. 2015), unrecorded, and "
      "returns it. gain is 1 for a "
      "linear layer, sqrt(2) in front of relu. ShapeError for less than two dimensions.");
  def_initializer<double>(
      module, "xavier_uniform_", init::xavier_uniform_, arg("gain") = 1.0,
      "Fills a weight [out, in, ...] uniformly within +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio "
      "2010), unrecorded, and returns "
      "it. ShapeError for less than two dimensions.");
  def_initializer<double>(
      module, "xavier_normal_", init::xavier_normal_, arg("gain") = 1.0,
      "Fills a weight [out, in, ...] normally with deviation gain * sqrt(2 / (fan_in + fan_out)), unrecorded, and "
      "returns it. ShapeError for "
      "less than two dimensions.");
}

}  // namespace

void bind_modules(py::module_& module) {
  py::module_ layers = public_submodule(module, "_nn", "glade.nn");
  bind_module(layers);
  bind_simple_layers(layers);
  bind_attention(layers);
  py::module_ initializers = public_submodule(layers, "init", "glade.nn.init");
  bind_init(initializers);
}

}  // namespace glade::python
