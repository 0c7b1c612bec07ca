#pragma once
// How well a model predicts text.
#include <glade/nn/data/token_data.h>
#include <glade/nn/models/causal_lm.h>

#include <functional>
#include <optional>
#include <string>

#include "lm/results.h"
#include "lm/tokenizer.h"

namespace lm {

/// The tokenizer, which is only opened where there is text.
using GetTokenizer = std::function<const Tokenizer&()>;

/// The tokens of a file, and how many bytes of text they stand for.
class TokenSource {
 public:
  /// Takes a token file as it is and gives text to the tokenizer. Errors of TokenData and of the tokenizer; CheckpointError for
  /// a token file of another vocabulary than the model's; ValueError for `packed` tokens, of documents that are apart, without a
  /// separator.
  TokenSource(const std::string& file, const GetTokenizer& tokenizer, std::int64_t vocab_size, bool packed);

  const std::string& file() const { return file_; }
  std::int64_t size() const { return size_; }
  bool packed() const { return packed_; }
  std::optional<std::int64_t> separator() const;
  /// Tokens [begin, end).
  Tokens read(std::int64_t begin, std::int64_t end) const;
  /// The bytes that `predicted` tokens stand for, all but the first of every document; nothing where that is not known.
  std::optional<double> bytes(std::int64_t predicted) const;

 private:
  std::string file_;
  bool packed_;
  std::optional<glade::nn::data::TokenData> data_;  // a token file, or text as bytes
  Tokens tokens_;                                   // else
  std::int64_t size_ = 0;
  double bytes_ = 0;  // of text, without its first token
};

/// perplexity, bits_per_token, bits_per_byte (where bytes are known) and the number of predicted tokens: all but the first,
/// each from all tokens before it, as the state is carried on over windows of seq_len tokens. Of a packed source: all but the
/// first of every document, from those before it in that document. ValueError where no token is predicted; std::runtime_error
/// where the perplexity is no finite number.
Metrics perplexity(const glade::nn::models::CausalLM& model, const TokenSource& source, std::int64_t seq_len);

}  // namespace lm
