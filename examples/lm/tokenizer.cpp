#include "lm/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#ifdef GLADE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

#include "lm/model.h"
#include "lm/tokenizer_json.h"

namespace lm {
namespace {

namespace fs = std::filesystem;

class Bytes : public Tokenizer {
 public:
  Tokens encode(const std::string& text) const override {
    Tokens tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string decode(std::span<const std::int64_t> tokens) const override {
    std::string text;
    for (const std::int64_t token : tokens) text.push_back(static_cast<char>(token));
    return text;
  }
  bool is_bytes() const override { return true; }
};

class Numbers : public Tokenizer {
 public:
  Tokens encode(const std::string& text) const override {
    Tokens tokens;
    constexpr const char* kSeparators = " ,\n";
    for (std::size_t at = text.find_first_not_of(kSeparators); at != std::string::npos;
         at = text.find_first_not_of(kSeparators, at)) {
      const std::size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
      std::int64_t token = 0;
      const auto [rest, error] = std::from_chars(text.data() + at, text.data() + end, token);
      if (error != std::errc() || rest != text.data() + end)
        throw UsageError(fmt::format("'{}' is not the number of a token", text.substr(at, end - at)));
      tokens.push_back(token);
      at = end;
    }
    return tokens;
  }
  std::string decode(std::span<const std::int64_t> tokens) const override {
    std::string text;
    for (const std::int64_t token : tokens) text += fmt::format("{} ", token);
    return text;
  }
};

#ifdef GLADE_SENTENCEPIECE
class SentencePiece : public Tokenizer {
 public:
  explicit SentencePiece(const std::string& file) {
    if (const auto status = processor_.Load(file); !status.ok())
      throw UsageError(fmt::format("{}: is no SentencePiece model: {}", file, status.ToString()));
  }
  Tokens encode(const std::string& text) const override {
    const std::vector<int> ids = processor_.EncodeAsIds(text);
    return {ids.begin(), ids.end()};
  }
  std::string decode(std::span<const std::int64_t> tokens) const override {
    std::vector<int> ids;
    for (const std::int64_t token : tokens)  // a model's vocabulary may be padded
      ids.push_back(token < processor_.GetPieceSize() ? static_cast<int>(token) : processor_.unk_id());
    return processor_.DecodeIds(ids);
  }
  Tokens stop_tokens() const override { return processor_.eos_id() < 0 ? Tokens{} : Tokens{processor_.eos_id()}; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};
#endif

std::unique_ptr<Tokenizer> open_file(const std::string& file) {
  if (!fs::is_regular_file(file)) throw UsageError(fmt::format("--tokenizer {}: expected auto, bytes, ids or a file", file));
  if (file.ends_with(".json")) return std::make_unique<TokenizerJson>(file);
#ifdef GLADE_SENTENCEPIECE
  return std::make_unique<SentencePiece>(file);
#else
  throw UsageError(fmt::format("{}: this program was built without the library sentencepiece, which reads it", file));
#endif
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& kind, const std::string& model, std::int64_t vocab_size) {
  if (kind == "ids") return std::make_unique<Numbers>();
  if (kind == "bytes") return std::make_unique<Bytes>();
  if (kind != "auto") return open_file(kind);
  for (const char* file : {"tokenizer.json", "tokenizer.model"})
    if (const fs::path path = fs::path(find_model(model)) / file; fs::exists(path)) return open_file(path);
  if (vocab_size == 256) return std::make_unique<Bytes>();
  throw UsageError(
      fmt::format("{} has no tokenizer, and its {} tokens are no bytes: give --tokenizer ids or a file", model, vocab_size));
}

std::string TextStream::add(std::int64_t token) {
  tokens_.push_back(token);
  return text_after_shown("\xef\xbf\xbd");  // U+FFFD stands for a character whose other bytes are to come
}

std::string TextStream::finish() { return text_after_shown(""); }

std::string TextStream::text_after_shown(const std::string& incomplete) {
  constexpr std::size_t kContext = 32;  // tokens on which the next one's text may depend, as its space does on being the first
  const std::size_t begin = shown_ - std::min(shown_, kContext);
  const auto tokens = std::span(tokens_).subspan(begin);
  const std::size_t before = tokenizer_.decode(tokens.first(shown_ - begin)).size();
  const std::string text = tokenizer_.decode(tokens);
  if (text.size() <= before || (!incomplete.empty() && text.ends_with(incomplete))) return "";
  shown_ = tokens_.size();
  return text.substr(before);
}

}  // namespace lm
