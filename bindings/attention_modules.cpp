// The attention operations with their configurations, and glade.tuning.
#include <glade/ops/linear_attention/attention_module.h>

#include <pybind11/stl/filesystem.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;
using OptionalTensor = std::optional<TensorLike>;

std::string to_json(const py::dict& fields) { return py::str(py::module_::import("json").attr("dumps")(fields)); }
py::dict as_dict(const AttentionConfig& cfg) { return py::module_::import("json").attr("loads")(tuning::to_json(cfg)); }

AttentionConfig config_from(const py::dict& fields) { return tuning::from_json<AttentionConfig>(to_json(fields)); }

std::optional<AttentionConfig> config_from(const py::object& cfg) {
  if (cfg.is_none()) return std::nullopt;
  if (py::isinstance<AttentionConfig>(cfg)) return cfg.cast<AttentionConfig>();
  if (py::isinstance<py::dict>(cfg)) return config_from(cfg.cast<py::dict>());
  throw py::type_error("cfg: expected an AttentionConfig, a dict or None");
}

Platform platform_from(const char* operation, const std::optional<std::string>& name) {
  if (!name || *name == "auto") return Platform::automatic;
  if (*name == "cuda") return Platform::cuda;
  if (*name == "cpu") return Platform::cpu;
  throw ValueError(std::string(operation) + ": platform is '" + *name +
                   "', which glade does not have: expected auto, cuda or cpu");
}

/// The tensors among the arguments of an operation. ChannelGates are gk and gv, or nothing.
template <class... ChannelGates>
RecurrentOptions tensors_of(const OptionalTensor& g, const OptionalTensor& g_gamma, const ChannelGates&... channel_gates,
                            const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens) {
  RecurrentOptions tensors;
  tensors.g = or_undefined(g);
  tensors.g_gamma = or_undefined(g_gamma);
  if constexpr (sizeof...(ChannelGates) == 2) std::tie(tensors.gk, tensors.gv) = std::tuple(or_undefined(channel_gates)...);
  tensors.initial_state = or_undefined(initial_state);
  tensors.cu_seqlens = or_undefined(cu_seqlens);
  return tensors;
}

py::list trials_of(const tuning::TuningResult& result) {
  py::list trials;
  for (std::size_t i = 0; i < result.trials.size(); ++i) {
    const tuning::Trial& trial = result.trials[i];
    py::dict row;
    row["cfg"] = tuning::from_json<AttentionConfig>(trial.cfg);
    row["milliseconds"] = trial.milliseconds;
    row["error"] = trial.error;
    row["refused"] = trial.refused;
    row["best"] = i == result.best;
    trials.append(row);
  }
  return trials;
}

constexpr const char* kCall =
    "Computes the operation; see the function of this name. cfg is an AttentionConfig or a dict of its fields, for both passes; "
    "without one, a configuration is chosen for each pass.";

/// Adds the methods to a class of modules whose gates are g, g_gamma and ChannelGates.
template <class Module, class... ChannelGates, class... GateArguments>
void def_attention(py::module_& module, const char* name, const char* doc, const GateArguments&... gate_arguments) {
  py::class_<Module> cls(module, name, doc);
  cls.def(py::init<>(), "The operation; instances have no state of their own.");
  cls.def(
      "__call__",
      [](const Module& self, const TensorLike& query, const TensorLike& key, const TensorLike& value, const OptionalTensor& g,
         const OptionalTensor& g_gamma, const ChannelGates&... channel_gates, const OptionalTensor& initial_state,
         const OptionalTensor& cu_seqlens, std::optional<double> softmax_scale, bool reverse, bool return_state,
         const std::optional<std::string>& platform, const py::object& cfg) {
        RecurrentOptions arguments = tensors_of<ChannelGates...>(g, g_gamma, channel_gates..., initial_state, cu_seqlens);
        arguments.softmax_scale = softmax_scale;
        arguments.reverse = reverse;
        arguments.return_state = return_state;
        const Platform where = platform_from(self.name(), platform);
        const std::optional<AttentionConfig> given = config_from(cfg);
        const auto results = [&] {
          const py::gil_scoped_release unlocked;
          return self.apply(query.tensor, key.tensor, value.tensor, arguments, where, given);
        }();
        return return_state ? py::object(py::make_tuple(results.first, results.second)) : to_python(results.first);
      },
      arg("query"), arg("key"), arg("value"), arg("g") = py::none(), arg("g_gamma") = py::none(), gate_arguments...,
      arg("initial_state") = py::none(), arg("cu_seqlens") = py::none(), py::pos_only(), py::kw_only(),
      arg("softmax_scale") = py::none(), arg("reverse") = false, arg("return_state") = false, arg("platform") = py::none(),
      arg("cfg") = py::none(), kCall);

  // What follows is asked about the problem that these tensors are a case of.
  const auto def = [&]<class Result, class... Settings>(const char* method, const char* method_doc,
                                                        Result (*ask)(const Module&, const AttentionProblem&, Settings...),
                                                        const auto&... settings_arguments) {
    cls.def(
        method,
        [ask](const Module& self, const TensorLike& query, const TensorLike& key, const TensorLike& value,
              const OptionalTensor& g, const OptionalTensor& g_gamma, const ChannelGates&... channel_gates,
              const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, bool backward, Settings... settings) {
          return ask(self,
                     AttentionProblem::of(query.tensor, key.tensor, value.tensor,
                                          tensors_of<ChannelGates...>(g, g_gamma, channel_gates..., initial_state, cu_seqlens),
                                          backward ? tuning::Pass::backward : tuning::Pass::forward),
                     settings...);
        },
        arg("query"), arg("key"), arg("value"), arg("g") = py::none(), arg("g_gamma") = py::none(), gate_arguments...,
        arg("initial_state") = py::none(), arg("cu_seqlens") = py::none(), py::pos_only(), py::kw_only(), arg("backward") = false,
        settings_arguments..., method_doc);
  };
  def(
      "heuristic_cfg", "A good configuration for such arguments, in no time; with backward, of the backward pass.",
      +[](const Module& self, const AttentionProblem& p) { return self.heuristic_cfg(p); });
  def(
      "candidate_cfgs", "The configurations that tuning would try for such arguments.",
      +[](const Module& self, const AttentionProblem& p) { return self.candidate_cfgs(p); });
  def(
      "choose",
      "The configuration that a call with such arguments would take, and where it comes from: 'process cache', 'persistent "
      "cache', 'tuning' or 'heuristic'.",
      +[](const Module& self, const AttentionProblem& p) {
        const auto choice = [&] {
          const py::gil_scoped_release unlocked;
          return self.choose(p);
        }();
        return std::pair(choice.cfg, std::string(tuning::source_name(choice.source)));
      });
  def(
      "tune",
      "Times the candidates on random inputs of such shapes and keeps the fastest in the caches. A dict a candidate: cfg, "
      "milliseconds, error, refused (why; empty where it was not) and best. Each is run warmup times, then timed repeats times; "
      "with validate_backward gradients are compared with those of the step-by-step form, as outputs always are.",
      +[](const Module& self, const AttentionProblem& p, int warmup, int repeats, bool validate_backward) {
        const auto result = [&] {
          const py::gil_scoped_release unlocked;
          return self.tune(p, {warmup, repeats, validate_backward});
        }();
        return trials_of(result);
      },
      arg("warmup") = tuning::TuningOptions().warmup, arg("repeats") = tuning::TuningOptions().repeats,
      arg("validate_backward") = tuning::TuningOptions().validate_backward);
}

}  // namespace

void bind_attention_modules(py::module_& module) {
  py::class_<AttentionConfig> config(
      module, "AttentionConfig",
      "How one pass of the recurrence is computed: AttentionConfig(algorithm='chunk'). Fields that are not given have their "
      "defaults; a size of 0 is the kernel's own. docs/tuning.md says which values each takes.");
  config.def(py::init([](const py::kwargs& fields) { return config_from(fields); }), "Fields by name. ValueError for others.");
  config.def("__repr__", [](const AttentionConfig& self) {
    std::string text;
    for (const auto& [field, value] : as_dict(self))
      text += (text.empty() ? "" : ", ") + field.cast<std::string>() + '=' + std::string(py::repr(value));
    return "AttentionConfig(" + text + ')';
  });
  config.def("__eq__", [](const AttentionConfig& self, const py::object& other) {
    return py::isinstance<AttentionConfig>(other) && self == other.cast<const AttentionConfig&>();
  });
  config.def("asdict", as_dict, "The fields by name.");
  config.def_property(
      "algorithm", [](const AttentionConfig& self) { return as_dict(self)["algorithm"].template cast<std::string>(); },
      [](AttentionConfig& self, const std::string& algorithm) {
        py::dict fields = as_dict(self);
        fields["algorithm"] = algorithm;
        self = config_from(fields);
      },
      "'auto', 'recurrent' or 'chunk'.");
  config.def_readwrite("checkpoint_interval", &AttentionConfig::checkpoint_interval,
                       "Tokens between the states that the recurrent backward pass keeps.");
  config.def_readwrite("warps", &AttentionConfig::warps, "Compute warps of a block of the recurrent kernels: 2 or 4.");
  config.def_readwrite("sequence_split", &AttentionConfig::sequence_split,
                       "Segments of a sequence that are computed at the same time, at most.");

  def_attention<RecurrentAttention, OptionalTensor, OptionalTensor>(module, "RecurrentAttention",
                                                                    "The operation recurrent_attention, with its configurations.",
                                                                    arg("gk") = py::none(), arg("gv") = py::none());
  def_attention<GLAttention>(module, "GLAttention", "The operation gla_attention, with its configurations.");

  py::module_ tune = public_submodule(module, "_tuning", "glade.tuning");
  tune.def(
      "autotune_policy", [] { return tuning::autotune_policy_name(tuning::autotune_policy()); },
      "The policy in force: 'heuristic', 'autotune' or 'cache_only'. From GLADE_AUTOTUNE_POLICY unless it was set.");
  tune.def(
      "set_autotune_policy",
      [](const std::optional<std::string>& policy) {
        tuning::set_autotune_policy(policy ? std::optional(tuning::parse_autotune_policy(*policy)) : std::nullopt);
      },
      arg("policy"), "Sets the policy of this process; None gives it back to the environment. ValueError for an unknown one.");
  tune.def("cache_folder", tuning::cache_folder,
           "Where choices are kept: $GLADE_CACHE_DIR, or else $XDG_CACHE_HOME/glade, or else ~/.cache/glade.");
  tune.def("clear_process_cache", tuning::clear_process_cache,
           "Forgets the choices of this process, so that the files and the environment are looked at again.");
  tune.def(
      "export_cache", [](const std::filesystem::path& path) { return tuning::export_cache(path.string()); }, arg("path"),
      Unlocked(), "Writes the choices of all operations to one file; returns their number.");
  tune.def(
      "import_cache", [](const std::filesystem::path& path) { return tuning::import_cache(path.string()); }, arg("path"),
      Unlocked(), "Adds the choices of such a file to the caches; returns their number. ValueError where it is none.");
}

}  // namespace glade::python
