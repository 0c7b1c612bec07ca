// RecurrentOptions::return_state: without the final state, everything else is the same, bit by bit.
#include <glade/autograd/engine.h>

#include "ops/linear_attention_cases.h"

using namespace glade;
using namespace glade::testing_support;

namespace {

class ReturnState : public DeviceTest {
 protected:
  struct Results {
    Tensors all;  ///< the output, and the gradients of all arguments
    bool has_state;
  };
  static Results results(RecurrenceArguments x, bool return_state) {
    x.options.return_state = return_state;
    Tensors leaves;
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) leaves.push_back(*tensor = tensor->detach().set_requires_grad());
    const auto [o, state] = recurrent(x.query, x.key, x.value, x.options);
    Results found{autograd::grad({o}, leaves, {ones_like(o)}), state.defined()};
    found.all.push_back(o);
    {
      const NoGradGuard no_grad;  // where the plan may be another one
      const auto [same_o, same_state] = recurrent(x.query, x.key, x.value, x.options);
      EXPECT_EQ(same_state.defined(), return_state);
      found.all.push_back(same_o);
    }
    return found;
  }
  void check(const Spec& s, DType dtype) const {
    RecurrenceArguments x = make(s, device(), dtype);
    std::vector<Algorithm> some = algorithms(x);
    some.push_back(Algorithm::automatic);
    for (const Algorithm algorithm : some) {
      x.options.algorithm = algorithm;
      SCOPED_TRACE(s.str() + ' ' + std::string(dtype_name(dtype)) + '\n' + plan(x.query, x.key, x.value, x.options).to_string());
      const Results with = results(x, true), without = results(x, false);
      EXPECT_TRUE(with.has_state);
      EXPECT_FALSE(without.has_state);
      for (std::size_t i = 0; i < with.all.size(); ++i)
        EXPECT_EQ(without.all[i].to_vector<double>(), with.all[i].to_vector<double>()) << "result " << i;
    }
  }
};
GLADE_DEVICE_TESTS(ReturnState);

TEST_P(ReturnState, NothingElseDependsOnIt) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    check({.T = 1, .K = 16, .V = 8}, dtype);                                     // one token
    check({.T = 9, .gates = "k", .state = 4}, dtype);                            // a few
    check({.T = 150, .K = 16, .V = 8, .gates = "v"}, dtype);                     // small heads
    check({.T = 150, .gates = "g", .state = 3, .reverse = true}, dtype);         // odd ones
    check({.B = 1, .T = 200, .gates = "m", .starts = {0, 70, 70, 200}}, dtype);  // packed sequences
  }
}

TEST_P(ReturnState, NothingElseDependsOnItInAnyKernelForHopper) {
  if (device().is_cpu()) GTEST_SKIP() << "kernels for Hopper GPUs";
  const std::initializer_list<Spec> specs = {
      {.B = 40, .T = 200, .H = 8, .Hkv = 8, .K = 64, .V = 64, .gates = "k"},    // narrow blocks
      {.B = 40, .T = 200, .H = 8, .Hkv = 8, .K = 48, .V = 128, .gates = "k"},   // wide blocks
      {.B = 20, .T = 200, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "k"},  // shared gates
      {.B = 2, .T = 700, .H = 20, .Hkv = 20, .K = 96, .V = 128, .gates = "k"},  // shares of the chunks
      {.B = 2, .T = 700, .H = 4, .Hkv = 2, .K = 256, .V = 256, .gates = "k"},   // gates first
      {.B = 2, .T = 700, .H = 2, .Hkv = 2, .K = 320, .V = 128, .gates = "k"},   // parts of the keys
      {.B = 1, .T = 4000, .H = 2, .Hkv = 2, .K = 128, .V = 128, .gates = "g"},  // segments
      {.B = 8, .T = 700, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "g"},   // wide blocks with TMA
      {.B = 8, .T = 300, .H = 8, .Hkv = 8, .K = 256, .V = 256, .gates = "g"},   // shared rows
      {.B = 2, .T = 4000, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "m"},  // constant decay
      {.B = 2, .T = 300, .H = 4, .Hkv = 4, .K = 128, .V = 128, .gates = "kv"},  // gates of values
      {.B = 4, .T = 700, .H = 8, .Hkv = 8, .K = 100, .V = 100, .gates = "k"},   // channels of zeros
      {.B = 1, .T = 900, .H = 4, .Hkv = 4, .K = 128, .V = 128, .gates = "k", .starts = {0, 300, 310, 900}}};
  for (const Spec& s : specs) check(s, DType::bfloat16);
  check({.B = 2, .T = 300, .H = 4, .Hkv = 4, .K = 128, .V = 128, .gates = "k"}, DType::float32);  // chunks in float32
}

}  // namespace
