// Run by distributed_test under mpirun: sequences whose tokens are shared out over the ranks. Every rank runs every test, on the
// same random sequences, of which it computes its part.
#include <glade/ops/collective/sequence_parallel.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

const ProcessGroup& world() {
  static const ProcessGroup group = ProcessGroup::world();
  return group;
}

/// Where this rank's tokens begin and end: `uneven`: rank 0 has more than half of them.
std::pair<std::int64_t, std::int64_t> tokens_of(std::int64_t total, bool uneven = false) {
  if (!uneven) return world().share(total);
  const std::int64_t rank = world().rank(), others = world().size() - 1;
  const auto begin_of = [&](std::int64_t r) { return r == 0 ? 0 : r > others ? total : total - (others - r + 1) * (total / 9); };
  return {begin_of(rank), begin_of(rank + 1)};
}

/// This rank's tokens, as a leaf of its own.
Tensor part(const Tensor& x, std::pair<std::int64_t, std::int64_t> tokens) {
  return clone(slice(x.detach(), 1, tokens.first, tokens.second));
}

Tensor sum_over_ranks(const Tensor& x) {
  Tensor y = clone(x.detach());
  world().all_reduce({y}).wait();
  return y;
}

void expect_near(const Tensor& actual, const Tensor& expected, const std::string& what, double tolerance = 1e-12) {
  ASSERT_EQ(actual.shape(), expected.shape()) << what;
  EXPECT_LE(relative_error(actual, expected), tolerance) << what;
}

/// Whether an argument has tokens, of which a rank has a part.
bool has_tokens(const RecurrenceArguments& arguments, const Tensor& x) {
  return &x != &arguments.options.g_gamma && &x != &arguments.options.initial_state;
}

/// The gradients of a rank's arguments against those of the whole: of what has tokens a part, of the rest the sum over the ranks.
/// `among_all` puts the gradient of such a one where the whole has it.
template <class F>
void expect_gradients(RecurrenceArguments& mine, RecurrenceArguments& whole, const RecurrenceReference& expected,
                      std::pair<std::int64_t, std::int64_t> tokens, const F& among_all) {
  const auto named = mine.named();
  for (std::size_t i = 0; i < named.size(); ++i) {
    const auto& [name, argument] = named[i];
    const Tensor& x = *argument;
    if (!x.defined()) continue;
    ASSERT_TRUE(x.grad().defined()) << name;
    const std::string what = std::string("gradient of ") + name;
    const Tensor of_whole = like(expected.gradient(i), *whole.named()[i].second);
    if (has_tokens(mine, x)) expect_near(x.grad(), part(of_whole, tokens), what);
    else expect_near(sum_over_ranks(among_all(x)), of_whole, what);
  }
}

/// What a rank's loss depends on.
struct Uses {
  bool output = true, state = true;
};

/// Outputs, final states and gradients against the reference of the whole sequences, in float64.
void expect_matches_whole(const Spec& spec, Algorithm algorithm, bool uneven = false, Uses uses = {}) {
  SCOPED_TRACE(spec.str() + " " + algorithm_name(algorithm) + " rank " + std::to_string(world().rank()));
  RecurrenceArguments whole = make(spec, kCPU);
  const Tensor grad_o = random_tensor({spec.B, spec.T, spec.H, spec.V}),
               grad_state = random_tensor({spec.B, spec.H, spec.K, spec.V});
  const RecurrenceReference expected = recurrence_reference(whole, uses.output ? grad_o.to_vector<double>() : Values(),
                                                            uses.state ? grad_state.to_vector<double>() : Values());
  const auto tokens = tokens_of(spec.T, uneven);

  RecurrenceArguments mine = whole;
  mine.options.algorithm = algorithm;
  for (const auto& [name, argument] : mine.named()) {
    Tensor& x = *argument;
    if (!x.defined()) continue;
    x = has_tokens(mine, x) ? part(x, tokens) : clone(x.detach());
    x.set_requires_grad();
  }
  const auto [o, state] = recurrent(mine.query, mine.key, mine.value, mine.options, world());
  expect_near(o, part(like(expected.o, grad_o), tokens), "output");
  expect_near(state, like(expected.final_state, grad_state), "final state");

  // Every rank's loss counts its own outputs, and its share of the final state.
  Tensors results, gradients;
  if (uses.output) results.push_back(o), gradients.push_back(part(grad_o, tokens));
  if (uses.state) {
    results.push_back(state);
    gradients.push_back(grad_state * (2.0 * (world().rank() + 1) / (world().size() * (world().size() + 1))));
  }
  autograd::backward(results, gradients);
  expect_gradients(mine, whole, expected, tokens, [](const Tensor& x) { return x.grad(); });
  const int first = spec.reverse ? world().size() - 1 : 0;
  if (spec.state != 0 && world().rank() != first) {
    EXPECT_EQ(relative_error(mine.options.initial_state.grad(), zeros_like(mine.options.initial_state)), 0);
  }
}

TEST(SequenceParallel, RecurrenceOfEveryGateMatchesTheReference) {
  for (const char* gates : {"", "g", "c", "m", "n", "k", "v", "gk", "ck", "kv", "gmk", "gmkv"})
    for (const bool reverse : {false, true})
      for (const int state : {0, 3, 4}) {
        const std::string all = gates;
        const Spec spec{.B = all.find('n') != std::string::npos ? 2 : 1 + state % 2,
                        .T = 37,
                        .gates = gates,
                        .state = state,
                        .reverse = reverse};
        expect_matches_whole(spec, Algorithm::recurrent);
        if (all.find('v') == std::string::npos) expect_matches_whole(spec, Algorithm::chunk);
      }
}

TEST(SequenceParallel, RecurrenceOfSegmentsLongerThanAChunk) {
  for (const char* gates : {"", "g", "m", "k"})
    for (const bool reverse : {false, true}) {
      const Spec spec{.T = 701, .H = 2, .Hkv = 1, .K = 12, .V = 9, .gates = gates, .state = 4, .reverse = reverse, .gate = -0.01};
      for (const bool uneven : {false, true}) expect_matches_whole(spec, Algorithm::automatic, uneven);
    }
}

TEST(SequenceParallel, RecurrenceWithFewerTokensThanRanks) {
  for (const std::int64_t T : {1, 2, 3})
    for (const bool reverse : {false, true})
      expect_matches_whole({.T = T, .gates = "gkv", .state = 4, .reverse = reverse}, Algorithm::recurrent);
}

/// Row i of `rows` is that of sequence first + i of `count`, whose other rows are zeros.
Tensor among_all(const Tensor& rows, std::int64_t first, std::int64_t count) {
  Shape shape = rows.shape();
  shape[0] = count;
  const Tensor all = zeros(shape, rows.options());
  copy_data(slice(all, 0, first, first + rows.size(0)), rows.detach());
  return all;
}

/// The same for packed sequences: a rank knows those of which it has tokens, and its loss counts the states of those that end
/// there.
void expect_packed_matches_whole(const Spec& spec, Algorithm algorithm, bool uneven, Uses uses = {}) {
  SCOPED_TRACE(spec.str() + " " + algorithm_name(algorithm) + " rank " + std::to_string(world().rank()));
  RecurrenceArguments whole = make(spec, kCPU);
  const auto count = static_cast<std::int64_t>(spec.starts.size()) - 1;
  const Tensor grad_o = random_tensor({1, spec.T, spec.H, spec.V}), grad_state = random_tensor({count, spec.H, spec.K, spec.V});
  const RecurrenceReference expected = recurrence_reference(whole, uses.output ? grad_o.to_vector<double>() : Values(),
                                                            uses.state ? grad_state.to_vector<double>() : Values());
  const auto tokens = tokens_of(spec.T, uneven);
  const Tensor cu_seqlens = share_sequences(whole.options.cu_seqlens, tokens);
  const auto boundaries = cu_seqlens.to_vector<std::int64_t>();
  const std::int64_t own = cu_seqlens.numel() - 1;
  const auto first = std::distance(spec.starts.begin(), std::ranges::find(spec.starts, boundaries[0] + tokens.first));

  RecurrenceArguments mine = whole;
  mine.options.algorithm = algorithm;
  mine.options.cu_seqlens = cu_seqlens;
  const auto is_per_sequence = [&](const Tensor& x, std::int64_t rows) {
    return (&x == &mine.options.g_gamma && x.ndim() == 2 && x.size(0) == rows) ||
           (&x == &mine.options.initial_state && x.ndim() == 4);
  };
  for (const auto& [name, argument] : mine.named()) {
    Tensor& x = *argument;
    if (!x.defined()) continue;
    if (has_tokens(mine, x)) x = part(x, tokens);
    else if (is_per_sequence(x, count)) x = clone(slice(x.detach(), 0, first, first + own));
    else x = clone(x.detach());
    x.set_requires_grad();
  }
  const auto [o, state] = recurrent(mine.query, mine.key, mine.value, mine.options, world());
  expect_near(o, part(like(expected.o, grad_o), tokens), "output");
  const Tensor ends = ones({own, 1, 1, 1}, {DType::float64, kCPU});  // which of them are at their end
  if (spec.reverse ? boundaries.front() < 0 : boundaries.back() > tokens.second - tokens.first)
    *(ends.data<double>() + (spec.reverse ? 0 : own - 1)) = 0;
  expect_near(state * ends, slice(like(expected.final_state, grad_state), 0, first, first + own) * ends, "final state");

  Tensors results, gradients;
  if (uses.output) results.push_back(o), gradients.push_back(part(grad_o, tokens));
  if (uses.state) results.push_back(state), gradients.push_back(slice(grad_state, 0, first, first + own) * ends);
  autograd::backward(results, gradients);
  expect_gradients(mine, whole, expected, tokens,
                   [&](const Tensor& x) { return is_per_sequence(x, own) ? among_all(x.grad(), first, count) : x.grad(); });
}

TEST(SequenceParallel, PackedRecurrenceOfEveryGateMatchesTheReference) {
  const std::vector<std::vector<std::int64_t>> packings{{0, 5, 6, 24, 37},      {0, 19, 37}, {0, 37},
                                                        {0, 3, 10, 19, 28, 37}, {0, 36, 37}, {0, 12, 12, 13, 14, 30, 31, 37}};
  std::size_t i = 0;
  for (const char* gates : {"", "g", "c", "m", "n", "k", "v", "gk", "ck", "kv", "gmk", "gmkv"})
    for (const bool reverse : {false, true})
      for (int packing = 0; packing < 3; ++packing, ++i) {
        const Spec spec{.B = 1,
                        .T = 37,
                        .gates = gates,
                        .state = std::array{0, 3, 4, 4}[i % 4],
                        .reverse = reverse,
                        .starts = packings[i % packings.size()]};
        const bool has_chunk = std::string(gates).find('v') == std::string::npos;
        expect_packed_matches_whole(spec, has_chunk && i % 2 == 1 ? Algorithm::chunk : Algorithm::recurrent, i % 5 == 4);
      }
  for (const bool reverse : {false, true}) {
    const Spec spec{.B = 1, .T = 37, .gates = "gmkv", .state = 4, .reverse = reverse, .starts = packings[0]};
    expect_packed_matches_whole(spec, Algorithm::recurrent, false, {.state = false});
    expect_packed_matches_whole(spec, Algorithm::recurrent, false, {.output = false});
  }
}

TEST(SequenceParallel, PackedRecurrenceOfSegmentsLongerThanAChunk) {
  for (const char* gates : {"", "g", "m", "k"})
    expect_packed_matches_whole({.B = 1,
                                 .T = 701,
                                 .H = 2,
                                 .Hkv = 1,
                                 .K = 12,
                                 .V = 9,
                                 .gates = gates,
                                 .state = 4,
                                 .starts = {0, 90, 600, 640, 701},
                                 .gate = -0.01},
                                Algorithm::automatic, false);
}

TEST(SequenceParallel, GradientsFromOutputsOrFinalStatesAlone) {
  for (const bool reverse : {false, true}) {
    const Spec spec{.T = 30, .gates = "gmkv", .state = 4, .reverse = reverse};
    expect_matches_whole(spec, Algorithm::recurrent, true, {.state = false});
    expect_matches_whole(spec, Algorithm::recurrent, true, {.output = false});
  }
}

TEST(SequenceParallel, AllRanksGetTheSameBitsOfTheFinalState) {
  RecurrenceArguments x = make({.T = 40, .gates = "k"}, kCPU, DType::float32);
  const auto tokens = tokens_of(40);
  x.options.gk = part(x.options.gk, tokens);
  const Tensor state = recurrent(part(x.query, tokens), part(x.key, tokens), part(x.value, tokens), x.options, world()).second;
  const Tensor of_zero = clone(state);
  world().broadcast(Tensors{of_zero}).wait();
  EXPECT_EQ(state.to_vector<float>(), of_zero.to_vector<float>());
}

TEST(SequenceParallel, RefusesWhatItCannotDo) {
  const Tensor x = random_tensor({1, 8, 2, 4}), borders = Tensor::from_vector(std::vector<std::int64_t>{0, 8});
  RecurrentOptions packed;
  packed.cu_seqlens = borders + 1;
  EXPECT_TRUE(throws_with<ValueError>([&] { recurrent(x, x, x, packed, world()); }, "goes from 1 over 9 and 1 to 9: expected"));
  packed.cu_seqlens = Tensor::from_vector(std::vector<std::int64_t>{-1, 9});
  if (world().rank() == 0 || world().rank() == world().size() - 1) {
    EXPECT_TRUE(throws_with<ValueError>([&] { recurrent(x, x, x, packed, world()); }, "outside of the tokens of all ranks"));
  }
  EXPECT_TRUE(throws_with<ValueError>([&] { share_sequences(borders, {3, 9}); }, "tokens 3 to 9"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { recurrent(x, x, random_tensor({1, 7, 2, 4}), {}, world()); }, "[1, 7, 2, 4]"));
  const Tensor rows = random_tensor({1, 8, 3}), weight = random_tensor({3, 4});
  EXPECT_TRUE(
      throws_with<ValueError>([&] { short_convolution(rows, weight, {.cu_seqlens = borders + 1}, world()); }, "expected"));
  EXPECT_TRUE(throws_with<ValueError>([&] { short_convolution(random_tensor({1, 2, 3}), weight, {}, world()); }, "at least 3"));
  const std::int64_t differs = world().rank() == 0 ? 2 : 8;
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { short_convolution(zeros({1, differs, 3}, weight.options()), weight, {}, world()); }, "rank"));
}

/// The arguments of short_convolution, as leaves.
struct Convolution {
  Tensor x, weight, bias, initial_state;
  Convolution copy(std::pair<std::int64_t, std::int64_t> tokens) const {
    Convolution c{part(x, tokens), clone(weight.detach()), clone(bias.detach()), {}};
    if (initial_state.defined()) c.initial_state = clone(initial_state.detach()).set_requires_grad();
    for (const Tensor& leaf : {c.x, c.weight, c.bias}) Tensor(leaf).set_requires_grad();
    return c;
  }
  ShortConvolutionOptions options() const { return {.bias = bias, .silu = true, .initial_state = initial_state}; }
};

TEST(SequenceParallel, ShortConvolutionMatchesOneProcess) {
  for (const bool with_state : {false, true})
    for (const bool uneven : {false, true})
      for (const Uses uses : {Uses{}, Uses{.state = false}, Uses{.output = false}}) {
        constexpr std::int64_t kTokens = 39;
        const Convolution whole{random_tensor({2, kTokens, 5}), random_tensor({5, 4}), random_tensor({5}),
                                with_state ? random_tensor({2, 5, 3}) : Tensor()};
        const Tensor grad_y = random_tensor({2, kTokens, 5}), grad_state = random_tensor({2, 5, 3});
        const auto tokens = tokens_of(kTokens, uneven);
        const Convolution alone = whole.copy({0, kTokens}), mine = whole.copy(tokens);
        const auto [y, state] = short_convolution(alone.x, alone.weight, alone.options());
        const auto [my_y, my_state] = short_convolution(mine.x, mine.weight, mine.options(), world());
        expect_near(my_y, part(y, tokens), "output");
        expect_near(my_state, state.detach(), "final state");
        Tensors results, gradients, my_results, my_gradients;
        if (uses.output) {
          results.push_back(y), gradients.push_back(grad_y);
          my_results.push_back(my_y), my_gradients.push_back(part(grad_y, tokens));
        }
        if (uses.state) {
          results.push_back(state), gradients.push_back(grad_state);
          my_results.push_back(my_state), my_gradients.push_back(grad_state / static_cast<double>(world().size()));
        }
        autograd::backward(results, gradients);
        autograd::backward(my_results, my_gradients);
        expect_near(mine.x.grad(), part(alone.x.grad(), tokens), "gradient of x");
        if (with_state) expect_near(sum_over_ranks(mine.initial_state.grad()), alone.initial_state.grad(), "of initial_state");
        if (!uses.output) continue;
        expect_near(sum_over_ranks(mine.weight.grad()), alone.weight.grad(), "gradient of weight");
        expect_near(sum_over_ranks(mine.bias.grad()), alone.bias.grad(), "gradient of bias");
      }
}

TEST(SequenceParallel, PackedShortConvolutionMatchesOneProcess) {
  constexpr std::int64_t kTokens = 39;
  for (const std::vector<std::int64_t>& starts : std::vector<std::vector<std::int64_t>>{
           {0, 4, 5, 25, 39}, {0, 20, 39}, {0, 39}, {0, 8, 9, 10, 18, 19, 20, 28, 29, 30, 38, 39}})
    for (const bool with_state : {false, true})
      for (const bool uneven : {false, true}) {
        const auto count = static_cast<std::int64_t>(starts.size()) - 1;
        const Convolution whole{random_tensor({1, kTokens, 5}), random_tensor({5, 4}), random_tensor({5}),
                                with_state ? random_tensor({count, 5, 3}) : Tensor()};
        const Tensor grad_y = random_tensor({1, kTokens, 5}), grad_state = random_tensor({count, 5, 3});
        const auto tokens = tokens_of(kTokens, uneven);
        const Convolution alone = whole.copy({0, kTokens});
        Convolution mine = whole.copy(tokens);
        const Tensor all = Tensor::from_vector(starts), own = share_sequences(all, tokens);
        const auto boundaries = own.to_vector<std::int64_t>();
        const std::int64_t n = own.numel() - 1;
        const auto first = std::distance(starts.begin(), std::ranges::find(starts, boundaries[0] + tokens.first));
        const auto rows = [&](const Tensor& x) { return slice(x.detach(), 0, first, first + n); };
        if (with_state) mine.initial_state = clone(rows(whole.initial_state)).set_requires_grad();
        const auto run = [](const Convolution& c, const Tensor& cu_seqlens, const ProcessGroup& group) {
          ShortConvolutionOptions options = c.options();
          options.cu_seqlens = cu_seqlens;
          return short_convolution(c.x, c.weight, options, group);
        };
        const auto [y, state] = run(alone, all, {});
        const auto [my_y, my_state] = run(mine, own, world());
        const Tensor ends = ones({n, 1, 1}, {DType::float64, kCPU});
        if (boundaries.back() > tokens.second - tokens.first) ends.data<double>()[n - 1] = 0;
        expect_near(my_y, part(y, tokens), "output");
        expect_near(my_state * ends, rows(state) * ends, "final state");
        autograd::backward({y, state}, {grad_y, grad_state});
        autograd::backward({my_y, my_state}, {part(grad_y, tokens), rows(grad_state) * ends});
        expect_near(mine.x.grad(), part(alone.x.grad(), tokens), "gradient of x");
        expect_near(sum_over_ranks(mine.weight.grad()), alone.weight.grad(), "gradient of weight");
        expect_near(sum_over_ranks(mine.bias.grad()), alone.bias.grad(), "gradient of bias");
        if (with_state)
          expect_near(sum_over_ranks(among_all(mine.initial_state.grad(), first, count)), alone.initial_state.grad(),
                      "of initial_state");
      }
}

TEST(SequenceParallel, TheSequencesOfARanksTokens) {
  const Tensor all = Tensor::from_vector(std::vector<std::int64_t>{0, 10, 25, 40});
  const auto of = [&](std::int64_t begin, std::int64_t end) {
    return share_sequences(all, {begin, end}).to_vector<std::int64_t>();
  };
  using V = std::vector<std::int64_t>;
  EXPECT_EQ(of(0, 40), (V{0, 10, 25, 40}));
  EXPECT_EQ(of(20, 40), (V{-10, 5, 20}));
  EXPECT_EQ(of(10, 20), (V{0, 15}));
  EXPECT_EQ(of(12, 25), (V{-2, 13}));
  EXPECT_EQ(of(12, 13), (V{-2, 13}));
}

}  // namespace
}  // namespace glade
