// Passes for dq, dk and dv that run at the same time on Hopper GPUs, in wide blocks for more than 128 keys.
#include <cmath>

#include <glade/core/dtype.h>
#include <glade/core/graph.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

using PassesAtOnce = testing::Test;

/// A call whose gradients come from so many passes at the same time. No gate has a gradient, but the states may.
struct Call {
  RecurrenceArguments x;
  Tensors leaves, gradients;  ///< the latter of the results

  Call(const Spec& spec, int at_once, DType dtype = DType::bfloat16) : x(make(spec, hopper_or_cpu(), dtype)) {
    x.options.algorithm = Algorithm::chunk;
    leaves = {x.query.set_requires_grad(), x.key.set_requires_grad(), x.value.set_requires_grad()};
    gradients = {random_tensor({x.query.size(0), x.query.size(1), x.query.size(2), x.value.size(3)}, hopper_or_cpu(), dtype)};
    if (x.options.initial_state.defined()) {
      leaves.push_back(x.options.initial_state.set_requires_grad());
      gradients.push_back(random_tensor({x.options.initial_state.shape()}, hopper_or_cpu(), DType::float32));
    }
    const AttentionPlan made = plan_of(x);
    EXPECT_EQ(made.backward.at_once, at_once) << spec.str() << '\n' << made.to_string();
  }
  Tensors run() const {
    const auto [o, state] = recurrent(x.query, x.key, x.value, x.options);
    return autograd::grad(gradients.size() > 1 ? Tensors{o, state} : Tensors{o}, leaves, gradients);
  }
};

void expect_matches_steps(const Spec& spec, int at_once, DType dtype = DType::bfloat16) {
  Call call(spec, at_once, dtype);
  if (is_planned_alone(call.x)) return;
  const Tensors chunks = call.run();
  call.x.options.algorithm = Algorithm::recurrent;
  expect_gradients_match(chunks, call.run(), spec.str());
}

/// Heads of two sequences that have so many passes at the same time. On a GPU of 132 multiprocessors those for dq and dk run so
/// for 23 to 33 heads of sequences, and that for dv with them for up to 22.
std::int64_t heads_of(int at_once) { return at_once == 3 ? 9 : 14; }

TEST_F(PassesAtOnce, MatchTheRecurrentAlgorithm) {
  int i = 0;
  for (const std::int64_t K : {136, 192, 256})
    for (const std::int64_t V : {152, 256})
      for (const char* gates : {"", "m"}) {
        const int at_once = ++i % 2 == 0 ? 3 : 2;
        const std::int64_t H = heads_of(at_once);
        const Spec spec{.B = 2, .T = 1030 + 37 * i, .H = H, .Hkv = H, .K = K, .V = V, .gates = gates, .state = i % 4 < 2 ? 0 : 4};
        expect_matches_steps(spec, at_once, i % 5 == 0 ? DType::float16 : DType::bfloat16);
      }
}

/// Heads that share keys: dk is added up, so that dv waits for it.
TEST_F(PassesAtOnce, FewerHeadsOfKeys) {
  for (const char* gates : {"", "m"})
    expect_matches_steps({.B = 2, .T = 1100, .H = 12, .Hkv = 4, .K = 160, .V = 200, .gates = gates, .state = 4}, 2);
}

TEST_F(PassesAtOnce, PackedSequencesOfOneLength) {
  std::vector<std::int64_t> starts;
  for (int n = 0; n <= 5; ++n) starts.push_back(n * 800);
  expect_matches_steps({.B = 1, .T = 4000, .H = 4, .Hkv = 4, .K = 144, .V = 136, .gates = "m", .state = 4, .starts = starts}, 3);
}

/// Where one pass after the other takes less time.
TEST_F(PassesAtOnce, OneAfterTheOther) {
  expect_matches_steps({.B = 1, .T = 4096, .H = 8, .Hkv = 8, .K = 144, .V = 136, .gates = "m"}, 1);  // segments
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {700, 64, 1, 900, 300, 63}) starts.push_back(starts.back() + length);
  expect_matches_steps({.B = 1, .T = starts.back(), .H = 8, .Hkv = 8, .K = 144, .V = 136, .gates = "m", .starts = starts}, 1);
}

/// What follows waits for all passes, and the call for what is ahead.
TEST_F(PassesAtOnce, AreInOrderWithOtherWork) {
  for (const int at_once : {2, 3}) {
    const std::int64_t H = heads_of(at_once);
    const Call call({.B = 2, .T = 1100, .H = H, .Hkv = H, .K = 192, .V = 192, .gates = "m"}, at_once);
    if (is_planned_alone(call.x)) continue;
    const Tensors expected = call.run();
    const Tensor room = empty_like(call.leaves[0]);
    for (int i = 0; i < 20; ++i) {
      copy_data(room, call.leaves[0]);
      fill_data(call.leaves[0].detach(), 0);
      copy_data(call.leaves[0].detach(), room);
      Tensors got = call.run();
      for (Tensor& x : got) x = x.detach() * 1.f;  // right behind them
      for (std::size_t j = 0; j < expected.size(); ++j)
        EXPECT_EQ(relative_error(got[j], expected[j]), 0) << at_once << ' ' << i << ' ' << j;
    }
  }
}

/// The kernel right ahead of the passes writes the gradient that they read.
TEST_F(PassesAtOnce, ReadWhatIsWrittenRightAhead) {
  for (const int at_once : {2, 3}) {
    const std::int64_t H = heads_of(at_once);
    const Call call({.B = 2, .T = 1100, .H = H, .Hkv = H, .K = 192, .V = 192, .gates = "m"}, at_once);
    if (is_planned_alone(call.x)) continue;
    const Tensors expected = call.run();
    const RecurrenceArguments& x = call.x;
    for (int i = 1; i <= 20; ++i) {
      const float factor = std::exp2f(static_cast<float>(i % 7));  // no rounding
      const Tensor o = std::get<0>(recurrent(x.query, x.key, x.value, x.options)) * factor;
      const Tensors got = autograd::grad({o}, call.leaves, call.gradients);
      for (std::size_t j = 0; j < expected.size(); ++j)
        EXPECT_EQ(relative_error(got[j] * (1 / factor), expected[j]), 0) << at_once << ' ' << i << ' ' << j;
    }
  }
}

/// A pass that looks for the gradient of the initial state, and has no others beside it.
TEST_F(PassesAtOnce, GradientOfTheInitialStateAlone) {
  for (const int at_once : {2, 3}) {
    const std::int64_t H = heads_of(at_once);
    Call call({.B = 2, .T = 1100, .H = H, .Hkv = H, .K = 192, .V = 200, .gates = "m", .state = 4}, at_once);
    if (is_planned_alone(call.x)) continue;
    call.leaves = {call.leaves.back()};
    const Tensors chunks = call.run();
    call.x.options.algorithm = Algorithm::recurrent;
    expect_gradients_match(chunks, call.run(), "initial state alone");
  }
}

TEST_F(PassesAtOnce, InACapturedGraph) {
  for (const int at_once : {2, 3}) {
    const std::int64_t H = heads_of(at_once);
    const Call call({.B = 2, .T = 1100, .H = H, .Hkv = H, .K = 136, .V = 192, .gates = "m", .state = 4}, at_once);
    if (is_planned_alone(call.x)) continue;
    Tensors replayed = call.run();  // what is made at a first use
    cuda::Graph graph;
    graph.capture([&] { replayed = call.run(); });
    for (int i = 0; i < 3; ++i) {
      for (const Tensor& x : call.leaves) copy_data(x.detach(), random_tensor(x.shape(), hopper_or_cpu(), x.dtype()));
      graph.replay();
      const Tensors expected = call.run();
      for (std::size_t j = 0; j < expected.size(); ++j)
        EXPECT_EQ(relative_error(replayed[j], expected[j]), 0) << at_once << ' ' << i << ' ' << j;
    }
  }
}

}  // namespace
}  // namespace glade
