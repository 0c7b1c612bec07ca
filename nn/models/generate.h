#pragma once
// Drawing tokens from a model, and what it remembers of a sequence.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <glade/core/generator.h>
#include <glade/nn/attention.h>

namespace glade::nn::models {

class CausalLM;

/// One state per layer; empty before the first token.
using AttentionStates = std::vector<AttentionState>;

/// How tokens are drawn, and when a sequence ends.
struct GenerateOptions {
  std::int64_t max_new_tokens = 100;  ///< At most so many tokens follow each prompt.
  double temperature = 1;             ///< 0: always the likeliest token
  std::int64_t top_k = 0;             ///< only among so many likeliest tokens; 0: all
  double top_p = 1;                   ///< only among the likeliest tokens that together reach this probability
  /// Divides the logits of tokens that occurred where they are positive, and multiplies them where they are negative
  /// (arXiv 1909.05858): above 1 the model repeats itself less.
  double repetition_penalty = 1;
  std::vector<std::int64_t> stop_tokens{};  ///< after one of these a sequence has ended
  std::uint64_t seed = 0;                   ///< Of the random numbers: the same seed gives the same tokens.
  /// Called with each sequence's token as soon as it is drawn; -1 for sequences that have ended.
  std::function<void(std::span<const std::int64_t>)> on_tokens = nullptr;
};

/// One token a row of logits [B, vocab], drawn as `options` say with random numbers from `generator`; without the penalty,
/// which needs to know what occurred. ShapeError for other logits; ValueError for options out of range and
/// for logits that hold NaN, infinity, or nothing but -infinity.
std::vector<std::int64_t> sample(const Tensor& logits, const GenerateOptions& options, Generator& generator);

/// Where a sequence stands: all that a model needs to go on with it, of a size that does not depend on its length.
struct Conversation {
  std::int64_t length = 0;  ///< tokens so far
  AttentionStates states;   ///< after them, of this sequence alone
  Tensor logits;            ///< [1, vocab_size], of the token to come
  Tensor seen;              ///< bool [vocab_size], on the CPU: the tokens that occurred
};

/// Writes a file in the format of checkpoints, with the model's config and the conversation under /data. CheckpointError as
/// for save.
void save_conversation(const std::string& path, const Conversation& conversation, const CausalLM& model);
/// Reads what save_conversation wrote, for a model of the same config, to its device. CheckpointError, naming the file and
/// the cause, as for load, and where the conversation is another model's.
Conversation load_conversation(const std::string& path, const CausalLM& model);

}  // namespace glade::nn::models
