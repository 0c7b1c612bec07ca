// Kernels for Hopper GPUs start before those ahead of them have ended (cuda::LaunchOptions::early). Calls that follow each other
// without a pause have the results of calls that are waited for.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>

#include <tuple>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class LaunchOrder : public HopperTest {
 protected:
  /// Three layers, each with the last one's output as its values: the output, the last final state and the gradients.
  static Tensors train(RecurrenceArguments& x, const Tensor& grad_o, const Tensor& grad_state, bool waits) {
    const auto wait = [&] {
      if (waits) cuda::synchronize();
    };
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) tensor->set_grad({});
    Tensor o = x.value, final_state;
    for (int layer = 0; layer < 3; ++layer) {
      std::tie(o, final_state) = recurrent(x.query, x.key, o * 0.5, x.options);
      wait();
    }
    autograd::backward({o, final_state}, {grad_o, grad_state});
    wait();
    Tensors results{o.detach(), final_state.detach()};
    for (auto& [name, tensor] : x.named())
      if (tensor->defined() && tensor->requires_grad()) results.push_back(tensor->grad());
    return results;
  }
  /// `without`: the name of an input that needs no gradient, or empty.
  static void check(const Spec& s, const std::string& without = {}) {
    constexpr int kCalls = 20;
    SCOPED_TRACE(s.str());
    RecurrenceArguments x = make(s, kCUDA, DType::bfloat16);
    x.options.algorithm = Algorithm::chunk;
    for (auto& [name, tensor] : x.named())
      if (tensor->defined() && name != without) tensor->set_requires_grad();
    const Tensor grad_o = random_tensor({s.B, s.T, s.H, s.V}, kCUDA, DType::bfloat16),
                 grad_state = random_tensor({s.B, s.H, s.K, s.V}, kCUDA, DType::float32);
    const Tensors expected = train(x, grad_o, grad_state, true);
    for (int i = 0; i < kCalls; ++i) {
      const Tensors results = train(x, grad_o, grad_state, false);
      NoGradGuard no_grad;
      for (std::size_t j = 0; j < results.size(); ++j)
        ASSERT_EQ(max(abs(to(results[j], DType::float32) - to(expected[j], DType::float32))).item<float>(), 0)
            << "call " << i << ", result " << j;
    }
  }
};

TEST_F(LaunchOrder, GatesOfKeys) {
  check({.B = 4, .T = 500, .H = 16, .Hkv = 16, .K = 128, .V = 128, .gates = "k", .state = 4});
  check({.B = 2, .T = 1024, .H = 10, .Hkv = 10, .K = 128, .V = 128, .gates = "k"});
  check({.B = 1, .T = 1000, .H = 4, .Hkv = 4, .K = 256, .V = 512, .gates = "k", .state = 4});
  check({.B = 16, .T = 256, .H = 6, .Hkv = 6, .K = 32, .V = 64, .gates = "k"});
  check({.B = 1, .T = 4000, .H = 4, .Hkv = 4, .K = 64, .V = 64, .gates = "k", .state = 4});
}

TEST_F(LaunchOrder, GatesOfHeads) {
  check({.B = 2, .T = 1000, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "g"});
  check({.B = 1, .T = 4000, .H = 4, .Hkv = 4, .K = 128, .V = 128, .gates = "g", .state = 4});
  check({.B = 4, .T = 1000, .H = 8, .Hkv = 8, .K = 64, .V = 64, .gates = "g"});
  check({.B = 1, .T = 8000, .H = 4, .Hkv = 4, .K = 64, .V = 64, .gates = "g", .state = 4});
  check({.B = 2, .T = 900, .H = 8, .Hkv = 8, .K = 256, .V = 256, .gates = "g", .state = 4});
}

/// Sequences that have no boundary states: no scan comes before the chunks.
TEST_F(LaunchOrder, OneChunk) {
  check({.B = 64, .T = 64, .H = 8, .Hkv = 8, .K = 64, .V = 64, .gates = "k"});
  check({.B = 64, .T = 60, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "g"});
  check({.B = 32, .T = 128, .H = 8, .Hkv = 8, .K = 256, .V = 256, .gates = "g"});
}

TEST_F(LaunchOrder, ConstantDecayAndGatesOfValues) {
  check({.B = 2, .T = 2000, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "m"}, "g_gamma");
  check({.B = 1, .T = 6000, .H = 4, .Hkv = 4, .K = 128, .V = 128, .gates = "m", .state = 4}, "g_gamma");
  check({.B = 2, .T = 700, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "kv"});
}

}  // namespace
}  // namespace glade
