#pragma once
// Fields of a published config that glade does not know. Not public.
#include <string>

#include <nlohmann/json.hpp>

namespace glade::nn::models {

/// Whether a field cannot change the logits of a model whose other fields are known. By this rule, in which all that is not
/// named counts as a change:
/// - null says no more than an absent field;
/// - settings of generation, tasks and training, by their names in transformers;
/// - names that begin with `_`, `fuse_` (true or false), `tokenizer_`, `train_` or `training_`, or end with `_token_id`,
///   `_version`, `_checkpointing` or `_dropout` (0), unless another word of them speaks of the computation (act, scale, rope,
///   attn, norm, window, ...).
bool cannot_change_logits(const std::string& name, const nlohmann::json& value);

}  // namespace glade::nn::models
