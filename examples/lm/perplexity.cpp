#include "lm/perplexity.h"

#include <fmt/format.h>
#include <glade/glade.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>

#include "lm/model.h"
#include "lm/status_line.h"

namespace lm {

using namespace glade;
using nn::models::CausalLM;

namespace {

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

/// Sums what a model loses on tokens that it predicts, in nats, and shows how far it is.
class Scorer {
 public:
  Scorer(const CausalLM& model, const TokenSource& source, std::int64_t seq_len)
      : model_(model), source_(source), seq_len_(seq_len), device_(model.lm_head.weight.device()) {}

  /// A document of any length, window by window.
  void add(Range document) {
    nn::models::AttentionStates states;
    for (std::int64_t begin = document.begin; begin + 1 < document.end; begin += seq_len_) {
      const Tokens tokens = source_.read(begin, std::min(begin + seq_len_ + 1, document.end));
      score({tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()}, &states, {});
    }
  }

  /// Documents that fill no more than a window, in one row.
  void add(const std::vector<Range>& documents) {
    Tokens ids, targets, cu_seqlens{0};
    for (const Range& document : documents) {
      const Tokens tokens = source_.read(document.begin, document.end);
      ids.insert(ids.end(), tokens.begin(), tokens.end() - 1);
      targets.insert(targets.end(), tokens.begin() + 1, tokens.end());
      cu_seqlens.push_back(static_cast<std::int64_t>(ids.size()));
    }
    if (!ids.empty())
      score(ids, targets, nullptr, Tensor::from_vector(cu_seqlens, {static_cast<std::int64_t>(cu_seqlens.size())}));
  }

  double nats() const { return nats_; }
  std::int64_t predicted() const { return predicted_; }

 private:
  void score(const Tokens& ids, const Tokens& targets, nn::models::AttentionStates* states, const Tensor& cu_seqlens) {
    const Shape row{1, static_cast<std::int64_t>(ids.size())};
    const Tensor x = model_.model.forward(Tensor::from_vector(ids, row, device_), states, cu_seqlens);
    nats_ +=
        linear_cross_entropy(x, model_.lm_head.weight, Tensor::from_vector(targets, row, device_), {.reduction = Reduction::sum})
            .item<double>();
    predicted_ += row[1];
    if (line_.is_due()) show();
  }

  void show() {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double done = static_cast<double>(predicted_) / static_cast<double>(source_.size());
    line_.show(done, {fmt::format("{:.3f} bits per token", nats_ / std::log(2.0) / static_cast<double>(predicted_)),
                      clock_time(seconds * (1 - done) / done) + " left",
                      fmt::format("{:.1f}k tokens/s", static_cast<double>(predicted_) / seconds / 1000), source_.file()});
  }

  const CausalLM& model_;
  const TokenSource& source_;
  const std::int64_t seq_len_;
  const Device device_;
  double nats_ = 0;
  std::int64_t predicted_ = 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  StatusLine line_{stderr};
};

/// Each with the separator that ends it.
std::vector<Range> find_documents(const TokenSource& source) {
  std::vector<Range> documents;
  constexpr std::int64_t kBlock = 1 << 20;
  std::int64_t document_begin = 0;
  for (std::int64_t begin = 0; begin < source.size(); begin += kBlock) {
    const Tokens tokens = source.read(begin, std::min(begin + kBlock, source.size()));
    for (auto at = tokens.begin(); (at = std::find(at, tokens.end(), *source.separator())) != tokens.end();) {
      const std::int64_t end = begin + (++at - tokens.begin());
      documents.push_back({std::exchange(document_begin, end), end});
    }
  }
  if (document_begin < source.size()) documents.push_back({document_begin, source.size()});
  return documents;
}

void add_packed(Scorer& scorer, const std::vector<Range>& documents, std::int64_t seq_len) {
  std::vector<Range> row;
  std::int64_t length = 0;
  for (const Range& document : documents) {
    if (document.size() - 1 > seq_len) {
      scorer.add(document);
    } else if (document.size() > 1) {
      if (length + document.size() - 1 > seq_len) scorer.add(std::exchange(row, {})), length = 0;
      row.push_back(document);
      length += document.size() - 1;
    }
  }
  scorer.add(row);
}

}  // namespace

TokenSource::TokenSource(const std::string& file, const GetTokenizer& tokenizer, std::int64_t vocab_size, bool packed)
    : file_(file), packed_(packed) {
  data_.emplace(std::vector<std::string>{file});
  if (!data_->is_text() && data_->vocab_size() != vocab_size)
    throw CheckpointError(
        fmt::format("{}: has a vocabulary of {}, but the model one of {}", file, data_->vocab_size(), vocab_size));
  if (data_->is_text() && !tokenizer().is_bytes()) {
    data_.reset();
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    tokens_ = tokenizer().encode(text.str());
    bytes_ = static_cast<double>(text.str().size());
    if (!tokens_.empty()) bytes_ -= static_cast<double>(tokenizer().decode(std::span(tokens_).first(1)).size());
  }
  size_ = data_ ? data_->size() : static_cast<std::int64_t>(tokens_.size());
  if (packed && !separator())
    throw ValueError(fmt::format("{}: --packed needs text as bytes or a token file with a separator", file));
}

std::optional<std::int64_t> TokenSource::separator() const { return data_ ? data_->separator() : std::nullopt; }

Tokens TokenSource::read(std::int64_t begin, std::int64_t end) const {
  if (!data_) return {tokens_.begin() + begin, tokens_.begin() + end};
  Tokens tokens(static_cast<std::size_t>(end - begin));
  data_->read(begin, tokens);
  return tokens;
}

std::optional<double> TokenSource::bytes(std::int64_t predicted) const {
  if (!data_) return bytes_;
  return data_->vocab_size() == 256 ? std::optional(static_cast<double>(predicted)) : std::nullopt;
}

Metrics perplexity(const CausalLM& model, const TokenSource& source, std::int64_t seq_len) {
  const NoGradGuard no_grad;
  Scorer scorer(model, source, seq_len);
  if (source.packed()) add_packed(scorer, find_documents(source), seq_len);
  else scorer.add({0, source.size()});
  if (scorer.predicted() == 0) throw ValueError(fmt::format("{}: has one token, and none to predict from it", source.file()));
  const auto predicted = static_cast<double>(scorer.predicted());
  const double perplexity = std::exp(scorer.nats() / predicted);
  if (!std::isfinite(perplexity))
    throw std::runtime_error(fmt::format("{}: the perplexity is {}", source.file(), std::isnan(perplexity) ? "nan" : "infinite"));
  Metrics metrics{{"perplexity", perplexity}};
  if (const auto bytes = source.bytes(scorer.predicted()))
    metrics.emplace_back("bits_per_byte", scorer.nats() / std::log(2.0) / *bytes);
  metrics.emplace_back("bits_per_token", scorer.nats() / std::log(2.0) / predicted);
  metrics.emplace_back("tokens", predicted);
  return metrics;
}

}  // namespace lm
