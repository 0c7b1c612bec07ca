#pragma once
// The file tokenizer.json of published models, as the library tokenizers of Hugging Face writes it.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "lm/bpe.h"
#include "lm/tokenizer.h"

namespace lm {

/// Byte-pair encoding of characters (Llama, Mistral) or of bytes (GPT-2, Llama 3) with what belongs to it: the normalizers
/// Prepend and Replace; the pre-tokenizers Metaspace, ByteLevel and Split; templates; added tokens; and the decoders of all
/// these.
class TokenizerJson : public Tokenizer {
 public:
  /// UsageError that names the file and what in it is damaged or not supported.
  explicit TokenizerJson(const std::string& file);

  Tokens encode(const std::string& text) const override;
  /// Special tokens have no text, and bytes that are no character become U+FFFD.
  std::string decode(std::span<const std::int64_t> tokens) const override;

 private:
  /// A token that is found in text before it is split into pieces.
  struct AddedToken {
    std::int64_t token;
    std::string content;
    bool takes_left_space, takes_right_space;
  };
  /// A part of the text, or a token that was found in it.
  struct Part {
    std::string text;
    std::optional<std::int64_t> token;
    bool is_first;  ///< in the whole text
  };
  using Normalizer = std::function<std::string(const std::string&)>;
  using PreTokenizer = std::function<void(std::vector<Part>&)>;
  using Decoder = std::function<void(std::vector<std::string>&)>;

  void load(const nlohmann::json& file);
  void add_normalizer(const nlohmann::json& normalizer);
  void add_pre_tokenizer(const nlohmann::json& pre_tokenizer);
  void add_post_processor(const nlohmann::json& post_processor);
  void add_decoder(const nlohmann::json& decoder);
  void add_tokens(const nlohmann::json& added_tokens);
  std::string normalize(std::string text) const;
  static std::vector<Part> find_tokens(const Part& part, const std::vector<AddedToken>& added);

  std::optional<BytePairEncoding> model_;  // after load()
  std::vector<Normalizer> normalizers_;
  std::vector<PreTokenizer> pre_tokenizers_;
  std::vector<Decoder> decoders_;
  Tokens before_, after_;                            // the template
  std::vector<AddedToken> in_text_, in_normalized_;  // longest first
  std::unordered_map<std::int64_t, std::string> added_texts_;
  std::unordered_set<std::int64_t> special_;
  bool has_decoder_ = false;
};

}  // namespace lm
