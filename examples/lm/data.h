#pragma once
// The data of a training run.
#include <glade/core/process_group.h>
#include <glade/nn/data/loader.h>

#include <string>
#include <vector>

namespace lm {

/// Text or token files, of which the last twentieth is for validation, the rest for training.
class Data {
 public:
  /// Errors of TokenData; std::runtime_error where either part is too short for a sequence and the token after it.
  Data(const std::vector<std::string>& files, std::int64_t seq_len, bool packed);

  const std::shared_ptr<const glade::nn::data::TokenData>& tokens() const { return tokens_; }
  std::int64_t training_size() const { return training_size_; }
  std::int64_t validation_size() const { return tokens_->size() - training_size_; }
  /// What a token is: "byte" or "token".
  const char* unit() const { return tokens_->is_text() ? "byte" : "token"; }

  /// The same sequences of the validation part at every call: at most 65536 tokens, spread evenly. Of every batch of so many
  /// sequences this rank's share in the group, if there is one, and of each sequence its share of the tokens in the other.
  std::vector<glade::nn::data::Batch> validation_batches(std::int64_t sequences, glade::Device device,
                                                         const glade::ProcessGroup& group = {},
                                                         const glade::ProcessGroup& sequence_group = {}) const;

 private:
  std::shared_ptr<const glade::nn::data::TokenData> tokens_;
  std::int64_t training_size_, seq_len_;
  bool packed_;
};

}  // namespace lm
