// The gated linear recurrence, with ejkernel's argument names, order and defaults.
#include <glade/ops/linear_attention/plan.h>

#include "algorithm.h"
#include "python.h"

namespace glade::python {

namespace {

using py::arg;
using OptionalTensor = std::optional<TensorLike>;
using Pair = std::pair<Tensor, Tensor>;

/// The options that are no gates.
RecurrentOptions options_of(const char* operation, std::optional<double> softmax_scale, const OptionalTensor& initial_state,
                            bool reverse, const OptionalTensor& cu_seqlens, const std::string& algorithm) {
  RecurrentOptions options;
  options.softmax_scale = softmax_scale;
  options.initial_state = or_undefined(initial_state);
  options.reverse = reverse;
  options.cu_seqlens = or_undefined(cu_seqlens);
  options.algorithm = to_algorithm(operation, algorithm);
  return options;
}

Pair recurrent_of(const TensorLike& query, const TensorLike& key, const TensorLike& value, const OptionalTensor& g,
                  const OptionalTensor& g_gamma, const OptionalTensor& gk, const OptionalTensor& gv,
                  std::optional<double> softmax_scale, const OptionalTensor& initial_state, bool reverse,
                  const OptionalTensor& cu_seqlens, const std::string& algorithm) {
  RecurrentOptions options = options_of("recurrent", softmax_scale, initial_state, reverse, cu_seqlens, algorithm);
  options.g = or_undefined(g);
  options.g_gamma = or_undefined(g_gamma);
  options.gk = or_undefined(gk);
  options.gv = or_undefined(gv);
  return recurrent(query.tensor, key.tensor, value.tensor, options);
}

Pair recurrent_gla_of(const TensorLike& query, const TensorLike& key, const TensorLike& value, const OptionalTensor& g,
                      const OptionalTensor& g_gamma, std::optional<double> softmax_scale, const OptionalTensor& initial_state,
                      bool reverse, const OptionalTensor& cu_seqlens, const OptionalTensor& gk, const std::string& algorithm) {
  RecurrentOptions options = options_of("recurrent_gla", softmax_scale, initial_state, reverse, cu_seqlens, algorithm);
  options.g = or_undefined(g);
  options.g_gamma = or_undefined(g_gamma);
  options.gk = or_undefined(gk);
  return recurrent_gla(query.tensor, key.tensor, value.tensor, options);
}

Pair lightning_attn_of(const TensorLike& query, const TensorLike& key, const TensorLike& value, std::int64_t layer_idx,
                       std::int64_t num_layers, std::optional<double> softmax_scale, const OptionalTensor& initial_state,
                       bool reverse, const OptionalTensor& cu_seqlens, const std::string& algorithm) {
  return lightning_attn(query.tensor, key.tensor, value.tensor, layer_idx, num_layers,
                        options_of("lightning_attn", softmax_scale, initial_state, reverse, cu_seqlens, algorithm));
}

AttentionPlan plan_of(const TensorLike& query, const TensorLike& key, const TensorLike& value, const OptionalTensor& g,
                      const OptionalTensor& g_gamma, const OptionalTensor& gk, const OptionalTensor& gv,
                      const OptionalTensor& initial_state, bool reverse, const OptionalTensor& cu_seqlens,
                      const std::string& algorithm) {
  RecurrentOptions options = options_of("plan", std::nullopt, initial_state, reverse, cu_seqlens, algorithm);
  options.g = or_undefined(g);
  options.g_gamma = or_undefined(g_gamma);
  options.gk = or_undefined(gk);
  options.gv = or_undefined(gv);
  return plan(query.tensor, key.tensor, value.tensor, options);
}

Tensor recurrent_step_of(const Tensor& state, const TensorLike& query, const TensorLike& key, const TensorLike& value,
                         const OptionalTensor& g, const OptionalTensor& g_gamma, const OptionalTensor& gk,
                         const OptionalTensor& gv, std::optional<double> softmax_scale, const std::optional<Tensor>& out) {
  RecurrentOptions options;
  options.g = or_undefined(g);
  options.g_gamma = or_undefined(g_gamma);
  options.gk = or_undefined(gk);
  options.gv = or_undefined(gv);
  options.softmax_scale = softmax_scale;
  return recurrent_step_(state, query.tensor, key.tensor, value.tensor, options, or_undefined(out));
}

constexpr const char* kShared =
    "\n\nquery is [B, T, H, K], key [B, T, Hkv, K], value [B, T, Hkv, V]; H is a multiple of Hkv, and query head h reads kv head "
    "h / (H / Hkv). "
    "softmax_scale is K^-1/2 by default. initial_state is [N, H, K, V] or [H, K, V], zeros by default. reverse runs every "
    "sequence from its last "
    "token to its first. cu_seqlens [N + 1] (int64 or int32) packs N sequences in a batch of 1, or in inputs without the batch "
    "dimension. algorithm is \"recurrent\", step by step; \"chunk\", many steps at a time, which has gv only on CUDA, "
    "with even numbers of up to 128 channels, and on CUDA no float64; or \"auto\", the one that should be faster.\n\n"
    "Returns the output [B, T, H, V] in the query's dtype and the final state [N, H, K, V] in float32 (float64 for float64), "
    "both differentiable in "
    "all tensors but cu_seqlens. Tensors, NumPy arrays and any arrays with DLPack are taken. ShapeError, DTypeError, DeviceError "
    "or ValueError, "
    "naming the argument, where arguments do not fit together or the algorithm does not take them. recurrent_attention and "
    "gla_attention spend no time on a final state that is not wanted.";

}  // namespace

void bind_linear_attention(py::module_& module) {
  const std::string shared(kShared);
  const std::string recurrent_doc =
      "The gated linear recurrence S_t = exp(g_t + g_gamma + gk_t[:, None] + gv_t[None, :]) * S_{t-1} + k_t v_t^T, o_t = "
      "softmax_scale * S_t^T q_t.\n\n"
      "Gates are log decays, each optional: g [B, T, H] (one a head) or [B, T, H, K], g_gamma [H] or [B, H] (the same at every "
      "step), gk [B, T, H, K], "
      "gv [B, T, H, V]." +
      shared;
  module.def("recurrent", recurrent_of, arg("query"), arg("key"), arg("value"), arg("g") = py::none(),
             arg("g_gamma") = py::none(), arg("gk") = py::none(), arg("gv") = py::none(), arg("softmax_scale") = py::none(),
             arg("initial_state") = py::none(), arg("reverse") = false, arg("cu_seqlens") = py::none(), py::kw_only(),
             arg("algorithm") = "auto", Unlocked(), recurrent_doc.c_str());
  const std::string gla_doc =
      "Gated linear attention (arXiv 2312.06635): recurrent with the gates g [B, T, H] or [B, T, H, K], g_gamma [H] or [B, H], "
      "and "
      "gk [B, T, H, K]." +
      shared;
  module.def("recurrent_gla", recurrent_gla_of, arg("query"), arg("key"), arg("value"), arg("g") = py::none(),
             arg("g_gamma") = py::none(), arg("softmax_scale") = py::none(), arg("initial_state") = py::none(),
             arg("reverse") = false, arg("cu_seqlens") = py::none(), py::kw_only(), arg("gk") = py::none(),
             arg("algorithm") = "auto", Unlocked(), gla_doc.c_str());
  const std::string lightning_doc =
      "Lightning attention (arXiv 2401.04658): recurrent with g_gamma = lightning_g_gamma(H, layer_idx, num_layers). ValueError "
      "for layer_idx outside "
      "[0, num_layers)." +
      shared;
  module.def("lightning_attn", lightning_attn_of, arg("query"), arg("key"), arg("value"), arg("layer_idx"), arg("num_layers"),
             arg("softmax_scale") = py::none(), arg("initial_state") = py::none(), arg("reverse") = false,
             arg("cu_seqlens") = py::none(), py::kw_only(), arg("algorithm") = "auto", Unlocked(), lightning_doc.c_str());
  module.def(
      "recurrent_step_", recurrent_step_of, arg("state"), arg("query"), arg("key"), arg("value"), arg("g") = py::none(),
      arg("g_gamma") = py::none(), arg("gk") = py::none(), arg("gv") = py::none(), arg("softmax_scale") = py::none(),
      py::kw_only(), arg("out") = py::none(), Unlocked(),
      "Generation, a token or a few at a time: recurrent from `state`, a row-major [N, H, K, V] in float32 (float64 for "
      "float64), which is overwritten with the final state; the arguments are recurrent's. Returns the output, which is "
      "`out` where that is given (row-major; nothing is allocated then). Not recorded: AutogradError where recording is on "
      "and an argument requires a gradient.");
  module.def("lightning_g_gamma", lightning_g_gamma, arg("num_heads"), arg("layer_idx"), arg("num_layers"), py::kw_only(),
             arg("device") = kCPU, arg("dtype") = DType::float32,
             "Lightning attention's log decay for every head, [num_heads]: -(8 / num_heads) * (1 - layer_idx / num_layers) * "
             "head. ValueError for "
             "layer_idx outside [0, num_layers), DTypeError for a dtype that is not floating-point.");

  py::module_ plans = public_submodule(module, "_linear_attention", "glade.linear_attention");
  py::class_<AttentionPlan>(plans, "Plan", "The kernels of a call of recurrent, and what was decided for them; str() shows it.")
      .def("__str__", &AttentionPlan::to_string)
      .def("__repr__", [](const AttentionPlan& self) { return "Plan(" + self.to_json() + ")"; })
      .def(
          "asdict", [](const AttentionPlan& self) { return py::module_::import("json").attr("loads")(self.to_json()); },
          "{'problem': {...}, 'forward': {'kernels': ...}, 'backward': {...}}, without 'backward' where nothing is "
          "differentiated. Where zeros fill channels up, 'padded': {'K': ..., 'V': ...} says to how many.");
  plans.def(
      "plan", plan_of, arg("query"), arg("key"), arg("value"), arg("g") = py::none(), arg("g_gamma") = py::none(),
      arg("gk") = py::none(), arg("gv") = py::none(), py::kw_only(), arg("initial_state") = py::none(), arg("reverse") = false,
      arg("cu_seqlens") = py::none(), arg("algorithm") = "auto", Unlocked(),
      "Which kernels recurrent would run for these arguments: its plan. Nothing is computed. The plan has a backward pass where "
      "an argument requires a gradient. Errors are those of recurrent.");
}

}  // namespace glade::python
