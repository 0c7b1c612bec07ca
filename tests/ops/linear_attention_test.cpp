#include <glade/ops/linear_attention/linear_attention.h>

#include <algorithm>
#include <limits>
#include <string>

#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/shape/shape.h>

#include "ops/linear_attention_cases.h"
#include "support/testing.h"

using namespace glade;
using namespace glade::testing_support;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class LinearAttention : public DeviceTest {};
GLADE_DEVICE_TESTS(LinearAttention);

TEST_P(LinearAttention, EveryGateSubset) {
  for (const char* head : {"", "g", "c"})
    for (const char* gamma : {"", "m", "n"})
      for (const char* gk : {"", "k"})
        for (const char* gv : {"", "v"})
          for (const bool reverse : {false, true}) {
            Spec s{.gates = std::string(head) + gamma + gk + gv, .state = 4, .reverse = reverse};
            expect_matches(s, device());
            expect_matches(s, device(), DType::float32);
          }
}

TEST_P(LinearAttention, SequencesStatesAndGroups) {
  for (const std::int64_t Hkv : {4, 2, 1})
    for (const int state : {0, 3, 4})
      for (const bool reverse : {false, true}) {
        expect_matches({.T = 9, .H = 4, .Hkv = Hkv, .gates = "gmkv", .state = state, .reverse = reverse, .interval = 4},
                       device());
        for (const bool flat : {false, true})
          expect_matches({.B = 1,
                          .T = 20,
                          .H = 4,
                          .Hkv = Hkv,
                          .gates = "nkv",
                          .state = state,
                          .reverse = reverse,
                          .starts = {0, 0, 7, 8, 8, 19, 20, 20},
                          .flat = flat,
                          .interval = 4},
                         device());
      }
}

TEST_P(LinearAttention, EveryDType) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
    for (const bool float32_gates : {false, true})
      for (const char* gates : {"", "g", "m", "k", "v", "ck", "gmkv"})
        expect_matches({.T = 70, .H = 4, .K = 24, .V = 20, .gates = gates, .state = 4, .float32_gates = float32_gates}, device(),
                       dtype);
}

TEST_P(LinearAttention, HeadSizes) {
  constexpr std::int64_t sizes[] = {1, 16, 32, 60, 64, 100, 128, 256, 512};
  for (std::size_t i = 0; i < std::size(sizes); ++i)
    for (const std::size_t step : {0, 1, 4, 8}) {  // 8: the largest beside the smallest
      const std::int64_t K = sizes[i], V = sizes[(i + step) % std::size(sizes)];
      Spec s{.B = 1, .T = 5, .H = 2, .Hkv = 1, .K = K, .V = V, .gates = "k", .state = 4};
      expect_matches(s, device(), DType::float32);
      s.gates = "gv";
      expect_matches(s, device(), DType::bfloat16);
      if (K * V <= 128 * 256) expect_matches(s, device());
    }
}

TEST_P(LinearAttention, Lengths) {
  for (const std::int64_t T : {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300})
    for (const bool reverse : {false, true})
      for (const char* gates : {"k", "gv"})
        expect_matches({.B = 1, .T = T, .H = 2, .K = 20, .V = 12, .gates = gates, .state = 4, .reverse = reverse, .interval = 64},
                       device(), DType::float32);
}

TEST_P(LinearAttention, ThousandTokens) {
  // The longest memory there is (no decay), a long one, a short one.
  for (const double gate : {0.0, -0.01, -2.0})
    for (const char* gates : {"gm", "k", "v"})
      expect_matches({.B = 1, .T = 1000, .H = 2, .K = 16, .V = 16, .gates = gates, .state = 4, .gate = gate}, device(),
                     DType::float32);
}

TEST_P(LinearAttention, LongSequencesOfFewHeads) {
  // A GPU takes them in segments that run at once, some of which are beyond the end of the shorter sequences.
  for (const bool reverse : {false, true}) {
    Spec s{.B = 1, .T = 1200, .H = 1, .Hkv = 1, .K = 20, .V = 12, .gates = "gkv", .state = 4, .reverse = reverse, .gate = -0.02};
    expect_matches(s, device(), DType::float32);
    s.starts = {0, 0, 300, 301, 1200};
    expect_matches(s, device(), DType::float32);
  }
}

TEST_P(LinearAttention, LargeResults) {
  // The CPU writes them past its caches.
  Spec s{.B = 1, .T = 64, .H = 1024, .Hkv = 1024, .K = 16, .V = 16, .gates = "gk"};
  expect_matches(s, device(), DType::float32);
  s.reverse = true;
  expect_matches(s, device());
}

TEST_P(LinearAttention, EitherBackwardAfterEitherForward) {
  // In chunks a backward pass needs states that the forward pass keeps only if it is in chunks too.
  for (const Algorithm backward : {Algorithm::recurrent, Algorithm::chunk})
    for (const char* gates : {"gm", "k"}) {
      Spec s{.T = 300, .H = 4, .K = 20, .V = 12, .gates = gates, .state = 4};
      for (const bool packed : {false, true}) {
        if (packed) s.B = 1, s.starts = {0, 0, 63, 64, 250, 300};
        RecurrenceArguments x = make(s, device(), DType::float32);
        x.options.backward_algorithm = backward;
        expect_matches(x, s.str(), true, true, {Algorithm::recurrent, Algorithm::chunk});
      }
    }
}

TEST_P(LinearAttention, EitherGradientAlone) {
  const Spec s{.gates = "gmkv", .state = 4};
  RecurrenceArguments x = make(s, device());
  expect_matches(x, "output alone", true, false);
  x = make(s, device());
  expect_matches(x, "final state alone", false, true);
}

TEST_P(LinearAttention, OnlyTheWantedGradients) {
  const Spec s{.gates = "gmkv", .state = 4};
  for (std::size_t wanted = 0; wanted < 8; ++wanted) {
    RecurrenceArguments x = make(s, device());
    auto named = x.named();
    named[wanted].second->set_requires_grad();
    const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
    const Tensor grad_o = random_tensor(o.shape(), device());
    autograd::backward({o}, {grad_o});
    const RecurrenceReference expected = recurrence_reference(x, grad_o.to_vector<double>(), {});
    for (std::size_t i = 0; i < named.size(); ++i) {
      const Tensor grad = named[i].second->grad();
      ASSERT_EQ(grad.defined(), i == wanted) << named[i].first;
      if (i == wanted) {
        EXPECT_LE(relative_error(grad, like(expected.gradient(i), grad)), 1e-12) << named[i].first;
      }
    }
  }
}

TEST_P(LinearAttention, LargeDecay) {
  for (const double strength : {-20.0, -1e4, -kInfinity})
    for (const char* gates : {"g", "m", "k", "v", "ckv"})
      for (const DType dtype : {DType::float64, DType::float32}) {
        Spec s{.T = 70, .H = 2, .K = 8, .V = 8, .gates = gates, .state = 4};
        RecurrenceArguments x = make(s, device(), dtype);
        for (Tensor* gate : {&x.options.g, &x.options.g_gamma, &x.options.gk, &x.options.gv})
          if (gate->defined()) fill_data(*gate, strength);
        expect_matches(x, s.str() + " all " + std::to_string(strength));
        // A step of large decay among others.
        x = make(s, device(), dtype);
        for (Tensor* gate : {&x.options.g, &x.options.gk, &x.options.gv})
          if (gate->defined()) fill_data(slice(*gate, 1, 3, {}, 11), strength);
        expect_matches(x, s.str() + " some " + std::to_string(strength));
      }
}

TEST_P(LinearAttention, LargeNumbersAndLargeDecay) {
  // Divided by the decays of a few steps, products of keys and values would overflow.
  for (const char* gates : {"g", "k", "v"}) {
    RecurrenceArguments x = make({.T = 70, .K = 20, .V = 12, .gates = gates, .state = 4, .gate = -4}, device(), DType::float32);
    x.key = random_tensor(x.key.shape(), device(), DType::float32, 0, 1e8);
    x.value = random_tensor(x.value.shape(), device(), DType::float32, 0, 1e8);
    expect_matches(x, gates);
  }
}

TEST_P(LinearAttention, FinalStateAfterLargeNumbers) {
  // Forward alone, whose last tile of positions on CUDA is short, after one with large numbers in positions that it lacks.
  const NoGradGuard no_grad;
  for (const char* gates : {"g", "m", "v", "gkv"}) {
    RecurrenceArguments x = make({.B = 1, .T = 70, .K = 20, .V = 12, .gates = gates}, kCPU);
    std::vector<double> sizes(70, 1);
    std::fill(sizes.begin() + 32, sizes.begin() + 64, 1 << 21);
    const Tensor key = x.key * Tensor::from_vector(sizes, {70, 1, 1});
    x.options.algorithm = Algorithm::recurrent;
    const Tensor expected = recurrent(x.query, key, x.value, x.options).second;
    auto moved = [&](const Tensor& t) { return to_data(to_data(t, DType::float32), device()); };
    for (Tensor* gate : {&x.options.g, &x.options.g_gamma, &x.options.gk, &x.options.gv})
      if (gate->defined()) *gate = moved(*gate);
    const Tensor state = recurrent(moved(x.query), moved(key), moved(x.value), x.options).second;
    EXPECT_LE(relative_error(state, expected), 2e-6) << gates;
  }
}

TEST_P(LinearAttention, Empty) {
  for (const auto& [B, T] : {std::pair<std::int64_t, std::int64_t>{0, 5}, {2, 0}, {0, 0}}) {
    RecurrenceArguments x = make({.B = B, .T = T, .gates = "gmkv", .state = 4}, device());
    expect_matches(x, "empty");
    EXPECT_EQ(x.query.grad().shape(), x.query.shape());
  }
  RecurrenceArguments x = make({.B = 1, .T = 0, .gates = "k", .state = 4, .starts = {0}}, device());
  EXPECT_EQ(recurrent(x.query, x.key, x.value, x.options).second.shape(), (Shape{0, 2, 5, 3}));
}

TEST_P(LinearAttention, ViewsAndScale) {
  for (const double scale : {1.0, 0.3}) {
    RecurrenceArguments x = make({.gates = "gk", .state = 4}, device());
    x.query = transpose(random_tensor({2, 2, 6, 5}, device()), 1, 2).detach();
    x.key = slice(random_tensor({2, 6, 2, 9}, device()), 3, 2, 7).detach();
    x.options.gk = expand(random_gate({1, 6, 1, 5}, device(), DType::float64, -0.3), {2, 6, 2, 5}).detach();
    x.options.initial_state = expand(random_tensor({1, 2, 5, 3}, device()), {2, 2, 5, 3}).detach();
    x.options.softmax_scale = scale;
    expect_matches(x, "views");
  }
}

TEST_P(LinearAttention, NaNStaysInItsSequence) {
  // Of three sequences the second has one, side by side in a batch or packed.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool packed : {false, true})
    for (const std::string gates : {"g", "k"}) {
      Spec s{.B = 3, .T = 40, .gates = gates, .state = 4};
      if (packed) s.B = 1, s.T = 120, s.starts = {0, 40, 80, 120};
      RecurrenceArguments x = make(s, device(), DType::float32);
      auto sequence = [](const Tensor& y, std::int64_t n) {
        return y.size(0) == 3 ? slice(y, 0, n, n + 1) : slice(y, 1, n * 40, n * 40 + 40);
      };
      fill_data(slice(sequence(x.value, 1), 1, 7, 8), nan);
      fill_data(slice(sequence(gates == "g" ? x.options.g : x.options.gk, 1), 1, 20, 21), nan);
      for (const Algorithm algorithm : algorithms(x)) {
        x.options.algorithm = algorithm;
        for (auto& [name, tensor] : x.named())
          if (tensor->defined()) *tensor = tensor->detach(), tensor->set_requires_grad();
        const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
        autograd::backward({o}, {ones_like(o)});
        Tensors results{o, final_state};
        for (auto& [name, tensor] : x.named())
          if (tensor->defined()) results.push_back(tensor->grad());
        for (const Tensor& y : results)
          for (const std::int64_t n : {0, 2})
            for (const double value : sequence(y, n).to_vector<double>()) ASSERT_TRUE(std::isfinite(value));
        for (const double value : sequence(final_state, 1).to_vector<double>()) ASSERT_TRUE(std::isnan(value));
      }
    }
}

TEST_P(LinearAttention, NaNReachesNoEarlierToken) {
  if (!device().is_cpu()) GTEST_SKIP() << "chunk kernels on CUDA multiply masked scores";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t T = 150;
  for (const std::string gates : {"", "g", "m", "k", "gk"})
    for (const bool reverse : {false, true}) {
      RecurrenceArguments x =
          make({.B = 1, .T = T, .K = 20, .V = 20, .gates = gates, .reverse = reverse}, device(), DType::float32);
      for (const Algorithm algorithm : algorithms(x)) {
        x.options.algorithm = algorithm;
        const Tensor clean = recurrent(x.query, x.key, x.value, x.options).first;
        for (const std::int64_t t : {0, 1, 37, 47, 64, 149})
          for (Tensor* const input : {&x.query, &x.key, &x.value, &x.options.g, &x.options.gk}) {
            if (!input->defined()) continue;
            const Tensor before = *input;
            *input = clone(before);
            fill_data(slice(*input, 1, t, t + 1), nan);
            const Tensor o = recurrent(x.query, x.key, x.value, x.options).first;
            *input = before;
            const auto earlier = [&](const Tensor& y) { return reverse ? slice(y, 1, t + 1, T) : slice(y, 1, 0, t); };
            EXPECT_TRUE(all_close(earlier(o), earlier(clean), 1e-5, 1e-5)) << gates << " " << t << " " << reverse;
            for (const double value : slice(o, 1, t, t + 1).to_vector<double>()) ASSERT_TRUE(std::isnan(value));
          }
      }
    }
}

TEST_P(LinearAttention, BoundariesOfEitherTypeOnEitherDevice) {
  RecurrenceArguments x = make({.B = 1, .T = 20, .gates = "gk", .starts = {0, 7, 7, 20}}, device());
  const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
  for (const Device where : {kCPU, device()})
    for (const DType dtype : {DType::int32, DType::int64}) {
      x.options.cu_seqlens = to_data(to_data(x.options.cu_seqlens, dtype), where);
      const auto [same, same_state] = recurrent(x.query, x.key, x.value, x.options);
      EXPECT_TRUE(all_close(same, o, 0, 0));
      EXPECT_TRUE(all_close(same_state, final_state, 0, 0));
    }
}

TEST_P(LinearAttention, FewerCheckpointsTakeLessMemory) {
  if (device().is_cpu()) GTEST_SKIP() << "memory is counted on GPUs alone";
  auto peak = [&](std::int64_t interval) {
    RecurrenceArguments x =
        make({.B = 1, .T = 2048, .K = 64, .V = 64, .gates = "k", .interval = interval}, device(), DType::float32);
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) tensor->set_requires_grad();
    const Tensor o = recurrent(x.query, x.key, x.value, x.options).first, grad = ones_like(o);
    cuda::reset_peak_memory_stats();
    const std::size_t before = cuda::memory_stats().allocated;
    autograd::backward({o}, {grad});
    return cuda::memory_stats().peak_allocated - before;
  };
  const std::size_t state = 2 * 64 * 64 * sizeof(float);
  EXPECT_GE(peak(64), peak(1024) + (2048 / 64 - 2048 / 1024) * state);
}

// A long sequence and very many empty ones, each of which has blocks for as many intervals as the long one.
TEST_P(LinearAttention, MoreIntervalsThanAGridHasBlocks) {
  if (device().is_cpu()) GTEST_SKIP() << "only GPUs have grids";
  constexpr std::int64_t kInterval = 32, kSequences = 1 << 20, T = kInterval * 4097;
  std::vector<std::int64_t> starts(kSequences + 1, T);
  starts[0] = 0;
  const TensorOptions options{DType::float32, device()};
  const Tensor x = ones({1, T, 1, 1}, options);
  RecurrentOptions call;
  call.g = zeros({1, T, 1}, options).set_requires_grad();
  call.cu_seqlens = Tensor::from_vector(starts);
  call.algorithm = Algorithm::recurrent;
  call.checkpoint_interval = kInterval;
  const Tensor o = recurrent(x, x, x, call).first;
  EXPECT_TRUE(throws_with<ShapeError>([&] { sum(o).backward(); }, "blocks of threads, expected at most 2147483647"));
}

TEST_P(LinearAttention, SegmentsCarryTheState) {
  for (const char* gates : {"gmkv", "gmk", "gm"})
    for (const bool reverse : {false, true}) {
      RecurrenceArguments x = make({.T = 150, .gates = gates, .state = 4, .reverse = reverse}, device());
      for (const Algorithm algorithm : algorithms(x)) {
        x.options.algorithm = algorithm;
        const auto [whole, whole_state] = recurrent(x.query, x.key, x.value, x.options);
        Tensors parts;
        Tensor state = x.options.initial_state;
        const std::vector<std::pair<int, int>> bounds = {{0, 1}, {1, 20}, {20, 150}};
        for (std::size_t i = 0; i < bounds.size(); ++i) {
          const auto [from, to] = bounds[reverse ? bounds.size() - 1 - i : i];
          auto part = [from = from, to = to](const Tensor& t) { return t.defined() ? slice(t, 1, from, to) : t; };
          RecurrentOptions options = x.options;
          options.g = part(options.g), options.gk = part(options.gk), options.gv = part(options.gv);
          options.initial_state = state;
          auto [o, next] = recurrent(part(x.query), part(x.key), part(x.value), options);
          state = next;
          parts.insert(reverse ? parts.begin() : parts.end(), o);
        }
        EXPECT_TRUE(all_close(cat(parts, 1), whole));
        EXPECT_TRUE(all_close(state, whole_state));
      }
    }
}

TEST_P(LinearAttention, ReverseIsFlip) {
  for (const char* gates : {"gmkv", "gmk", "gm"}) {
    RecurrenceArguments x = make({.T = 150, .gates = gates, .state = 4}, device());
    for (const Algorithm algorithm : algorithms(x)) {
      x.options.algorithm = algorithm;
      RecurrentOptions flipped = x.options;
      flipped.reverse = true;
      for (Tensor* gate : {&flipped.g, &flipped.gk, &flipped.gv})
        if (gate->defined()) *gate = flip(*gate, {1});
      const auto [o, state] = recurrent(x.query, x.key, x.value, x.options);
      const auto [o2, state2] = recurrent(flip(x.query, {1}), flip(x.key, {1}), flip(x.value, {1}), flipped);
      EXPECT_TRUE(all_close(flip(o2, {1}), o, 0, 0));
      EXPECT_TRUE(all_close(state2, state, 0, 0));
    }
  }
}

TEST_P(LinearAttention, GradientsByDifferences) {
  // Gates a channel of about -9 a step make the chunk form on the CPU take a few tokens at a time.
  for (const auto& [gates, gate] :
       {std::pair<const char*, double>{"gnkv", -0.3}, {"gnk", -0.3}, {"cn", -9}, {"gn", -0.3}, {"", 0}})
    for (const bool reverse : {false, true}) {
      RecurrenceArguments x = make({.B = 1,
                                    .T = 7,
                                    .H = 2,
                                    .Hkv = 1,
                                    .K = 3,
                                    .V = 2,
                                    .gates = gates,
                                    .state = 3,
                                    .reverse = reverse,
                                    .starts = {0, 3, 7},
                                    .gate = gate,
                                    .interval = 2},
                                   device());
      std::vector<Tensor*> slots;
      for (auto& [name, tensor] : x.named())
        if (tensor->defined()) slots.push_back(tensor);
      Tensors inputs;
      for (Tensor* slot : slots) inputs.push_back(slot->set_requires_grad());
      for (const Algorithm algorithm : algorithms(x)) {
        x.options.algorithm = algorithm;
        EXPECT_TRUE(autograd::gradcheck(
            [&](const Tensors& t) {
              for (std::size_t i = 0; i < slots.size(); ++i) *slots[i] = t[i];
              const auto [o, state] = recurrent(x.query, x.key, x.value, x.options);
              return Tensors{o, state};
            },
            inputs))
            << "gates '" << gates << "'";
      }
    }
}

TEST_P(LinearAttention, SameBitsEveryTime) {
  auto run = [](RecurrenceArguments x, const Tensor& grad_o) {
    Tensors leaves, results;
    for (auto& [name, tensor] : x.named()) {
      if (!tensor->defined()) continue;
      *tensor = tensor->detach();
      leaves.push_back(tensor->set_requires_grad());
    }
    const auto [o, state] = recurrent(x.query, x.key, x.value, x.options);
    results = autograd::grad({o}, leaves, {grad_o});
    results.insert(results.end(), {o, state});
    return results;
  };
  for (const char* gates : {"gmkv", "gmk"}) {
    RecurrenceArguments x =
        make({.T = 200, .H = 4, .Hkv = 2, .K = 64, .V = 128, .gates = gates, .state = 4}, device(), DType::float32);
    const Tensor grad_o = random_tensor({2, 200, 4, 128}, device(), DType::float32);
    for (const Algorithm algorithm : algorithms(x)) {
      x.options.algorithm = algorithm;
      const Tensors first = run(x, grad_o), second = run(x, grad_o);
      for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(all_close(first[i], second[i], 0, 0));
    }
  }
}

TEST_P(LinearAttention, OneDecayForAllPackedSequences) {
  for (const Algorithm algorithm : {Algorithm::recurrent, Algorithm::chunk}) {
    RecurrenceArguments x = make({.B = 1, .T = 40, .gates = "m", .starts = {0, 7, 7, 40}}, device(), DType::float32);
    x.options.algorithm = algorithm;
    const Tensor gamma = x.options.g_gamma;
    const auto results = [&](const Tensor& g_gamma) {
      RecurrentOptions options = x.options;
      options.g_gamma = g_gamma.detach().set_requires_grad();
      const Tensor o = recurrent(x.query, x.key, x.value, options).first;
      Tensors all = autograd::grad({o}, {options.g_gamma}, {ones_like(o)});
      all.push_back(o);
      return all;
    };
    const Tensors expected = results(gamma), got = results(reshape(gamma, {1, gamma.size(0)}));
    EXPECT_EQ(got[0].shape(), (Shape{1, gamma.size(0)}));
    EXPECT_TRUE(all_close(reshape(got[0], gamma.shape()), expected[0], 0, 0));
    EXPECT_TRUE(all_close(got[1], expected[1], 0, 0));
    RecurrentOptions wrong = x.options;
    wrong.g_gamma = zeros({2, gamma.size(0)}, gamma.options());
    EXPECT_TRUE(throws_with<ShapeError>([&] { recurrent(x.query, x.key, x.value, wrong); }, "g_gamma is"));
  }
}

TEST_P(LinearAttention, GatedLinearAttentionAndLightning) {
  RecurrenceArguments x;
  for (const char* gates : {"gm", "k"}) {
    x = make({.gates = gates}, device());
    EXPECT_TRUE(all_close(recurrent_gla(x.query, x.key, x.value, x.options).first,
                          recurrent(x.query, x.key, x.value, x.options).first, 0, 0));
  }
  EXPECT_TRUE(all_close(lightning_g_gamma(4, 1, 4, device(), DType::float64),
                        Tensor::from_vector(std::vector<double>{0, -1.5, -3, -4.5})));
  RecurrentOptions decay;
  decay.g_gamma = Tensor::from_vector(std::vector<double>{0, -8.0 / 2 * (1 - 2.0 / 3)}, device());
  EXPECT_TRUE(all_close(lightning_attn(x.query, x.key, x.value, 2, 3).first, recurrent(x.query, x.key, x.value, decay).first));
}

TEST_P(LinearAttention, StepInPlace) {
  for (const std::int64_t T : {1, 3})
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
      RecurrenceArguments x =
          make({.B = 3, .T = T, .H = 4, .Hkv = 2, .K = 60, .V = 36, .gates = "gmkv", .state = 4}, device(), dtype);
      const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
      Tensor state = zeros_like(x.options.initial_state);
      copy_data(state, x.options.initial_state);
      RecurrentOptions options = x.options;
      options.initial_state = {};
      EXPECT_TRUE(all_close(recurrent_step_(state, x.query, x.key, x.value, options), o, 0, 0));
      EXPECT_TRUE(all_close(state, final_state, 0, 0));
      copy_data(state, x.options.initial_state);
      const Tensor out = zeros_like(o);
      EXPECT_TRUE(recurrent_step_(state, x.query, x.key, x.value, options, out).is_same(out));
      EXPECT_TRUE(all_close(out, o, 0, 0));
    }
}

TEST_P(LinearAttention, OneTokenAtATime) {
  // The kernels for a single token, over sizes, against those for many.
  for (const auto& [K, V] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {64, 64}, {128, 128}, {100, 60}, {512, 256}, {33, 130}}) {
    RecurrenceArguments x = make({.B = 2, .T = 4, .H = 2, .Hkv = 1, .K = K, .V = V, .gates = "gmkv"}, device(), DType::float32);
    const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
    Tensor state = zeros({2, 2, K, V}, {DType::float32, device()});
    for (std::int64_t t = 0; t < 4; ++t) {
      auto part = [t](const Tensor& tensor) { return contiguous(slice(tensor, 1, t, t + 1)); };
      RecurrentOptions options = x.options;
      options.g = part(options.g), options.gk = part(options.gk), options.gv = part(options.gv);
      const Tensor step = recurrent_step_(state, part(x.query), part(x.key), part(x.value), options);
      EXPECT_LE(relative_error(step, part(o)), 2e-6);
    }
    EXPECT_LE(relative_error(state, final_state), 2e-6);
  }
}

TEST_P(LinearAttention, Errors) {
  const Spec s{.gates = "gmkv", .state = 4};
  auto call = [](const RecurrenceArguments& x) { return [&x] { recurrent(x.query, x.key, x.value, x.options); }; };
  auto zero = [&](const Shape& shape, DType dtype = DType::float64) { return zeros(shape, {dtype, device()}); };
  auto with = [&](auto&& change) {
    RecurrenceArguments x = make(s, device());
    change(x);
    return x;
  };
  RecurrenceArguments x = with([&](auto& a) { a.key = zero({2, 6, 2, 4}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "key is [2, 6, 2, 4], query is [2, 6, 2, 5]"));
  x = with([&](auto& a) { a.key = zero({2, 7, 2, 5}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "key is [2, 7, 2, 5]"));
  x = with([&](auto& a) { a.value = zero({2, 6, 1, 3}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "value is [2, 6, 1, 3], key is [2, 6, 2, 5]"));
  x = with([&](auto& a) { a.key = zero({2, 6, 3, 5}), a.value = zero({2, 6, 3, 3}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "2 query heads are no multiple of 3 key heads"));
  x = with([&](auto& a) { a.query = zero({6, 2, 5}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "query is [6, 2, 5]"));
  x = with([&](auto& a) { a.query = zero({2, 6, 2, 513}), a.key = a.query; });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "513"));
  x = with([&](auto& a) { a.value = zero({2, 6, 2, 3}, DType::float32); });
  EXPECT_TRUE(throws_with<DTypeError>(call(x), "value is float32, query is float64"));
  x = with([&](auto& a) { a.options.gk = zero({2, 6, 2, 5}, DType::float32); });
  EXPECT_TRUE(throws_with<DTypeError>(call(x), "gk is float32"));
  x = with([&](auto& a) { a.query = zero({2, 6, 2, 5}, DType::int64); });
  EXPECT_TRUE(throws_with<DTypeError>(call(x), "query is int64"));
  x = with([&](auto& a) { a.options.g = zero({2, 6}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "g is [2, 6]: expected [2, 6, 2]"));
  x = with([&](auto& a) { a.options.gv = zero({2, 6, 2, 5}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "gv is [2, 6, 2, 5]: expected [2, 6, 2, 3]"));
  x = with([&](auto& a) { a.options.g_gamma = zero({3}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "g_gamma is [3]: expected [2]"));
  x = with([&](auto& a) { a.options.initial_state = zero({3, 2, 5, 3}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "3 states for 2 sequences"));
  x = with([&](auto& a) { a.options.initial_state = zero({2, 2, 3, 5}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "initial_state is [2, 2, 3, 5]: expected [2, 2, 5, 3]"));
  x = with([&](auto& a) { a.options.checkpoint_interval = 0; });
  EXPECT_TRUE(throws_with<ValueError>(call(x), "checkpoint_interval is 0"));
  x = with([&](auto& a) { a.options.cu_seqlens = Tensor::from_vector(std::vector<std::int64_t>{0, 6}); });
  EXPECT_TRUE(throws_with<ShapeError>(call(x), "cu_seqlens needs a batch of 1, query is [2, 6, 2, 5]"));
  x = with([&](auto& a) { a.query = Tensor(); });
  EXPECT_TRUE(throws_with<ValueError>(call(x), "query is undefined"));
  if (device().is_cuda()) {
    x = with([&](auto& a) { a.options.gk = zeros({2, 6, 2, 5}, {DType::float64, kCPU}); });
    EXPECT_TRUE(throws_with<DeviceError>(call(x), "gk is on cpu"));
  }

  const std::pair<std::vector<std::int64_t>, const char*> bad_starts[] = {{{1, 6}, "goes from 1 to 6: expected 0 to 6"},
                                                                          {{0, 5}, "goes from 0 to 5: expected 0 to 6"},
                                                                          {{0, 4, 3, 6}, "falls from 4 to 3"}};
  for (const auto& [starts, message] : bad_starts) {
    RecurrenceArguments packed = make({.B = 1}, device());
    packed.options.cu_seqlens = Tensor::from_vector(starts, device());
    EXPECT_TRUE(throws_with<ValueError>(call(packed), message));
  }
  RecurrenceArguments packed = make({.B = 1}, device());
  packed.options.cu_seqlens = Tensor::from_vector(std::vector<double>{0, 6}, device());
  EXPECT_TRUE(throws_with<DTypeError>(call(packed), "cu_seqlens is float64"));

  x = make(s, device());
  EXPECT_TRUE(throws_with<ValueError>([&] { recurrent_gla(x.query, x.key, x.value, x.options); }, "gv is given"));
  EXPECT_TRUE(throws_with<ValueError>([&] { lightning_attn(x.query, x.key, x.value, 0, 1, x.options); }, "g is given"));
  EXPECT_TRUE(throws_with<ValueError>([&] { lightning_attn(x.query, x.key, x.value, 3, 3); }, "layer_idx is 3"));
  EXPECT_TRUE(throws_with<ValueError>([&] { lightning_attn(x.query, x.key, x.value, -1, 3); }, "layer_idx is -1"));
  EXPECT_TRUE(throws_with<ValueError>([&] { recurrent_step_(x.options.initial_state, x.query, x.key, x.value, x.options); },
                                      "initial_state is given"));
  RecurrentOptions alone = x.options;
  alone.initial_state = {};
  EXPECT_TRUE(throws_with<ShapeError>(
      [&] { recurrent_step_(x.options.initial_state, x.query, x.key, x.value, alone, zero({2, 6, 2, 5})); },
      "out is [2, 6, 2, 5]"));

  x.options.algorithm = Algorithm::chunk;
  EXPECT_TRUE(throws_with<ValueError>(call(x), "algorithm chunk does not take gv"));
  x.options.algorithm = Algorithm::automatic;

  x.query.set_requires_grad();
  const Tensor o = recurrent(x.query, x.key, x.value, x.options).first;
  EXPECT_TRUE(throws_with<AutogradError>([&] { autograd::backward({o}, {ones_like(o)}, true, true); }, "second derivative"));
  RecurrentOptions gates = x.options;
  gates.initial_state = {};
  EXPECT_TRUE(throws_with<AutogradError>([&] { recurrent_step_(x.options.initial_state, x.query, x.key, x.value, gates); },
                                         "not recorded"));
}

}  // namespace
