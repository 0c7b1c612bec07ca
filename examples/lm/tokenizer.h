#pragma once
// Text as a model's tokens.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lm/program.h"

namespace CLI {
class App;
}

namespace lm {

using Tokens = std::vector<std::int64_t>;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// UsageError for text that is none of its own.
  virtual Tokens encode(const std::string& text) const = 0;
  virtual std::string decode(std::span<const std::int64_t> tokens) const = 0;
  /// The tokens that end a text.
  virtual Tokens stop_tokens() const { return {}; }
  /// Whether tokens are the bytes of the text.
  virtual bool is_bytes() const { return false; }
};

/// Adds --tokenizer, whose value open_tokenizer takes as `kind`.
void add_tokenizer_option(CLI::App& app, std::string& kind);

/// `kind` is "bytes", "ids" (numbers, separated by spaces or commas), the path of a tokenizer.json or a SentencePiece model, or
/// "auto": the file in the folder `model`, or bytes for a vocabulary of 256. UsageError where that is not enough, and for files
/// that this program cannot read.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& kind, const std::string& model, std::int64_t vocab_size);

/// Gives the text of a growing sequence of tokens piece by piece.
class TextStream {
 public:
  /// Begins after `prompt`, whose text is not given again.
  TextStream(const Tokenizer& tokenizer, const Tokens& prompt) : tokenizer_(tokenizer), tokens_(prompt), shown_(prompt.size()) {}
  /// The text that one token more completes; empty in the middle of a character.
  std::string add(std::int64_t token);
  /// The text of tokens that no further one completed.
  std::string finish();

 private:
  std::string text_after_shown(const std::string& incomplete);

  const Tokenizer& tokenizer_;
  Tokens tokens_;
  std::size_t shown_;  ///< tokens whose text was given
};

}  // namespace lm
