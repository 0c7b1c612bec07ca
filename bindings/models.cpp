// glade.nn.models: the language models.
#include <glade/nn/checkpoint.h>
#include <glade/nn/models/causal_lm.h>

#include <pybind11/stl/filesystem.h>

#include <cmath>
#include <variant>

#include "algorithm.h"
#include "python.h"

PYBIND11_MAKE_OPAQUE(glade::nn::models::AttentionStates)

namespace glade::python {

namespace {

using namespace nn;
using namespace nn::models;
using py::arg;

/// A config's fields, given as arguments, as JSON.
std::string to_json(const char* model_type, const py::kwargs& fields) {
  py::dict plain;
  plain["model_type"] = model_type;
  for (const auto& [name, value] : fields) {
    const bool is_dtype = name.cast<std::string>() == "dtype" && !py::isinstance<py::str>(value);
    if (py::isinstance<py::float_>(value) && !std::isfinite(value.cast<double>()))
      throw ValueError("model config: " + name.cast<std::string>() + " is " + std::string(py::str(value)) +
                       ", expected a finite number");  // JSON has no other
    plain[name] = is_dtype ? py::object(value.attr("name")) : py::reinterpret_borrow<py::object>(value);
  }
  return py::str(py::module_::import("json").attr("dumps")(plain));
}

using Tokens = std::vector<std::int64_t>;

py::object generate(const CausalLM& self, const std::variant<Tensor, std::vector<Tokens>>& prompt, std::int64_t max_new_tokens,
                    double temperature, std::int64_t top_k, double top_p, double repetition_penalty, const Tokens& stop_tokens,
                    std::uint64_t seed, const std::optional<py::function>& on_tokens, std::optional<py::list> conversations) {
  const Callback callback(on_tokens ? py::object(*on_tokens) : py::none());
  const auto show = [&callback](std::span<const std::int64_t> tokens) {
    const py::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!callback.get().is_none()) callback.get()(Tokens(tokens.begin(), tokens.end()));
  };
  const GenerateOptions options{.max_new_tokens = max_new_tokens,
                                .temperature = temperature,
                                .top_k = top_k,
                                .top_p = top_p,
                                .repetition_penalty = repetition_penalty,
                                .stop_tokens = stop_tokens,
                                .seed = seed,
                                .on_tokens = show};
  if (const auto* tensor = std::get_if<Tensor>(&prompt)) {
    if (conversations) throw py::type_error("generate: conversations go with prompts in lists, not with a tensor");
    const auto run = [&] {
      const py::gil_scoped_release unlocked;
      return self.generate(*tensor, options);
    };
    return py::cast(run());
  }
  std::vector<Conversation> states;
  if (conversations)
    for (const py::handle conversation : *conversations) states.push_back(conversation.cast<Conversation>());
  const auto run = [&] {
    const py::gil_scoped_release unlocked;
    return self.generate(std::get<1>(prompt), options, conversations ? &states : nullptr);
  };
  const std::vector<Tokens> tokens = run();
  if (conversations) {
    while (conversations->size() < states.size()) conversations->append(Conversation());
    for (std::size_t i = 0; i < states.size(); ++i) (*conversations)[i].cast<Conversation&>() = states[i];
  }
  return py::cast(tokens);
}

template <class Model, class Config>
auto def_model(py::module_& module, const char* name, const char* model_type, const char* doc) {
  return py::class_<Model, CausalLM>(module, name, doc).def(py::init([model_type](const py::kwargs& fields) {
    const Config config = Config::from_json(to_json(model_type, fields));
    if constexpr (std::is_same_v<Config, GLAConfig>)
      for (const std::string& field : config.unknown_fields())
        throw ValueError("model config: unknown field '" + field + "' for model_type gla");
    return std::make_unique<Model>(config);
  }));
}

}  // namespace

void bind_models(py::module_& module) {
  py::module_ models = public_submodule(module, "_models", "glade.nn.models");
  py::class_<AttentionStates>(models, "AttentionStates",
                              "What a model remembers of the tokens so far: a state a layer, none at first.")
      .def(py::init<>())
      .def("__len__", [](const AttentionStates& states) { return states.size(); })
      .def(
          "__getitem__",
          [](AttentionStates& states, std::size_t i) -> AttentionState& {
            if (i >= states.size()) throw py::index_error();
            return states[i];
          },
          py::return_value_policy::reference_internal);

  py::class_<Block, Module>(models, "Block", "x + attn(attn_norm(x)), then x + mlp(mlp_norm(x)).");
  py::class_<ModuleList<Block>, Module>(models, "Blocks", "The layers of a model.")
      .def("__len__", &ModuleList<Block>::size)
      .def(
          "__getitem__",
          [](ModuleList<Block>& blocks, std::size_t i) -> Block& {
            if (i >= blocks.size()) throw py::index_error();
            return blocks[i];
          },
          py::return_value_policy::reference_internal);
  py::class_<Decoder, Module>(models, "Decoder", "Everything of a model below its head.")
      .def_readwrite("recompute", &Decoder::recompute,
                     "Whether training keeps only the inputs of each layer and computes the rest again in backward.")
      .def(
          "forward",
          [](const Decoder& self, const Tensor& ids, AttentionStates* states, const std::optional<Tensor>& cu_seqlens) {
            return self.forward(ids, states, or_undefined(cu_seqlens));
          },
          arg("ids"), arg("states") = py::none(), arg("cu_seqlens") = py::none(), Unlocked(),
          "What the head makes logits of: [B, T, hidden_size] for ids [B, T]. The arguments are those of CausalLM.forward.");

  py::class_<CausalLM, Module>(models, "CausalLM",
                               "A language model: an embedding, pre-norm blocks of attention and MLP, a norm and a head.")
      .def(
          "forward",
          [](const CausalLM& self, const Tensor& ids, AttentionStates* states, const std::optional<Tensor>& cu_seqlens) {
            return self.forward(ids, states, or_undefined(cu_seqlens));
          },
          arg("ids"), arg("states") = py::none(), arg("cu_seqlens") = py::none(), Unlocked(),
          "Logits [B, T, vocab_size] of ids [B, T] (int64 or int32). `states`, where given, is what came before ids, and becomes "
          "what came up to their "
          "end. With cu_seqlens [N + 1] B is 1, and ids holds N sequences in a row.")
      .def(
          "loss",
          [](const CausalLM& self, const Tensor& ids, const Tensor& targets, const std::optional<Tensor>& cu_seqlens) {
            return self.loss(ids, targets, or_undefined(cu_seqlens));
          },
          arg("ids"), arg("targets"), arg("cu_seqlens") = py::none(), Unlocked(),
          "The mean cross entropy of the logits against targets [B, T], the token after each; -100 counts for nothing.")
      .def(
          "generate", generate, arg("prompt"), arg("max_new_tokens") = 100, py::kw_only(), arg("temperature") = 1.0,
          arg("top_k") = 0, arg("top_p") = 1.0, arg("repetition_penalty") = 1.0, arg("stop_tokens") = Tokens{}, arg("seed") = 0,
          arg("on_tokens") = py::none(), arg("conversations") = py::none(),
          "prompt [B, T >= 1] (int64) continued: [B, T + max_new_tokens], where the places after a stop token repeat it. Or, for "
          "a list of prompts, lists of tokens that may differ in length, a list of each prompt continued up to a stop token.\n\n"
          "temperature 0 takes the likeliest token; top_k > 0 draws among so many likeliest tokens, top_p < 1 among the "
          "likeliest that together reach that probability; repetition_penalty > 1 makes tokens that occurred less likely "
          "(arXiv 1909.05858). on_tokens is called with a list of each row's token as soon as it is drawn, -1 for those that "
          "have ended. conversations, a list of a Conversation for each prompt, or an empty one that is then filled, is what "
          "came before the prompts and then what came up to the end of the result. Ctrl-C ends it between tokens. ValueError "
          "for options out of their domain, IndexError for tokens outside the vocabulary.")
      .def(
          "set_algorithm",
          [](CausalLM& self, const std::string& name) { self.set_algorithm(to_algorithm("set_algorithm", name)); },
          arg("algorithm"),
          "How every layer computes its recurrence in training and in the reading of prompts: \"recurrent\", step by step; "
          "\"chunk\", 64 steps at a time, a ValueError in forward where that is not supported; or \"auto\", as at first. A "
          "single "
          "token that comes with states is always one recurrent step.")
      .def("set_sequence_group", &CausalLM::set_sequence_group, arg("group"),
           "Shares out the tokens of every sequence over the ranks of a group: ids and targets of forward() and loss() are then "
           "this rank's, and cu_seqlens is that of distributed.share_sequences(). Calls with states, as in generate(), are of "
           "this process alone.")
      .def("_arguments",
           [](const CausalLM& self) {
             py::dict config = py::module_::import("json").attr("loads")(self.config_json());
             config.attr("pop")("model_type");
             return config;
           })
      .def(
          "extra_repr",
          [](const CausalLM& self) {
            std::int64_t count = 0;
            for (const Tensor& x : self.parameters()) count += x.numel();
            return "parameters=" + std::to_string(count) +
                   ", dtype=" + py::module_::import("json").attr("loads")(self.config_json())["dtype"].cast<std::string>();
          },
          "The number of parameters and the dtype of activations.")
      .def_property_readonly("config_json", &CausalLM::config_json, "The configuration as JSON, as checkpoints keep it.")
      .def_property_readonly(
          "config", [](const CausalLM& self) { return py::module_::import("json").attr("loads")(self.config_json()); },
          "The configuration, a dict; from_config makes the same model of it.");

  py::class_<Conversation>(models, "Conversation",
                           "Where a sequence stands: all that a model needs to go on with it, of a size that does not depend on "
                           "its length.")
      .def(py::init<>())
      .def("__len__", [](const Conversation& self) { return self.length; })
      .def("__repr__", [](const Conversation& self) { return "Conversation(" + std::to_string(self.length) + " tokens)"; })
      .def(
          "save",
          [](const Conversation& self, const std::filesystem::path& path, const CausalLM& model) {
            save_conversation(path, self, model);
          },
          arg("path"), arg("model"), Unlocked(), "Writes an HDF5 file, with the model's configuration.")
      .def_static(
          "load", [](const std::filesystem::path& path, const CausalLM& model) { return load_conversation(path, model); },
          arg("path"), arg("model"), Unlocked(),
          "Reads what save wrote, for a model of the same configuration, to its device. CheckpointError for damaged files and "
          "those of other models.");

  def_model<GLAForCausalLM, GLAConfig>(
      models, "GLAForCausalLM", "gla",
      "A model of gated linear attention (arXiv 2312.06635).\n\nKeyword arguments, with fla's names: vocab_size=256, "
      "hidden_size=256, "
      "num_hidden_layers=4, num_heads=4, num_kv_heads=None, expand_k=0.5, expand_v=1.0, feature_map=None, use_short_conv=False, "
      "conv_size=4, conv_bias=False, "
      "use_output_gate=True, elementwise_affine=True, clamp_min=None, hidden_ratio=4, intermediate_size=None, norm_eps=1e-6, "
      "tie_word_embeddings=False, initializer_range=0.02, dtype=\"float32\" (of activations). ValueError, naming it, for an "
      "unknown or mistyped one.")
      .def_static(
          "from_pretrained",
          [](const std::filesystem::path& name, Device device, std::optional<DType> dtype) {
            return GLAForCausalLM::from_pretrained(name, {device, dtype});
          },
          arg("name"), py::kw_only(), arg("device") = kCPU, arg("dtype") = py::none(), Unlocked(),
          "The published model in a folder (config.json and safetensors files, as fla writes them), or of a hub's name "
          "(\"owner/model\", see find_pretrained). Its parameters are float32; "
          "dtype is that of activations, by default the config's. CheckpointError, naming the file and the cause, for damaged "
          "folders and configs that glade cannot honour.")
      .def(
          "save_pretrained",
          [](const GLAForCausalLM& self, const std::filesystem::path& folder, std::optional<DType> dtype,
             std::int64_t max_shard_bytes) { self.save_pretrained(folder, {dtype, max_shard_bytes}); },
          arg("folder"), py::kw_only(), arg("dtype") = py::none(),
          arg("max_shard_bytes") = SavePretrainedOptions().max_shard_bytes, Unlocked(),
          "Writes a folder that from_pretrained and fla read; dtype is that of the tensors in the files, by default as they "
          "are.");
  def_model<LightningForCausalLM, LightningConfig>(
      models, "LightningForCausalLM", "lightning",
      "A model of lightning attention (arXiv 2401.04658).\n\nKeyword arguments: vocab_size=256, hidden_size=256, "
      "num_hidden_layers=4, num_heads=4, "
      "expand_k=1.0, expand_v=1.0, use_output_gate=True, hidden_ratio=4, intermediate_size=None, norm_eps=1e-6, "
      "tie_word_embeddings=False, "
      "initializer_range=0.02, dtype=\"float32\" (of activations). ValueError, naming it, for an unknown or mistyped one.");
  models.def(
      "find_pretrained", [](const std::filesystem::path& name) { return find_pretrained(name); }, arg("name"),
      "The folder of a published model: name itself where it exists or is no name of a hub. A hub's name (\"owner/model\") "
      "stands for what `hf download owner/model` left in the local cache of Hugging Face: the folder of its revision main, "
      "under $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub. Downloads nothing: CheckpointError that says what "
      "to run where the model is not there.");
  models.def("from_json", py::overload_cast<const std::string&>(make_causal_lm), arg("config"),
             "The model that a configuration's JSON describes. ValueError for an unknown model_type.");
  models.def(
      "from_json", [](const std::string& config, const StateDict& state) { return make_causal_lm(config, infos_of(state)); },
      arg("config"), arg("state"), "The same for a state that is to be loaded into it, with values that are not set.");
  models.def(
      "from_checkpoint_file",
      [](const std::string& config, const CheckpointFile& file) {
        auto model = make_causal_lm(config, file.model_infos());
        file.restore(*model);
        return model;
      },
      arg("config"), arg("file"), Unlocked(), "The same with the values of a file.");
}

}  // namespace glade::python
