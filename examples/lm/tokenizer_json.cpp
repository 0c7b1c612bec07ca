#include "lm/tokenizer_json.h"

#include <fmt/format.h>
#include <glade/core/json.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lm/regex.h"
#include "lm/utf8.h"

namespace lm {

using nlohmann::json;

namespace {

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Byte-level tokenizers write every byte as a printable character: itself where it is one, else one from U+0100 on.
const std::array<std::string, 256>& byte_characters() {
  static const auto characters = [] {
    std::array<std::string, 256> result;
    char32_t next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      result[byte] = to_utf8(is_printable ? byte : next++);
    }
    return result;
  }();
  return characters;
}

std::string to_byte_characters(std::string_view text) {
  std::string result;
  for (const char c : text) result += byte_characters()[static_cast<unsigned char>(c)];
  return result;
}

/// The bytes of a token; a token with other characters is text.
std::string from_byte_characters(const std::string& token) {
  static const auto bytes = [] {
    std::unordered_map<std::string, char> result;
    for (std::size_t byte = 0; byte < 256; ++byte) result.emplace(byte_characters()[byte], static_cast<char>(byte));
    return result;
  }();
  std::string result;
  for (std::string_view rest = token; !rest.empty();) {
    const auto found = bytes.find(std::string(rest.substr(0, utf8_length(rest))));
    if (found == bytes.end()) return token;
    result += found->second;
    rest.remove_prefix(found->first.size());
  }
  return result;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size()) {
    result.append(text, done, at - done);
    result += to;
  }
  text = result.append(text, done);
}

[[noreturn]] void fail_unsupported(const char* kind, const json& component) {
  throw std::runtime_error(fmt::format("the {} {} is not supported", kind, component.dump().substr(0, 200)));
}

/// The string that Replace looks for.
std::string pattern_text(const char* kind, const json& component) {
  const json& pattern = component.at("pattern");
  if (!pattern.contains("String") || pattern.at("String").get<std::string>().empty()) fail_unsupported(kind, component);
  return pattern.at("String").get<std::string>();
}

/// A text that is not empty.
std::string text_of(const char* kind, const json& component, const char* name) {
  const auto text = component.at(name).get<std::string>();
  if (text.empty()) fail_unsupported(kind, component);
  return text;
}

/// What is in a Sequence, under the name `member`, or the component alone. None for null.
std::vector<json> steps_of(const json& component, const char* member) {
  if (component.is_null()) return {};
  if (component.at("type") != "Sequence") return {component};
  std::vector<json> steps;
  for (const json& step : component.at(member))
    for (const json& inner : steps_of(step, member)) steps.push_back(inner);
  return steps;
}

enum class PrependScheme { never, first, always };

PrependScheme prepend_scheme(const json& metaspace) {
  const std::string scheme = metaspace.value("prepend_scheme", metaspace.value("add_prefix_space", true) ? "always" : "never");
  return scheme == "always" ? PrependScheme::always : scheme == "first" ? PrependScheme::first : PrependScheme::never;
}

/// "<0x0A>" is a byte.
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  const std::string digits = token.substr(3, 2);
  if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return std::nullopt;
  return static_cast<char>(std::stoi(digits, nullptr, 16));
}

/// Puts tokens that are bytes together to text. Where bytes in a row are no text, each is U+FFFD.
void join_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto flush = [&] {
    if (is_utf8(bytes)) result.push_back(bytes);
    else result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_of(token)) {
      bytes += *byte;
      continue;
    }
    if (!bytes.empty()) flush();
    result.push_back(token);
  }
  if (!bytes.empty()) flush();
  tokens = result;
}

std::string join(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

json parse(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return glade::parse_json_object<UsageError>(file + ":", text.str());
}

}  // namespace

TokenizerJson::TokenizerJson(const std::string& file) {
  const json parsed = parse(file);
  try {
    load(parsed);
  } catch (const json::exception& error) {
    throw UsageError(fmt::format("{}: is no tokenizer: {}", file, error.what()));
  } catch (const std::runtime_error& error) {
    throw UsageError(fmt::format("{}: {}", file, error.what()));
  }
}

void TokenizerJson::load(const json& file) {
  model_.emplace(file.at("model"));
  const auto component = [&](const char* name) { return file.contains(name) ? file.at(name) : json(); };
  add_normalizer(component("normalizer"));
  add_pre_tokenizer(component("pre_tokenizer"));
  add_post_processor(component("post_processor"));
  add_decoder(component("decoder"));
  add_tokens(component("added_tokens"));
}

void TokenizerJson::add_normalizer(const json& normalizer) {
  for (const json& step : steps_of(normalizer, "normalizers")) {
    if (step.at("type") == "Prepend") {
      normalizers_.push_back([prefix = step.at("prepend").get<std::string>()](const std::string& text) {
        return text.empty() ? text : prefix + text;
      });
    } else if (step.at("type") == "Replace") {
      normalizers_.push_back(
          [from = pattern_text("normalizer", step), to = step.at("content").get<std::string>()](const std::string& text) {
            std::string result = text;
            replace_all(result, from, to);
            return result;
          });
    } else {
      fail_unsupported("normalizer", step);
    }
  }
}

void TokenizerJson::add_pre_tokenizer(const json& pre_tokenizer) {
  /// Cuts parts at the ends of matches, and at their beginnings.
  const auto split_at = [](const Regex& regex) {
    return [regex](std::vector<Part>& parts) {
      std::vector<Part> result;
      for (const Part& part : parts) {
        std::size_t at = 0;
        const auto add = [&](std::size_t end) {
          if (end > at) result.push_back({part.text.substr(at, end - at), {}, part.is_first && at == 0});
          at = end;
        };
        for (const auto& [begin, end] : regex.find_all(part.text)) add(begin), add(end);
        add(part.text.size());
      }
      parts = std::move(result);
    };
  };
  for (const json& step : steps_of(pre_tokenizer, "pretokenizers")) {
    if (step.at("type") == "ByteLevel") {
      if (step.value("add_prefix_space", true))
        pre_tokenizers_.push_back([](std::vector<Part>& parts) {
          for (Part& part : parts)
            if (!part.text.starts_with(' ')) part.text = ' ' + part.text;
        });
      if (step.value("use_regex", true)) pre_tokenizers_.push_back(split_at(Regex(kGpt2Pattern)));
      pre_tokenizers_.push_back([](std::vector<Part>& parts) {
        for (Part& part : parts) part.text = to_byte_characters(part.text);
      });
    } else if (step.at("type") == "Split" && step.at("behavior") == "Isolated" && step.at("pattern").contains("Regex")) {
      pre_tokenizers_.push_back(split_at(Regex(step.at("pattern").at("Regex").get<std::string>())));
    } else if (step.at("type") == "Metaspace") {
      const auto space = text_of("pre-tokenizer", step, "replacement");
      pre_tokenizers_.push_back([space, scheme = prepend_scheme(step),
                                 is_split = step.value("split", true)](std::vector<Part>& parts) {
        std::vector<Part> result;
        for (Part part : parts) {
          replace_all(part.text, " ", space);
          const bool is_prepended = scheme == PrependScheme::always || (scheme == PrependScheme::first && part.is_first);
          if (is_prepended && !part.text.starts_with(space)) part.text = space + part.text;
          std::size_t at = 0;
          for (std::size_t next; is_split && (next = part.text.find(space, at + space.size())) != std::string::npos; at = next)
            result.push_back({part.text.substr(at, next - at), {}, part.is_first && at == 0});
          result.push_back({part.text.substr(at), {}, part.is_first && at == 0});
        }
        parts = std::move(result);
      });
    } else {
      fail_unsupported("pre-tokenizer", step);
    }
  }
}

void TokenizerJson::add_post_processor(const json& post_processor) {
  for (const json& step : steps_of(post_processor, "processors")) {
    if (step.at("type") == "ByteLevel") continue;  // it changes where tokens begin in the text, not the tokens
    if (step.at("type") != "TemplateProcessing") fail_unsupported("post-processor", step);
    Tokens* side = &before_;
    for (const json& part : step.at("single")) {
      if (part.contains("Sequence")) {
        side = &after_;
        continue;
      }
      const json& ids = step.at("special_tokens").at(part.at("SpecialToken").at("id").get<std::string>()).at("ids");
      for (const json& id : ids) side->push_back(id.get<std::int64_t>());
    }
  }
}

void TokenizerJson::add_decoder(const json& decoder) {
  has_decoder_ = !decoder.is_null();
  for (const json& step : steps_of(decoder, "decoders")) {
    const auto type = step.at("type").get<std::string>();
    if (type == "ByteLevel") {
      decoders_.push_back([](std::vector<std::string>& tokens) {
        std::string bytes;
        for (const std::string& token : tokens) bytes += from_byte_characters(token);
        tokens = {replace_invalid_utf8(bytes)};
      });
    } else if (type == "Metaspace") {
      decoders_.push_back(
          [space = text_of("decoder", step, "replacement"), scheme = prepend_scheme(step)](std::vector<std::string>& tokens) {
            for (std::size_t i = 0; i < tokens.size(); ++i)
              replace_all(tokens[i], space, i == 0 && scheme != PrependScheme::never ? "" : " ");
          });
    } else if (type == "Replace") {
      decoders_.push_back(
          [from = pattern_text("decoder", step), to = step.at("content").get<std::string>()](std::vector<std::string>& tokens) {
            for (std::string& token : tokens) replace_all(token, from, to);
          });
    } else if (type == "ByteFallback") {
      decoders_.push_back(join_bytes);
    } else if (type == "Fuse") {
      decoders_.push_back([](std::vector<std::string>& tokens) { tokens = {join(tokens)}; });
    } else if (type == "Strip") {
      decoders_.push_back([what = text_of("decoder", step, "content"), begin = step.at("start").get<std::size_t>(),
                           end = step.at("stop").get<std::size_t>()](std::vector<std::string>& tokens) {
        for (std::string& token : tokens) {
          for (std::size_t i = 0; i < begin && token.starts_with(what); ++i) token.erase(0, what.size());
          for (std::size_t i = 0; i < end && token.ends_with(what); ++i) token.erase(token.size() - what.size());
        }
      });
    } else {
      fail_unsupported("decoder", step);
    }
  }
}

void TokenizerJson::add_tokens(const json& added_tokens) {
  for (const json& added : added_tokens) {
    if (added.value("single_word", false)) fail_unsupported("added token", added);
    const auto token = added.at("id").get<std::int64_t>();
    auto content = added.at("content").get<std::string>();
    const bool is_normalized = added.value("normalized", true);
    if (is_normalized) content = normalize(content);
    added_texts_[token] = content;
    if (added.value("special", false)) special_.insert(token);
    if (content.empty()) continue;
    (is_normalized ? in_normalized_ : in_text_)
        .push_back({token, content, added.value("lstrip", false), added.value("rstrip", false)});
  }
  for (auto* added : {&in_text_, &in_normalized_})
    std::ranges::stable_sort(*added, std::greater<>(), [](const AddedToken& x) { return x.content.size(); });
}

std::string TokenizerJson::normalize(std::string text) const {
  for (const Normalizer& normalizer : normalizers_) text = normalizer(text);
  return text;
}

std::vector<TokenizerJson::Part> TokenizerJson::find_tokens(const Part& part, const std::vector<AddedToken>& added) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  std::vector<Part> parts;
  std::string first_bytes;
  for (const AddedToken& token : added) first_bytes += token.content[0];
  const std::string& text = part.text;
  std::size_t done = 0;  // of the text
  const auto add_text = [&](std::size_t end) {
    if (end > done) parts.push_back({text.substr(done, end - done), {}, part.is_first && done == 0});
  };
  for (std::size_t at = 0; (at = text.find_first_of(first_bytes, at)) != std::string::npos;) {
    const auto found =
        std::ranges::find_if(added, [&](const AddedToken& x) { return text.compare(at, x.content.size(), x.content) == 0; });
    if (found == added.end()) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + found->content.size();
    if (found->takes_left_space && begin > 0) {
      const std::size_t last = text.find_last_not_of(kSpace, begin - 1);
      begin = std::max(done, last == std::string::npos ? 0 : last + 1);
    }
    if (found->takes_right_space) end = std::min(text.find_first_not_of(kSpace, end), text.size());
    add_text(begin);
    parts.push_back({"", found->token, false});
    done = at = end;
  }
  add_text(text.size());
  return parts;
}

Tokens TokenizerJson::encode(const std::string& text) const {
  if (!is_utf8(text)) throw UsageError("the text is not UTF-8, which the tokenizer needs");
  Tokens tokens = before_;
  for (Part& part : find_tokens({text, {}, true}, in_text_)) {
    if (part.token) {
      tokens.push_back(*part.token);
      continue;
    }
    part.text = normalize(std::move(part.text));
    for (const Part& inner : find_tokens(part, in_normalized_)) {
      if (inner.token) {
        tokens.push_back(*inner.token);
        continue;
      }
      std::vector<Part> pieces{inner};
      for (const PreTokenizer& pre_tokenizer : pre_tokenizers_) pre_tokenizer(pieces);
      for (const Part& piece : pieces) model_->encode(piece.text, tokens);
    }
  }
  tokens.insert(tokens.end(), after_.begin(), after_.end());
  return tokens;
}

std::string TokenizerJson::decode(std::span<const std::int64_t> tokens) const {
  std::vector<std::string> texts;
  for (const std::int64_t token : tokens) {
    if (special_.contains(token)) continue;
    if (const auto added = added_texts_.find(token); added != added_texts_.end()) texts.push_back(added->second);
    else if (const std::string* text = model_->text(token)) texts.push_back(*text);
  }
  if (!has_decoder_) return fmt::format("{}", fmt::join(texts, " "));
  for (const Decoder& decoder : decoders_) decoder(texts);
  return join(texts);
}

}  // namespace lm
