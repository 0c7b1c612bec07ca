// glade.nn: the layers.
#include <glade/nn/attention.h>
#include <glade/nn/convolution.h>
#include <glade/nn/dropout.h>
#include <glade/nn/embedding.h>
#include <glade/nn/linear.h>
#include <glade/nn/mlp.h>
#include <glade/nn/norm.h>

#include "modules.h"

namespace glade::python {

namespace {

using namespace nn;
using py::arg;

/// The fields of an options struct that differ from its defaults.
py::dict differing(const py::dict& given, const py::dict& defaults) {
  py::dict result;
  for (const auto& [name, value] : given)
    if (!value.equal(defaults[name])) result[name] = value;
  return result;
}

py::dict fields(const GatedLinearAttentionOptions& x) {
  return py::dict(arg("num_heads") = x.num_heads, arg("num_kv_heads") = x.num_kv_heads, arg("expand_k") = x.expand_k,
                  arg("expand_v") = x.expand_v, arg("feature_map") = x.feature_map, arg("use_short_conv") = x.use_short_conv,
                  arg("conv_size") = x.conv_size, arg("conv_bias") = x.conv_bias, arg("use_output_gate") = x.use_output_gate,
                  arg("elementwise_affine") = x.elementwise_affine, arg("norm_eps") = x.norm_eps,
                  arg("gate_logit_normalizer") = x.gate_logit_normalizer, arg("gate_low_rank_dim") = x.gate_low_rank_dim,
                  arg("clamp_min") = x.clamp_min);
}

py::dict fields(const LightningAttentionOptions& x) {
  return py::dict(arg("num_heads") = x.num_heads, arg("expand_k") = x.expand_k, arg("expand_v") = x.expand_v,
                  arg("use_output_gate") = x.use_output_gate, arg("norm_eps") = x.norm_eps);
}

/// A size, or a sequence of one: norms are over the last dimension.
std::int64_t one_size(const char* layer, const Shape& shape) {
  if (shape.ndim() != 1)
    throw ValueError(std::string(layer) + ": normalized_shape is " + shape.str() +
                     ", expected one size: norms are over the last dimension");
  return shape[0];
}

void bind_simple_layers(py::module_& module) {
  py::class_<UnaryModule, Module>(module, "UnaryModule", "A module of one tensor to one tensor.")
      .def("forward", &UnaryModule::forward, arg("x"), Unlocked(), "The layer's result for x.");
  py::class_<Sequential, UnaryModule>(module, "Sequential", "Modules one after the other, in the layers written in C++.");
  py::class_<Linear, UnaryModule> linear(
      module, "Linear",
      "x weight^T + bias for x [..., in]: [..., out]. Computes in x's dtype. Starts uniform within +-1 / sqrt(in).");
  linear.def(py::init<std::int64_t, std::int64_t, bool>(), arg("in_features"), arg("out_features"), arg("bias") = true)
      .def_static(
          "from_weight", [](const Tensor& weight) { return std::make_unique<Linear>(weight); }, arg("weight"),
          "A layer without bias that shares a weight [out, in] of another module.")
      .def("_arguments", [](const Linear& self) {
        return py::dict(arg("in_features") = self.weight.size(1), arg("out_features") = self.weight.size(0),
                        arg("bias") = self.bias.defined());
      });
  def_parameter(linear, "weight", &Linear::weight, "[out, in]");
  def_parameter(linear, "bias", &Linear::bias, "[out], or None.");

  py::class_<Embedding, UnaryModule> embedding(
      module, "Embedding",
      "weight[indices] for int64 or int32 indices of any shape: [..., embedding_dim]. Starts normal with deviation 1. Row "
      "padding_idx, where given, starts as zeros and no gradient flows to it. IndexError for a padding_idx that is no row.");
  embedding
      .def(py::init([](std::int64_t num_embeddings, std::int64_t embedding_dim, std::optional<std::int64_t> padding_idx) {
             const std::int64_t row = padding_idx.value_or(-1), counted = row < 0 && padding_idx ? row + num_embeddings : row;
             if (padding_idx && counted < 0)
               throw IndexError("Embedding: padding_idx is " + std::to_string(row) + ", expected a row of " +
                                std::to_string(num_embeddings));
             return std::make_unique<Embedding>(num_embeddings, embedding_dim, counted);
           }),
           arg("num_embeddings"), arg("embedding_dim"), arg("padding_idx") = py::none())
      .def("_arguments", [](const Embedding& self) {
        const std::optional<std::int64_t> row = self.padding_idx() < 0 ? std::nullopt : std::optional(self.padding_idx());
        return py::dict(arg("num_embeddings") = self.weight.size(0), arg("embedding_dim") = self.weight.size(1),
                        arg("padding_idx") = row);
      });
  def_parameter(embedding, "weight", &Embedding::weight, "[num_embeddings, embedding_dim]");

  py::class_<RMSNorm, UnaryModule> rms_norm(module, "RMSNorm",
                                            "x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv 1910.07467), of "
                                            "size normalized_shape.");
  rms_norm
      .def(py::init([](const Shape& shape, double eps, bool affine) {
             return std::make_unique<RMSNorm>(one_size("RMSNorm", shape), eps, affine);
           }),
           arg("normalized_shape"), arg("eps") = 1e-5, arg("elementwise_affine") = true)
      .def("_arguments",
           [](const RMSNorm& self) {
             return py::dict(arg("normalized_shape") = self.dim(), arg("eps") = self.eps(),
                             arg("elementwise_affine") = self.weight.defined());
           })
      .def("forward_sum", &RMSNorm::forward_sum, arg("x"), arg("residual"), Unlocked(),
           "(forward(x + residual), x + residual) in one pass.")
      .def("forward_gated", &RMSNorm::forward_gated, arg("x"), arg("gate"), Unlocked(),
           "forward(x) * silu(gate) in one pass; gate has x's shape.");
  def_parameter(rms_norm, "weight", &RMSNorm::weight, "[normalized_shape], ones at first; None without elementwise_affine.");

  py::class_<LayerNorm, UnaryModule> layer_norm(
      module, "LayerNorm",
      "(x - mean) / sqrt(var + eps) * weight + bias over the last dimension (arXiv 1607.06450), of size normalized_shape.");
  layer_norm
      .def(py::init([](const Shape& shape, double eps, bool affine, bool bias) {
             return std::make_unique<LayerNorm>(one_size("LayerNorm", shape), eps, affine, bias);
           }),
           arg("normalized_shape"), arg("eps") = 1e-5, arg("elementwise_affine") = true, arg("bias") = true)
      .def("_arguments", [](const LayerNorm& self) {
        return py::dict(arg("normalized_shape") = self.dim(), arg("eps") = self.eps(),
                        arg("elementwise_affine") = self.weight.defined(), arg("bias") = self.bias.defined());
      });
  def_parameter(layer_norm, "weight", &LayerNorm::weight, "[normalized_shape], ones at first; None without elementwise_affine.");
  def_parameter(layer_norm, "bias", &LayerNorm::bias, "[normalized_shape], zeros at first, or None.");

  py::class_<Dropout, UnaryModule>(
      module, "Dropout",
      "Zeroes elements with probability p and scales the others by 1 / (1 - p) while training; x itself in evaluation. "
      "ValueError for p outside [0, 1].")
      .def(py::init<double>(), arg("p") = 0.5)
      .def("_arguments", [](const Dropout& self) { return py::dict(arg("p") = self.p()); });
  py::class_<GatedMLP, UnaryModule>(module, "GatedMLP",
                                    "down_proj(silu(gate_proj(x)) * up_proj(x)) (arXiv 2002.05202), without biases.")
      .def(py::init<std::int64_t, std::int64_t>(), arg("hidden_size"), arg("intermediate_size"))
      .def("_arguments",
           [](const GatedMLP& self) {
             return py::dict(arg("hidden_size") = self.gate_proj.weight.size(1),
                             arg("intermediate_size") = self.gate_proj.weight.size(0));
           })
      .def_static("default_intermediate_size", &GatedMLP::default_intermediate_size, arg("hidden_size"),
                  arg("hidden_ratio") = 4.0,
                  "The intermediate size with the parameters of a plain MLP of hidden_ratio: two thirds of it, rounded up to a "
                  "multiple of 256.");
  py::class_<ShortConvolution, Module> convolution(
      module, "ShortConvolution",
      "Depthwise causal convolution over x [B, T, dim] with a window of kernel_size, then silu unless switched off.");
  convolution
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
      .def("_arguments", [](const ShortConvolution& self) {
        return py::dict(arg("dim") = self.weight.size(0), arg("kernel_size") = self.weight.size(1),
                        arg("bias") = self.bias.defined(), arg("silu") = self.silu());
      });
  def_parameter(convolution, "weight", &ShortConvolution::weight, "[dim, kernel_size]");
  def_parameter(convolution, "bias", &ShortConvolution::bias, "[dim], or None.");
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
                                                    "normalized and gated at the output.\n\nnum_kv_heads (all by default) heads "
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
           arg("gate_low_rank_dim") = GLA{}.gate_low_rank_dim, arg("clamp_min") = py::none())
      .def("_arguments", [](const GatedLinearAttention& self) {
        py::dict arguments(arg("hidden_size") = self.q_proj.weight.size(1));
        arguments.attr("update")(differing(fields(self.options()), fields(GLA{})));
        return arguments;
      });

  using Lightning = LightningAttentionOptions;
  py::class_<LightningAttention, LinearAttention>(
      module, "LightningAttention",
      "Lightning attention (arXiv 2401.04658): queries and keys through silu, a fixed decay a head that weakens with the layer's "
      "depth, normalized and "
      "gated at the output. ValueError where sizes do not divide or layer_idx is outside [0, num_layers).")
      .def(py::init([](std::int64_t hidden_size, std::int64_t layer_idx, std::int64_t num_layers, std::int64_t num_heads,
                       double expand_k, double expand_v, bool use_output_gate, double norm_eps) {
             return std::make_unique<LightningAttention>(hidden_size, layer_idx, num_layers,
                                                         Lightning{num_heads, expand_k, expand_v, use_output_gate, norm_eps});
           }),
           arg("hidden_size"), arg("layer_idx"), arg("num_layers"), py::kw_only(), arg("num_heads") = Lightning{}.num_heads,
           arg("expand_k") = Lightning{}.expand_k, arg("expand_v") = Lightning{}.expand_v,
           arg("use_output_gate") = Lightning{}.use_output_gate, arg("norm_eps") = Lightning{}.norm_eps)
      .def("_arguments", [](const LightningAttention& self) {
        py::dict arguments(arg("hidden_size") = self.q_proj.weight.size(1), arg("layer_idx") = self.layer_idx(),
                           arg("num_layers") = self.num_layers());
        arguments.attr("update")(differing(fields(self.options()), fields(Lightning{})));
        return arguments;
      });
}

}  // namespace

void bind_modules(py::module_& module) {
  py::module_ layers = public_submodule(module, "_nn", "glade.nn");
  bind_module(layers);
  bind_simple_layers(layers);
  bind_activation_layers(layers);
  bind_loss_modules(layers);
  bind_losses(module);
  bind_softmax_attention(module);
  bind_attention(layers);
  py::module_ initializers = public_submodule(layers, "init", "glade.nn.init");
  bind_init(initializers);
}

}  // namespace glade::python
