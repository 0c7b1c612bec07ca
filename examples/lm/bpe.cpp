#include "lm/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>
#include <stdexcept>
#include <tuple>

#include "lm/utf8.h"

namespace lm {

using nlohmann::json;

namespace {

/// Whether a field is missing, null, false, 0 or "".
bool is_unset(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() || *found == json(false) || *found == json(0.0) || *found == json("");
}

}  // namespace

BytePairEncoding::BytePairEncoding(const json& model)
    : fuse_unknown_(!is_unset(model, "fuse_unk")),
      byte_fallback_(!is_unset(model, "byte_fallback")),
      ignore_merges_(!is_unset(model, "ignore_merges")) {
  if (const std::string type = model.value("type", "BPE"); type != "BPE")
    throw std::runtime_error(fmt::format("the model {} is not supported, only BPE", type));
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (!is_unset(model, name)) throw std::runtime_error(fmt::format("the model's {} is not supported", name));
  for (const auto& [text, token] : model.at("vocab").items()) {
    vocabulary_.emplace(text, token.get<std::int64_t>());
    texts_.emplace(token.get<std::int64_t>(), text);
  }
  add_merges(model.at("merges"));
  if (is_unset(model, "unk_token")) return;
  unknown_ = find(model.at("unk_token").get<std::string>());
  if (!unknown_) throw std::runtime_error("the model's unk_token is not in its vocabulary");
}

/// Each is "left right" or ["left", "right"].
void BytePairEncoding::add_merges(const json& merges) {
  for (const json& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      const auto both = merge.get<std::string>();
      const std::size_t space = both.find(' ');
      if (space == std::string::npos) throw std::runtime_error(fmt::format("the merge '{}' has one part", both));
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      left = merge.at(0).get<std::string>();
      right = merge.at(1).get<std::string>();
    }
    const auto a = find(left), b = find(right), both = find(left + right);
    if (!a || !b || !both)
      throw std::runtime_error(fmt::format("the merge of '{}' and '{}' is not in the vocabulary", left, right));
    merges_.emplace(std::pair(*a, *b), Merge{static_cast<std::int64_t>(merges_.size()), *both});
  }
}

std::optional<std::int64_t> BytePairEncoding::find(const std::string& token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* BytePairEncoding::text(std::int64_t token) const {
  const auto found = texts_.find(token);
  return found == texts_.end() ? nullptr : &found->second;
}

const BytePairEncoding::Merge* BytePairEncoding::find_merge(std::int64_t left, std::int64_t right) const {
  const auto found = merges_.find({left, right});
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<std::int64_t> BytePairEncoding::split(std::string_view piece) const {
  std::vector<std::int64_t> tokens, bytes;
  bool after_unknown = false;
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, std::max<std::size_t>(utf8_length(piece), 1));
    piece.remove_prefix(character.size());
    if (const auto token = find(std::string(character))) {
      tokens.push_back(*token);
      after_unknown = false;
      continue;
    }
    bytes.clear();
    if (byte_fallback_)
      for (const char c : character)
        if (const auto token = find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)))) bytes.push_back(*token);
    if (bytes.size() == character.size()) {
      tokens.insert(tokens.end(), bytes.begin(), bytes.end());
      after_unknown = false;
    } else if (unknown_) {
      if (!fuse_unknown_ || !after_unknown) tokens.push_back(*unknown_);
      after_unknown = true;
    }
  }
  return tokens;
}

/// A token in a list from which merges remove the right one of two.
struct BytePairEncoding::Symbol {
  std::int64_t token;
  std::ptrdiff_t previous, next;  // -1: none
  bool is_merged = false;         // into the one before
};

void BytePairEncoding::encode(std::string_view piece, std::vector<std::int64_t>& tokens) const {
  if (ignore_merges_)
    if (const auto token = find(std::string(piece))) return tokens.push_back(*token);

  std::vector<Symbol> symbols;
  for (const std::int64_t token : split(piece)) {
    const auto at = static_cast<std::ptrdiff_t>(symbols.size());
    symbols.push_back({token, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  const auto symbol = [&](std::ptrdiff_t at) -> Symbol& { return symbols[static_cast<std::size_t>(at)]; };

  using Candidate = std::tuple<std::int64_t, std::ptrdiff_t, std::int64_t>;  // rank, place of the left token, merged token
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto add_candidate = [&](std::ptrdiff_t left) {
    if (left < 0 || symbol(left).next < 0) return;
    if (const Merge* merge = find_merge(symbol(left).token, symbol(symbol(left).next).token))
      queue.emplace(merge->rank, left, merge->token);
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) add_candidate(static_cast<std::ptrdiff_t>(i));
  while (!queue.empty()) {
    const auto [rank, at, token] = queue.top();
    queue.pop();
    Symbol& left = symbol(at);
    if (left.is_merged || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const Merge* merge = find_merge(left.token, right.token);
    if (merge == nullptr || merge->token != token) continue;  // one of them has changed since
    left.token = token;
    left.next = right.next;
    right.is_merged = true;
    if (left.next >= 0) symbol(left.next).previous = at;
    add_candidate(left.previous);
    add_candidate(at);
  }
  for (std::ptrdiff_t at = 0; at >= 0; at = symbol(at).next) tokens.push_back(symbol(at).token);
}

}  // namespace lm
