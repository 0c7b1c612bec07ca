// few_tokens: sequences of a few tokens by each of the kernels that can compute them, on a GPU. The rules of plan.cpp that choose
// between them follow these times.
//
//   few_tokens > few_tokens.csv
//
// Microseconds of a call, forward from an initial to a final state (forward), and forward and backward without states (both); in
// inference the states are most of the bytes. Inputs take turns, so that no cache holds them. "floor" is the time of the bytes of
// `forward` at the rate of a copy.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "stopwatch.h"

using namespace glade;
using benchmarks::copy_rate;
using benchmarks::time_calls;

namespace {

struct Case {
  std::int64_t B, H, K, V;
  const char* gates;
  DType dtype = DType::bfloat16;
};

struct Inputs {
  Tensor query, key, value, g, gk, gv, state, grad;

  Inputs(const Case& c, std::int64_t T, bool training) {
    const auto random = [&](const Shape& shape) { return to_data(randn(shape, {DType::float32, kCUDA}), c.dtype); };
    const auto gates = [&](const Shape& shape) {
      return to_data(logsigmoid(randn(shape, {DType::float32, kCUDA})) / 16, c.dtype);
    };
    const std::string_view which = c.gates;
    query = random({c.B, T, c.H, c.K});
    key = random({c.B, T, c.H, c.K});
    value = random({c.B, T, c.H, c.V});
    if (which == "g") g = gates({c.B, T, c.H});
    if (which.starts_with("gk")) gk = gates({c.B, T, c.H, c.K});
    if (which == "gk+gv") gv = gates({c.B, T, c.H, c.V});
    if (!training) {
      state = randn({c.B, c.H, c.K, c.V}, {DType::float32, kCUDA});
      return;
    }
    grad = random({c.B, T, c.H, c.V});
    for (Tensor* x : {&query, &key, &value, &g, &gk, &gv})
      if (x->defined()) x->set_requires_grad();
  }
  Tensors leaves() const {
    Tensors leaves;
    for (const Tensor& x : {query, key, value, g, gk, gv})
      if (x.defined()) leaves.push_back(x);
    return leaves;
  }
};

/// The seconds of a call, forward with states, or forward and backward without.
double time(const Case& c, std::int64_t T, const AttentionConfig& cfg, bool training) {
  constexpr std::int64_t kBeyondCaches = 128 << 20;
  const std::int64_t bytes = c.B * c.H * (T * (c.K + c.V) * 4 + (training ? 0 : c.K * c.V * 4));
  std::vector<Inputs> inputs;
  {
    const NoGradGuard no_grad;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(kBeyondCaches / bytes + 2, 16); ++i) inputs.emplace_back(c, T, training);
  }
  std::size_t turn = 0;
  return time_calls(kCUDA, [&] {
    const Inputs& x = inputs[turn++ % inputs.size()];
    AttentionOptions options;
    options.return_state = !training;
    options.cfg = cfg;
    const Tensor o = recurrent_attention(x.query, x.key, x.value, x.g, {}, x.gk, x.gv, x.state, {}, options).first;
    if (training) autograd::grad({o}, x.leaves(), {x.grad});
  });
}

double floor_bytes(const Case& c, std::int64_t T) {
  const std::string_view which = c.gates;
  const std::int64_t rows = 2 * c.K + 2 * c.V + (which == "g") + c.K * which.starts_with("gk") + c.V * (which == "gk+gv");
  return static_cast<double>(c.B * c.H * (T * rows * static_cast<std::int64_t>(dtype_size(c.dtype)) + 8 * c.K * c.V));
}

void run(std::int64_t most_tokens) {
  if (!cuda::is_available()) throw DeviceError("there is no GPU");
  const double rate = copy_rate(kCUDA);
  const AttentionConfig chunk{.algorithm = Algorithm::chunk}, recurrent{.algorithm = Algorithm::recurrent, .warps = 4},
      few{.algorithm = Algorithm::recurrent};
  fmt::print("shape,T,gates,dtype,floor,forward_chunk,forward_recurrent,forward_few,both_chunk,both_recurrent,both_few\n");
  for (const Case& c : {Case{64, 16, 128, 128, "gk"},
                        {2, 8, 128, 128, "gk"},
                        {512, 4, 64, 64, "g"},
                        {64, 4, 256, 512, "gk"},
                        {13, 49, 272, 272, "gk+gv", DType::float16},
                        {64, 16, 128, 128, "gk", DType::float32}})
    for (const std::int64_t T : {1, 2, 4, 8, 10, 16, 24, 32}) {
      if (T > most_tokens) break;
      fmt::print("B{}_H{}_K{}_V{},{},{},{},{:.1f}", c.B, c.H, c.K, c.V, T, c.gates, dtype_name(c.dtype),
                 floor_bytes(c, T) / rate * 1e6);
      for (const bool training : {false, true})
        for (const AttentionConfig& cfg : {chunk, recurrent, few}) {
          const bool runs = cfg.algorithm == Algorithm::chunk ? std::string_view(c.gates) != "gk+gv" : T > 1 || cfg.warps == 0;
          fmt::print(",{}", runs ? fmt::format("{:.1f}", time(c, T, cfg, training) * 1e6) : "");
        }
      fmt::print("\n");
      std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Times linear attention over sequences of a few tokens, by each kernel that can compute them, on a GPU.",
               "few_tokens");
  std::int64_t most_tokens = 32;
  app.add_option("--most-tokens", most_tokens, "Largest number of tokens of a sequence")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  run(most_tokens);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "few_tokens: {}\n", error.what());
  return 1;
}
