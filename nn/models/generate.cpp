// Drawing tokens from a model.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade::nn::models {
namespace {

void check_options(const GenerateOptions& options) {
  if (options.max_new_tokens < 0) fail<ValueError>("generate: max_new_tokens is {}, expected at least 0", options.max_new_tokens);
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    fail<ValueError>("generate: temperature is {}, expected a finite number of at least 0", options.temperature);
  if (options.top_k < 0) fail<ValueError>("generate: top_k is {}, expected at least 0", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1))
    fail<ValueError>("generate: top_p is {}, expected a value in (0, 1]", options.top_p);
}

/// The token at which the summed probabilities of the candidates, likeliest first, pass `fraction` of their total.
std::int64_t draw(std::span<const double> logits, const GenerateOptions& options, double fraction) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < order.size()) order.resize(options.top_k);

  std::vector<double> weights;
  double total = 0;
  for (const std::int64_t token : order)
    total += weights.emplace_back(std::exp((logits[token] - logits[order[0]]) / options.temperature));
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && kept < options.top_p * total) kept += weights[count++];

  const double wanted = fraction * kept;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    if ((sum += weights[i]) > wanted) return order[i];
  return order[count - 1];
}

}  // namespace

std::vector<std::int64_t> sample(const Tensor& logits, const GenerateOptions& options, Generator& generator) {
  check_options(options);
  if (logits.ndim() != 2 || logits.numel() == 0)
    fail<ShapeError>("sample: logits is {}, expected [batch, vocabulary]", logits.shape());
  if (options.temperature == 0) return argmax(logits, -1).to_vector<std::int64_t>();
  const auto rows = static_cast<std::size_t>(logits.size(0)), classes = static_cast<std::size_t>(logits.size(1));
  const std::vector<double> values = logits.to_vector<double>();
  const std::vector<double> fractions = uniform({logits.size(0)}, 0, 1, {DType::float64, kCPU}, generator).to_vector<double>();
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < rows; ++i)
    tokens.push_back(draw(std::span(values).subspan(i * classes, classes), options, fractions[i]));
  return tokens;
}

Tensor CausalLM::generate(const Tensor& prompt, const GenerateOptions& options) const {
  check_options(options);
  if (prompt.ndim() != 2 || prompt.numel() == 0)
    fail<ShapeError>("generate: prompt is {}, expected [batch, tokens], not empty", prompt.shape());
  if (prompt.dtype() != DType::int64) fail<DTypeError>("generate: prompt is {}, expected int64", prompt.dtype());
  NoGradGuard no_grad;
  Generator generator(options.seed);
  const std::int64_t batch = prompt.size(0), length = prompt.size(1), total = length + options.max_new_tokens;
  const Tensor ids = empty({batch, total}, {DType::int64, kCPU});
  copy_data(slice(ids, 1, 0, length), prompt);
  AttentionStates states;
  Tensor next = prompt;
  for (std::int64_t t = length; t < total; ++t) {
    const Tensor hidden = model.forward(next, &states, {});
    const std::vector<std::int64_t> tokens = sample(lm_head(select(hidden, 1, -1)), options, generator);
    next = Tensor::from_vector(tokens, {batch, 1}, prompt.device());
    copy_data(slice(ids, 1, t, t + 1), next);
    if (options.on_tokens) options.on_tokens(tokens);
  }
  return to_data(ids, prompt.device());
}

}  // namespace glade::nn::models
