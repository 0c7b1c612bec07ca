#include <glade/nn/models/generate.h>

#include <algorithm>
#include <cmath>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/core/graphed_function.h>
#include <glade/nn/checkpoint.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/sort/sort.h>

namespace glade::nn::models {
namespace {

using Tokens = std::vector<std::int64_t>;

void check_options(const GenerateOptions& options) {
  if (options.max_new_tokens < 0) fail<ValueError>("generate: max_new_tokens is {}, expected at least 0", options.max_new_tokens);
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    fail<ValueError>("generate: temperature is {}, expected a finite number of at least 0", options.temperature);
  if (options.top_k < 0) fail<ValueError>("generate: top_k is {}, expected at least 0", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1))
    fail<ValueError>("generate: top_p is {}, expected a value in (0, 1]", options.top_p);
  if (!(options.repetition_penalty > 0) || !std::isfinite(options.repetition_penalty))
    fail<ValueError>("generate: repetition_penalty is {}, expected a positive finite number", options.repetition_penalty);
}

/// Returns the tokens [rows, 1]. Throws ValueError if the largest logit of a row is not finite; one copy from the GPU brings
/// both.
Tokens read_tokens(const Tensor& tokens, const Tensor& largest) {
  const Tensor none = full({}, -1, {DType::int64, tokens.device()});
  Tokens result = where(eq(largest - largest, 0), tokens, none).to_vector<std::int64_t>();
  if (std::ranges::count(result, -1) > 0) fail<ValueError>("sample: the logits hold NaN, infinity, or nothing but -infinity");
  return result;
}

/// The likeliest token of each row.
Tokens greedy(const Tensor& logits) { return read_tokens(argmax(logits, -1, true), amax(logits, {-1}, true)); }

/// Draws a token for each row: the first at which the cumulative probability of the candidates exceeds the row's fraction of
/// their total. The candidates are in the order of the vocabulary; with top-k or top-p, the likeliest comes first.
Tokens draw(const Tensor& logits, const GenerateOptions& options, const std::vector<double>& fractions) {
  ValuesAndIndices candidates{to_data(logits, DType::float64), {}};
  if (options.top_k > 0 && options.top_k < logits.size(1)) candidates = topk(candidates.values, options.top_k);
  else if (options.top_p < 1) candidates = sort(candidates.values, -1, true);
  const auto& [values, order] = candidates;
  const Tensor largest = amax(values, {-1}, true), bounds = cumsum(exp((values - largest) / options.temperature), -1);
  Tensor total = slice(bounds, 1, bounds.size(1) - 1, bounds.size(1));
  // The first bound that reaches the share is the new total.
  if (options.top_p < 1) total = amin(where(lt(bounds, total * options.top_p), total, bounds), {-1}, true);
  const Tensor wanted = Tensor::from_vector(fractions, {values.size(0), 1}, values.device()) * total;
  // Rounding cannot lead beyond the last candidate.
  const Tensor position = minimum(sum(le(bounds, wanted), {-1}, true), sum(lt(bounds, total), {-1}, true));
  return read_tokens(order.defined() ? gather(order, 1, position) : position, largest);
}

std::vector<double> draw_fractions(std::int64_t rows, Generator& generator) {
  return uniform({rows}, 0, 1, {DType::float64, kCPU}, generator).to_vector<double>();
}

/// The tensors that have a row for every sequence, by name.
std::vector<std::pair<std::string, Tensor*>> parts(Conversation& conversation) {
  std::vector<std::pair<std::string, Tensor*>> result{{"logits", &conversation.logits}};
  for (std::size_t i = 0; i < conversation.states.size(); ++i) {
    AttentionState& state = conversation.states[i];
    const std::string layer = "layers." + std::to_string(i);
    result.insert(result.end(), {{layer + ".recurrent", &state.recurrent},
                                 {layer + ".q_conv", &state.q_conv},
                                 {layer + ".k_conv", &state.k_conv},
                                 {layer + ".v_conv", &state.v_conv}});
  }
  return result;
}

/// Steps that come before those of a GraphedFunction, which captures the second of its own: a batch that soon ends or loses rows
/// would not win back what a capture costs.
constexpr int kEagerSteps = 2;

/// Conversations that are continued together: rows of one batch, until they end.
class Batch {
 public:
  /// Without wants_states the conversations do not get their states back: the caller discards them.
  Batch(const CausalLM& model, std::vector<Conversation>& all, bool wants_states)
      : model_(model),
        all_(all),
        wants_states_(wants_states),
        graphed_step_(device(), [this](const Tensors& ids) { return step_in_place(ids[0]); }) {}
  Batch(const Batch&) = delete;  // graphed_step_ refers to it

  /// Reads the prompts, those of fresh conversations and of others apart, and makes a batch of all.
  void read(const std::vector<Tokens>& prompts) {
    std::vector<std::size_t> fresh, begun, all;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      all.push_back(i);
      if (!prompts[i].empty()) (all_[i].length == 0 ? fresh : begun).push_back(i);
    }
    if (!fresh.empty()) read(prompts, fresh);
    if (!begun.empty()) read(prompts, begun);
    if (rows_ != all) gather(all);
  }

  /// The conversations that have not ended.
  const std::vector<std::size_t>& rows() const { return rows_; }

  /// A token for each of rows(). `fractions` are for all conversations, so that no draw depends on who has ended.
  Tokens draw_tokens(const GenerateOptions& options, const std::vector<double>& fractions) const {
    const Tensor logits = options.repetition_penalty == 1 ? batch_.logits : penalized_logits(options.repetition_penalty);
    if (options.temperature == 0) return greedy(logits);
    std::vector<double> own(rows_.size());
    std::ranges::transform(rows_, own.begin(), [&](std::size_t row) { return fractions[row]; });
    return draw(logits, options, own);
  }

  /// Reads a token for each of rows().
  void step(const Tokens& tokens) {
    for (std::size_t i = 0; i < rows_.size(); ++i) note(all_[rows_[i]], tokens[i]);
    const Tensor ids = Tensor::from_vector(tokens, {static_cast<std::int64_t>(tokens.size()), 1});
    const bool has_hooks = model_.model.hooks.before || model_.model.hooks.after;  // which may move parameters
    if (has_hooks || steps_++ < kEagerSteps) batch_.logits = forward(ids, batch_.states);
    else graphed_step_({ids});
  }

  /// Goes on without the rows that have ended, which go back into their conversations.
  void drop(const std::vector<bool>& ended) {
    Tokens kept;
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < ended.size(); ++i) {
      if (ended[i]) scatter(i);
      else kept.push_back(static_cast<std::int64_t>(i)), rows.push_back(rows_[i]);
    }
    if (rows.size() == rows_.size()) return;
    rows_ = rows;
    steps_ = 0;
    for (const auto& [name, x] : parts(batch_))
      if (x->defined()) *x = index_select(*x, 0, Tensor::from_vector(kept, device()));
  }

 private:
  Device device() const { return model_.model.embeddings.weight.device(); }

  /// The logits after a token for each row, ids [rows, 1].
  Tensor forward(const Tensor& ids, AttentionStates& states) const {
    return model_.lm_head(select(model_.model.forward(to_data(ids, device()), &states, {}), 1, -1));
  }

  /// forward() with the batch staying where it is in memory, as replays of a CUDA graph need it.
  Tensors step_in_place(const Tensor& ids) {
    Conversation next = batch_;
    for (AttentionState& state : next.states) state.in_place = true;
    next.logits = forward(ids, next.states);
    const auto from = parts(next), to = parts(batch_);
    for (std::size_t k = 0; k < to.size(); ++k)
      if (!from[k].second->is_same(*to[k].second)) copy_data(*to[k].second, *from[k].second);
    return {};
  }

  Tensor penalized_logits(double penalty) const {
    Tensors seen(rows_.size());
    std::ranges::transform(rows_, seen.begin(), [&](std::size_t row) { return all_[row].seen; });
    const Tensor logits = to_data(batch_.logits, DType::float64);
    return where(to_data(stack(seen), device()), where(gt(logits, 0), logits / penalty, logits * penalty), logits);
  }

  static void note(Conversation& conversation, std::int64_t token) {
    ++conversation.length;
    conversation.seen.data<bool>()[token] = true;
  }

  void read(const std::vector<Tokens>& prompts, const std::vector<std::size_t>& rows) {
    Tokens ids, boundaries{0}, last;
    for (const std::size_t row : rows) {
      // A copy: the caller's conversation stays as it was if this call fails.
      Tensor& seen = all_[row].seen;
      seen = seen.defined() ? clone(seen) : zeros({model_.model.embeddings.weight.size(0)}, {DType::boolean, kCPU});
      for (const std::int64_t token : prompts[row]) note(all_[row], token);
      ids.insert(ids.end(), prompts[row].begin(), prompts[row].end());
      boundaries.push_back(static_cast<std::int64_t>(ids.size()));
      last.push_back(boundaries.back() - 1);
    }
    gather(rows);
    const Tensor packed = Tensor::from_vector(ids, {1, boundaries.back()}, device());
    const Tensor hidden = model_.model.forward(packed, &batch_.states, Tensor::from_vector(boundaries));
    batch_.logits = model_.lm_head(index_select(select(hidden, 0, 0), 0, Tensor::from_vector(last, device())));
    for (std::size_t i = 0; i < rows.size(); ++i) scatter(i);
  }

  /// Makes the batch of these conversations.
  void gather(const std::vector<std::size_t>& rows) {
    rows_ = rows;
    batch_ = all_[rows[0]];  // for the number of layers
    const auto joined = parts(batch_);
    std::vector<Tensors> columns(joined.size());
    for (const std::size_t row : rows) {
      const auto own = parts(all_[row]);
      for (std::size_t k = 0; k < own.size(); ++k) columns[k].push_back(*own[k].second);
    }
    for (std::size_t k = 0; k < joined.size(); ++k)
      if (columns[k][0].defined()) *joined[k].second = cat(columns[k], 0);
  }

  /// Puts row i of the batch into its conversation.
  void scatter(std::size_t i) {
    if (!wants_states_) return;
    Conversation& conversation = all_[rows_[i]];
    conversation.states.resize(batch_.states.size());
    const auto joined = parts(batch_), own = parts(conversation);
    const auto at = static_cast<std::int64_t>(i);
    for (std::size_t k = 0; k < joined.size(); ++k)
      if (const Tensor& x = *joined[k].second; x.defined()) *own[k].second = clone(slice(x, 0, at, at + 1));
  }

  const CausalLM& model_;
  std::vector<Conversation>& all_;
  const bool wants_states_;
  std::vector<std::size_t> rows_;
  Conversation batch_;  ///< of all rows_
  int steps_ = 0;       ///< of these rows
  GraphedFunction graphed_step_;
};

void check_prompts(const std::vector<Tokens>& prompts, const std::vector<Conversation>& conversations, const CausalLM& model) {
  if (prompts.size() != conversations.size())
    fail<ValueError>("generate: {} prompts for {} conversations", prompts.size(), conversations.size());
  const std::int64_t classes = model.model.embeddings.weight.size(0);
  const std::size_t layers = model.model.layers.size();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty() && conversations[i].length == 0) fail<ValueError>("generate: prompt {} is empty", i);
    if (conversations[i].length > 0 && conversations[i].states.size() != layers)
      fail<ValueError>("generate: conversation {} has {} layers, expected {}", i, conversations[i].states.size(), layers);
    if (const Tensor& seen = conversations[i].seen; seen.defined() && seen.numel() != classes)
      fail<ValueError>("generate: conversation {} is of a model with {} tokens, expected {}", i, seen.numel(), classes);
    for (const std::int64_t token : prompts[i])
      if (token < 0 || token >= classes) fail<IndexError>("generate: token {} in prompt {}, expected [0, {})", token, i, classes);
  }
}

StateDict state_of(const Conversation& conversation) {
  Conversation copy = conversation;
  StateDict state{{"seen", conversation.seen}};
  for (const auto& [name, x] : parts(copy))
    if (x->defined()) state.emplace(name, *x);
  return state;
}

}  // namespace

std::vector<std::int64_t> sample(const Tensor& logits, const GenerateOptions& options, Generator& generator) {
  check_options(options);
  if (logits.ndim() != 2 || logits.numel() == 0)
    fail<ShapeError>("sample: logits is {}, expected [batch, vocabulary]", logits.shape());
  if (options.temperature == 0) return greedy(logits);
  NoGradGuard no_grad;
  return draw(logits, options, draw_fractions(logits.size(0), generator));
}

std::vector<Tokens> CausalLM::generate(const std::vector<Tokens>& prompts, const GenerateOptions& options,
                                       std::vector<Conversation>* conversations) const {
  check_options(options);
  std::vector<Conversation> fresh(conversations == nullptr || conversations->empty() ? prompts.size() : 0);
  if (conversations != nullptr && conversations->empty()) *conversations = fresh;
  std::vector<Conversation>& all = conversations != nullptr ? *conversations : fresh;
  check_prompts(prompts, all, *this);
  std::vector<Tokens> result = prompts;
  if (prompts.empty()) return result;

  NoGradGuard no_grad;
  Generator generator(options.seed);
  Batch batch(*this, all, conversations != nullptr);
  batch.read(prompts);
  for (std::int64_t t = 0; t < options.max_new_tokens && !batch.rows().empty(); ++t) {
    const Tokens tokens = batch.draw_tokens(options, draw_fractions(static_cast<std::int64_t>(prompts.size()), generator));
    Tokens shown(prompts.size(), -1);
    std::vector<bool> ended;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t row = batch.rows()[i];
      result[row].push_back(tokens[i]);
      shown[row] = tokens[i];
      ended.push_back(t + 1 == options.max_new_tokens || std::ranges::count(options.stop_tokens, tokens[i]) > 0);
    }
    if (options.on_tokens) options.on_tokens(shown);
    const bool all_ended = std::ranges::count(ended, false) == 0;
    if (all_ended && conversations == nullptr) break;  // nobody wants the states after these tokens
    batch.step(tokens);
    batch.drop(ended);
  }
  return result;
}

Tensor CausalLM::generate(const Tensor& prompt, const GenerateOptions& options) const {
  check_options(options);
  if (prompt.ndim() != 2 || prompt.numel() == 0)
    fail<ShapeError>("generate: prompt is {}, expected [batch, tokens], not empty", prompt.shape());
  if (prompt.dtype() != DType::int64) fail<DTypeError>("generate: prompt is {}, expected int64", prompt.dtype());
  const std::vector<std::int64_t> values = prompt.to_vector<std::int64_t>();
  std::vector<Tokens> prompts;
  for (auto row = values.begin(); row != values.end(); row += prompt.size(1)) prompts.emplace_back(row, row + prompt.size(1));
  Tokens ids;
  for (Tokens& row : generate(prompts, options)) {
    row.resize(static_cast<std::size_t>(prompt.size(1) + options.max_new_tokens), row.back());
    ids.insert(ids.end(), row.begin(), row.end());
  }
  return Tensor::from_vector(ids, {prompt.size(0), prompt.size(1) + options.max_new_tokens}, prompt.device());
}

void save_conversation(const std::string& path, const Conversation& conversation, const CausalLM& model) {
  if (conversation.length == 0) fail<ValueError>("save_conversation: the conversation has not begun");
  Checkpoint checkpoint;
  checkpoint.step = conversation.length;
  checkpoint.config = model.config_json();
  checkpoint.data = state_of(conversation);
  nn::save(checkpoint, path);
}

Conversation load_conversation(const std::string& path, const CausalLM& model) {
  const Checkpoint checkpoint = nn::load(path);
  if (checkpoint.config != model.config_json()) fail<CheckpointError>("{}: the config is that of another model", path);
  if (checkpoint.step <= 0) fail<CheckpointError>("{}: a conversation of {} tokens", path, checkpoint.step);
  std::vector<Conversation> conversation(1);  // any, for the shapes
  model.generate({{0}}, {.max_new_tokens = 0}, &conversation);
  const StateDict expected = state_of(conversation[0]);
  try {
    check_state("/data", {expected.begin(), expected.end()}, infos_of(checkpoint.data));
  } catch (const ValueError& error) {
    fail<CheckpointError>("{}: {}", path, error.what());
  }
  for (const auto& [name, x] : parts(conversation[0]))
    if (x->defined()) *x = to_data(to_data(checkpoint.data.at(name), x->dtype()), x->device());
  conversation[0].seen = checkpoint.data.at("seen");
  conversation[0].length = checkpoint.step;
  return conversation[0];
}

}  // namespace glade::nn::models
