#include <glade/nn/models/unknown_fields.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace glade::nn::models {
namespace {

using nlohmann::json;

/// Fields of transformers' PretrainedConfig, and settings of generation that it kept there, which no model's forward reads.
const std::set<std::string> kHarmless{
    "attn_implementation",
    "author",
    "bad_words_ids",
    "begin_suppress_tokens",
    "dataset",
    "datasets",
    "description",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "is_decoder",
    "length_penalty",
    "license",
    "max_length",
    "max_new_tokens",
    "max_sequence_length",
    "min_length",
    "model_max_length",
    "model_name",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "seed",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "top_k",
    "top_p",
    "torchscript",
    "typical_p",
    "use_bfloat16",
};

constexpr const char* kPrefixes[] = {"_", "tokenizer_", "train_", "training_"};
constexpr const char* kSuffixes[] = {"_token_id", "_version", "_checkpointing"};

/// Words, as parts of a name, that speak of the computation.
const std::set<std::string> kComputation{
    "act",      "activation", "alpha",  "attention",    "attn",       "beta",     "bias",   "cap",    "clamp",      "clip",
    "conv",     "decay",      "embed",  "embedding",    "embeddings", "eps",      "expand", "expert", "experts",    "feature",
    "func",     "function",   "gate",   "gating",       "head",       "heads",    "hidden", "kernel", "kv",         "layer",
    "layers",   "logit",      "logits", "lora",         "map",        "mlp",      "mode",   "moe",    "multiplier", "norm",
    "position", "qk",         "quant",  "quantization", "ratio",      "residual", "rope",   "rotary", "scale",      "scaling",
    "size",     "softcap",    "state",  "temperature",  "window",
};

bool speaks_of_computation(const std::string& name) {
  std::istringstream words(name);
  for (std::string word; std::getline(words, word, '_');)
    if (kComputation.contains(word)) return true;
  return false;
}

}  // namespace

bool cannot_change_logits(const std::string& name, const json& value) {
  if (value.is_null() || kHarmless.contains(name)) return true;
  if (speaks_of_computation(name)) return false;
  if (name.starts_with("fuse_")) return value.is_boolean();
  if (name.ends_with("_dropout")) return value.is_number() && value == 0;
  return std::ranges::any_of(kPrefixes, [&](const char* prefix) { return name.starts_with(prefix); }) ||
         std::ranges::any_of(kSuffixes, [&](const char* suffix) { return name.ends_with(suffix); });
}

}  // namespace glade::nn::models
