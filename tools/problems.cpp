#include "problems.h"

#include <fmt/format.h>
#include <glade/core/error.h>
#include <glade/nn/models/config.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tune {

using glade::AttentionProblem;
using glade::ValueError;

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

/// "B4_T2048_H16": a letter and a size each.
void set_sizes(AttentionProblem& p, const std::string& shape) {
  bool shares = false;
  const std::vector<std::string> parts = split(shape, '_');
  if (parts.empty()) throw ValueError("an empty shape: expected one like B4_T2048_H16_K128_V128");
  for (const std::string& part : parts) {
    std::int64_t size = 0;
    const char* end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data() + 1, end, size);
    const char letter = part[0];
    std::int64_t* field = letter == 'B'   ? &p.sequences
                          : letter == 'T' ? &p.length
                          : letter == 'H' ? &p.heads
                          : letter == 'G' ? &p.kv_heads
                          : letter == 'K' ? &p.K
                          : letter == 'V' ? &p.V
                                          : nullptr;
    if (!field || error != std::errc() || stop != end || size < 1)
      throw ValueError(
          fmt::format("shape '{}': '{}' is not one of B, T, H, G, K, V with a positive size, as in "
                      "B4_T2048_H16_K128_V128",
                      shape, part));
    *field = size;
    shares |= letter == 'G';
  }
  if (!shares) p.kv_heads = p.heads;
  if (p.heads % p.kv_heads != 0) throw ValueError(fmt::format("shape '{}': H is no multiple of G", shape));
}

std::string gate_text(const AttentionProblem& p) {
  std::string text;
  for (const auto& [given, name] : {std::pair(p.g, "g"), {p.g_gamma, "g_gamma"}, {p.gk, "gk"}, {p.gv, "gv"}})
    if (given) text += (text.empty() ? "" : "+") + std::string(name);
  return text.empty() ? "none" : text;
}

bool is_dtype(const std::string& word) {
  for (const char* name : {"float64", "float32", "bfloat16", "float16"})
    if (word == name) return true;
  return false;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw ValueError(fmt::format("{}: cannot be opened", path));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

std::string describe(const AttentionProblem& p) {
  const std::string shared = p.kv_heads == p.heads ? "" : fmt::format("_G{}", p.kv_heads);
  return fmt::format("B{}_T{}_H{}{}_K{}_V{} {} {}{}", p.sequences, p.length, p.heads, shared, p.K, p.V, gate_text(p),
                     glade::dtype_name(p.dtype), p.packed ? " packed" : "");
}

void set_gates(AttentionProblem& p, const std::string& gates) {
  p.g = p.g_gamma = p.gk = p.gv = false;
  if (gates == "none") return;
  for (const std::string& gate : split(gates, '+')) {
    bool* field = gate == "g" ? &p.g : gate == "g_gamma" ? &p.g_gamma : gate == "gk" ? &p.gk : gate == "gv" ? &p.gv : nullptr;
    if (!field) throw ValueError(fmt::format("gates '{}': expected none, or g, g_gamma, gk, gv with + between them", gates));
    *field = true;
  }
}

AttentionProblem parse_problem(const std::string& line, const AttentionProblem& defaults) {
  AttentionProblem p = defaults;
  const std::vector<std::string> words = split(line, ' ');
  set_sizes(p, words.empty() ? "" : words[0]);
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (is_dtype(words[i])) p.dtype = glade::dtype_from_name(words[i]);
    else if (words[i] == "packed") p.packed = true;
    else set_gates(p, words[i]);
  }
  return p;
}

std::vector<AttentionProblem> read_problems(const std::string& path, const AttentionProblem& defaults) {
  std::vector<AttentionProblem> problems;
  for (const std::string& line : split(read_file(path), '\n')) {
    const std::string content = line.substr(0, line.find('#'));
    if (content.find_first_not_of(" \r") != std::string::npos) problems.push_back(parse_problem(content, defaults));
  }
  if (problems.empty()) throw ValueError(fmt::format("{}: has no shapes", path));
  return problems;
}

std::string config_file(const std::string& path) {
  namespace fs = std::filesystem;
  return fs::is_directory(path) ? (fs::path(path) / "config.json").string() : path;
}

AttentionProblem problem_of_model(const std::string& path, const AttentionProblem& defaults) {
  const std::string text = read_file(config_file(path));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  AttentionProblem p = defaults;
  p.g = p.g_gamma = p.gk = p.gv = false;
  const auto take = [&p](const auto& config, std::int64_t kv_heads) {
    const auto hidden = static_cast<double>(config.hidden_size);
    p.heads = config.num_heads;
    p.kv_heads = kv_heads;
    p.K = static_cast<std::int64_t>(hidden * config.expand_k) / config.num_heads;
    p.V = static_cast<std::int64_t>(hidden * config.expand_v) / config.num_heads;
    p.dtype = config.dtype;
  };
  if (json.is_object() && json.value("model_type", nlohmann::json()) == "lightning") {
    const auto config = glade::nn::models::LightningConfig::from_json(text);
    take(config, config.num_heads);
    p.g_gamma = true;
  } else {
    const auto config = glade::nn::models::GLAConfig::from_json(text);
    take(config, config.num_kv_heads.value_or(config.num_heads));
    p.gk = true;
  }
  return p;
}

}  // namespace tune
