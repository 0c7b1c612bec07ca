// sequence_parallel: tokens a second of the recurrence alone, forward and backward, on a sequence of which every rank has a part.
//
//   sequence_parallel --tokens 262144; mpirun -np 4 sequence_parallel --tokens 262144      one GPU beside four with as many each
#include <fmt/format.h>
#include <glade/glade.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

using namespace glade;

namespace {

struct Options {
  std::string gate = "gk", dtype = "bfloat16", device = "cuda";
  std::int64_t tokens = 262144, heads = 4, K = 128, V = 256, steps = 20;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int run(const Options& o) {
  const ProcessGroup world = ProcessGroup::world();
  const TensorOptions options{dtype_from_name(o.dtype), world.device(o.device)};
  const auto draw = [&](std::int64_t channels, double low, double high) {
    return uniform({1, o.tokens, o.heads, channels}, low, high, options);
  };
  const Tensor q = draw(o.K, -1, 1), k = draw(o.K, -1, 1), v = draw(o.V, -1, 1), gradient = draw(o.V, -1, 1);
  Tensors leaves{q, k, v};
  RecurrentOptions gates;
  if (o.gate == "gk") leaves.push_back(gates.gk = draw(o.K, -0.1, 0));
  else gates.g_gamma = lightning_g_gamma(o.heads, 0, 2, options.device);
  for (Tensor& x : leaves) x.set_requires_grad();
  const auto step = [&] {
    const double begin = seconds();
    autograd::backward({recurrent(q, k, v, gates, world).first}, {gradient});
    slice(flatten(q.grad()), 0, 0, 1).item<double>();  // waits for the device
    for (Tensor& x : leaves) x.set_grad({});
    return seconds() - begin;
  };
  for (int i = 0; i < 3; ++i) step();
  std::vector<double> times;
  for (std::int64_t i = 0; i < o.steps; ++i) times.push_back(step());
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  const double median = times[times.size() / 2];
  ProcessGroup::shutdown();
  if (world.rank() > 0) return 0;
  fmt::print("{} ranks of {} tokens, {} heads of {} x {}, {} {}: {:.3f} ms, {:.3g} tokens/s\n", world.size(), o.tokens, o.heads,
             o.K, o.V, o.gate, o.dtype, 1e3 * median, static_cast<double>(world.size() * o.tokens) / median);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Times the recurrence of sequences that ranks share.", "sequence_parallel");
  Options o;
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--tokens", o.tokens, "Tokens on each rank")->check(positive)->capture_default_str();
  app.add_option("--heads", o.heads, "Heads")->check(positive)->capture_default_str();
  app.add_option("--K", o.K, "Channels of a key")->check(positive)->capture_default_str();
  app.add_option("--V", o.V, "Channels of a value")->check(positive)->capture_default_str();
  app.add_option("--gate", o.gate, "gk or g_gamma")->check(CLI::IsMember({"gk", "g_gamma"}))->capture_default_str();
  app.add_option("--dtype", o.dtype, "Of query, key and value")->capture_default_str();
  app.add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--steps", o.steps, "Passes to time")->check(positive)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return run(o);
} catch (const std::exception& error) {
  fmt::print(stderr, "sequence_parallel: {}\n", error.what());
  return 1;
}
