#pragma once
// Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909), as the model "BPE" of tokenizer.json.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lm {

class BytePairEncoding {
 public:
  /// The object "model" of a tokenizer.json. std::runtime_error that names what it has and this does not know.
  explicit BytePairEncoding(const nlohmann::json& model);

  /// Appends the tokens of a piece of text, which is UTF-8.
  void encode(std::string_view piece, std::vector<std::int64_t>& tokens) const;
  std::optional<std::int64_t> find(const std::string& token) const;
  /// The text of a token, or nullptr for an unknown one.
  const std::string* text(std::int64_t token) const;

 private:
  struct Merge {
    std::int64_t rank, token;
  };
  struct PairHash {
    std::size_t operator()(const std::pair<std::int64_t, std::int64_t>& pair) const {
      return std::hash<std::uint64_t>()(static_cast<std::uint64_t>(pair.first) << 32 ^ static_cast<std::uint64_t>(pair.second));
    }
  };
  struct Symbol;

  void add_merges(const nlohmann::json& merges);
  /// The characters of a piece as tokens; those that have none as their bytes, or as the unknown token.
  std::vector<std::int64_t> split(std::string_view piece) const;
  const Merge* find_merge(std::int64_t left, std::int64_t right) const;

  std::unordered_map<std::string, std::int64_t> vocabulary_;
  std::unordered_map<std::int64_t, std::string> texts_;
  std::unordered_map<std::pair<std::int64_t, std::int64_t>, Merge, PairHash> merges_;
  std::optional<std::int64_t> unknown_;
  bool fuse_unknown_, byte_fallback_, ignore_merges_;
};

}  // namespace lm
