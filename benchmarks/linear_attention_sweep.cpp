// linear_attention_sweep: times recurrent() on random shapes, forward and forward with backward, and flags cliffs.
//
//   linear_attention_sweep --csv sweep.csv               and then: plot_sweep.py sweep.csv sweep.png
//
// Every shape is timed at three sizes: its own, and those of two neighbours, which have 0.8 and 1.25 times as many tokens in a
// sequence. A shape whose sequences have fewer than five tokens varies the number of sequences, and one that has few of these as
// well varies the number of heads. Shapes that are small in all three are not drawn, nor those that would take more memory than
// --memory or much more work than others. The prediction is a power law through both neighbours: between them, the logarithm of
// the time is linear in the logarithm of the size. A cliff is a shape that takes more than 1.5 times its prediction. It is timed
// again, with its neighbours, and of both times of each the smaller one counts.
//
// The floor of a pass is the time of its bytes at the rate of a copy, which is measured first. The forward pass reads query, key,
// value and gates, and writes the output and the final state. Calls with a backward pass, as in training, leave the final state
// out, read the inputs again and the gradient of the output, and write the gradients of query, key, value and gates; g_gamma has
// none. Inputs take turns, so that no cache holds them. Times include what the host does for a call where that takes longer than
// the kernels.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "stopwatch.h"

using namespace glade;
using benchmarks::copy_rate;
using benchmarks::time_calls;
using Json = nlohmann::ordered_json;

namespace {

constexpr double kCliff = 1.5;                       // times the prediction
constexpr std::int64_t kFewest = 5;                  // a smaller size has no neighbours at 0.8 and 1.25 times it
constexpr double kBeyondCaches = 128 << 20;          // bytes
constexpr double kMostWork = std::int64_t{1} << 35;  // tokens x heads x K x V: some 100 ms on an H200, token by token
constexpr double kGiB = std::int64_t{1} << 30;       // bytes
constexpr double kLeast = 0.8, kMost = 1 / 0.8;      // the sizes of the neighbours

struct Options {
  std::string device = "auto", csv, json;
  std::uint64_t seed = 1;
  std::int64_t shapes = 200, max_length = 131072, max_heads = 4096, max_head_size = 512;
  double memory = 16, seconds = 150;
};

/// A call of recurrent().
struct Call {
  std::int64_t sequences, length;  ///< length: the mean of packed sequences
  std::int64_t heads, K, V;
  std::string gates;
  DType dtype;
  bool packed;
  std::uint64_t seed;  ///< of the lengths of packed sequences

  bool has(const std::string& gate) const { return ('+' + gates + '+').find('+' + gate + '+') != std::string::npos; }
  std::int64_t tokens() const { return sequences * length; }
};

// ---- drawing ---------------------------------------------------------------------------------------------------------

/// Numbers that are the same with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  /// From 1 to `most`, every order of magnitude as likely as another.
  std::int64_t size(std::int64_t most) {
    return static_cast<std::int64_t>(std::exp(uniform() * std::log(static_cast<double>(most) + 1)));
  }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[engine_() % values.size()];
  }
  std::uint64_t seed() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

/// Half of the heads have a usual size, the others any multiple of 8 from 16 to 512.
std::int64_t draw_head_size(Random& random, std::int64_t most) {
  const std::int64_t usual = random.pick<std::int64_t>({16, 32, 64, 96, 128, 128, 256, 512}), any = 8 * (1 + random.size(63));
  return std::min(random.uniform() < 0.5 ? usual : any, most);
}

/// The size that is varied for the neighbours; null where all are too small.
std::int64_t Call::*varied(const Call& c) {
  for (std::int64_t Call::*size : {&Call::length, &Call::sequences, &Call::heads})
    if (c.*size >= kFewest) return size;
  return nullptr;
}
const char* varied_name(const Call& c) {
  const auto size = varied(c);
  return size == &Call::length ? "length" : size == &Call::sequences ? "sequences" : "heads";
}

Call neighbour(const Call& c, double by) {
  Call scaled = c;
  const double size = by * static_cast<double>(c.*varied(c));
  scaled.*varied(c) = static_cast<std::int64_t>(by < 1 ? std::floor(size) : std::ceil(size));
  return scaled;
}

/// An estimate of the bytes that a call with its backward pass takes, from above.
double memory_of(const Call& c) {
  const auto K = static_cast<double>(c.K), V = static_cast<double>(c.V), rows = static_cast<double>(c.tokens() * c.heads);
  const double element = static_cast<double>(dtype_size(c.dtype)), wide = sizeof(float);
  const double inputs = rows * element * (2 * K + 2 * V + K * c.has("gk") + V * c.has("gv"));
  const double for_gates = 2 * rows * wide * (K * (c.gates != "none") + V * c.has("gv"));  // of the recurrent kernels
  const double boundary_states = 2 * rows / 64 * K * V * element;                          // of the chunk kernels
  const double states = 4 * wide * static_cast<double>(c.sequences * c.heads) * K * V;
  return 3 * inputs + kBeyondCaches + for_gates + boundary_states + states;
}

double work_of(const Call& c) {
  return static_cast<double>(c.tokens() * c.heads) * static_cast<double>(c.K) * static_cast<double>(c.V);
}

Call draw(Random& random, const Options& o) {
  for (;;) {
    Call c{};
    c.length = random.size(o.max_length);
    const std::int64_t pairs = random.size(o.max_heads);
    c.heads = random.size(std::min<std::int64_t>(pairs, 64));
    c.sequences = pairs / c.heads;
    c.K = draw_head_size(random, o.max_head_size);
    c.V = random.uniform() < 0.5 ? c.K : draw_head_size(random, o.max_head_size);
    c.gates = random.pick<const char*>({"gk", "gk", "gk", "g", "g", "g_gamma", "g_gamma", "none", "gk+gv"});
    c.dtype = random.pick({DType::bfloat16, DType::bfloat16, DType::bfloat16, DType::float16, DType::float32});
    c.packed = random.uniform() < 0.25;
    c.seed = random.seed();
    if (!varied(c)) continue;
    const Call largest = neighbour(c, kMost);
    if (memory_of(largest) <= o.memory * kGiB && work_of(largest) <= kMostWork) return c;
  }
}

// ---- timing ----------------------------------------------------------------------------------------------------------

/// The boundaries of packed sequences of any length.
std::vector<std::int64_t> boundaries(const Call& c) {
  Random random(c.seed);
  std::vector<double> ends;
  for (std::int64_t i = 0; i < c.sequences; ++i) ends.push_back((ends.empty() ? 0 : ends.back()) + 0.1 + random.uniform());
  std::vector<std::int64_t> starts{0};
  for (const double end : ends) starts.push_back(std::llround(end / ends.back() * static_cast<double>(c.tokens())));
  return starts;
}

/// The tensors of a call, with random elements.
struct Inputs {
  Tensor query, key, value, grad;
  RecurrentOptions options;
  Tensors leaves;

  Inputs(const Call& c, Device device) {
    const TensorOptions wide{DType::float32, device};
    const std::int64_t B = c.packed ? 1 : c.sequences, T = c.packed ? c.tokens() : c.length;
    const auto random = [&](std::int64_t size) { return to_data(randn({B, T, c.heads, size}, wide), c.dtype); };
    const auto gate = [&](const Shape& shape) { return to_data(logsigmoid(randn(shape, wide)) / 16, c.dtype); };
    query = random(c.K);
    key = random(c.K);
    value = random(c.V);
    grad = random(c.V);
    if (c.has("g")) options.g = gate({B, T, c.heads});
    if (c.has("gk")) options.gk = gate({B, T, c.heads, c.K});
    if (c.has("gv")) options.gv = gate({B, T, c.heads, c.V});
    if (c.has("g_gamma")) options.g_gamma = lightning_g_gamma(c.heads, 1, 8, device);
    if (c.packed) options.cu_seqlens = Tensor::from_vector(boundaries(c));
    for (Tensor* x : {&query, &key, &value, &options.g, &options.gk, &options.gv})
      if (x->defined()) leaves.push_back(x->set_requires_grad());
  }
};

double bytes_of(const Tensor& x) {
  return x.defined() ? static_cast<double>(x.numel()) * static_cast<double>(dtype_size(x.dtype())) : 0;
}

/// A number for each pass.
struct Passes {
  double forward = 0, forward_backward = 0;
};

Passes floor_bytes(const Inputs& x, const Call& c) {
  double gradients = 0;
  for (const Tensor& leaf : x.leaves) gradients += bytes_of(leaf);
  const double inputs = gradients + bytes_of(x.options.g_gamma) + bytes_of(x.options.cu_seqlens);
  const double state = sizeof(float) * static_cast<double>(c.sequences * c.heads * c.K * c.V);
  const double forward = inputs + bytes_of(x.grad) + state;  // the output has the size of its gradient
  return {forward, forward - state + inputs + bytes_of(x.grad) + gradients};
}

/// What one size of a shape takes.
struct Timing {
  Passes seconds, bytes;
  AttentionPlan plan;
};

Timing time(const Call& c, Device device) {
  Timing timing;
  std::vector<Inputs> inputs;
  inputs.emplace_back(c, device);
  timing.bytes = floor_bytes(inputs[0], c);
  constexpr double kMostTurns = 8;
  const double turns = std::min(kMostTurns, device.is_cuda() ? 1 + kBeyondCaches / timing.bytes.forward : 1);
  while (static_cast<double>(inputs.size() + 1) <= turns) inputs.emplace_back(c, device);
  std::size_t turn = 0;
  const auto next = [&]() -> const Inputs& { return inputs[turn++ % inputs.size()]; };

  timing.plan = plan(inputs[0].query, inputs[0].key, inputs[0].value, inputs[0].options);
  timing.seconds.forward = time_calls(device, [&] {
    const NoGradGuard no_grad;
    const Inputs& x = next();
    recurrent(x.query, x.key, x.value, x.options);
  });
  timing.seconds.forward_backward = time_calls(device, [&] {
    const Inputs& x = next();
    RecurrentOptions options = x.options;
    options.return_state = false;
    autograd::grad({recurrent(x.query, x.key, x.value, options).first}, x.leaves, {x.grad});
  });
  return timing;
}

// ---- cliffs ----------------------------------------------------------------------------------------------------------

/// A shape's timing between those of its neighbours.
class Measurement {
 public:
  Measurement(const Call& call, Device device) : calls_{neighbour(call, kLeast), call, neighbour(call, kMost)}, device_(device) {
    for (std::size_t i = 0; i < calls_.size(); ++i) timings_[i] = time_one(i);
    if (!is_cliff(&Passes::forward) && !is_cliff(&Passes::forward_backward)) return;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const Passes again = time_one(i).seconds;
      for (double Passes::*pass : {&Passes::forward, &Passes::forward_backward})
        timings_[i].seconds.*pass = std::min(timings_[i].seconds.*pass, again.*pass);
    }
  }

  const Timing& smaller() const { return timings_[0]; }
  const Timing& own() const { return timings_[1]; }
  const Timing& larger() const { return timings_[2]; }
  /// The size that is varied.
  std::int64_t size_of_smaller() const { return calls_[0].*varied(calls_[1]); }
  std::int64_t size_of_larger() const { return calls_[2].*varied(calls_[1]); }
  /// The time of a pass as a multiple of its prediction.
  double excess(double Passes::*pass) const {
    const auto log_size = [&](std::size_t i) { return std::log(static_cast<double>(calls_[i].*varied(calls_[1]))); };
    const auto log_time = [&](std::size_t i) { return std::log(timings_[i].seconds.*pass); };
    const double share = (log_size(1) - log_size(0)) / (log_size(2) - log_size(0));
    return std::exp(log_time(1) - (1 - share) * log_time(0) - share * log_time(2));
  }
  bool is_cliff(double Passes::*pass) const { return excess(pass) > kCliff; }

 private:
  Timing time_one(std::size_t i) const {
    if (device_.is_cuda()) cuda::empty_cache(device_.index);  // blocks of other sizes
    return time(calls_[i], device_);
  }

  std::array<Call, 3> calls_;
  Device device_;
  std::array<Timing, 3> timings_;
};

Json row_of(std::int64_t number, const Call& c, const Measurement& m, double rate) {
  Json row{{"number", number},
           {"sequences", c.sequences},
           {"length", c.length},
           {"heads", c.heads},
           {"K", c.K},
           {"V", c.V},
           {"gates", c.gates},
           {"dtype", dtype_name(c.dtype)},
           {"packed", c.packed},
           {"varied", varied_name(c)},
           {"smaller", m.size_of_smaller()},
           {"larger", m.size_of_larger()}};
  const Timing& own = m.own();
  const auto add = [&](const std::string& pass, double Passes::*which, AttentionKernels kernels) {
    row[pass + "_kernels"] = kernels_name(kernels);
    row[pass + "_us"] = own.seconds.*which * 1e6;
    row[pass + "_smaller_us"] = m.smaller().seconds.*which * 1e6;
    row[pass + "_larger_us"] = m.larger().seconds.*which * 1e6;
    row[pass + "_floor_bytes"] = static_cast<std::int64_t>(own.bytes.*which);
    row[pass + "_of_floor"] = own.seconds.*which * rate / (own.bytes.*which);
    row[pass + "_of_prediction"] = m.excess(which);
    row[pass + "_cliff"] = m.is_cliff(which);
  };
  add("forward", &Passes::forward, own.plan.forward.kernels);
  add("forward_backward", &Passes::forward_backward, own.plan.backward.kernels);
  return row;
}

// ---- output ----------------------------------------------------------------------------------------------------------

std::string csv_field(const Json& x) {
  if (x.is_number_float()) return fmt::format("{:.4g}", x.get<double>());
  return x.is_string() ? x.get<std::string>() : x.dump();
}

/// Rows as text with commas, on the standard output and in a file where one is wanted.
class Csv {
 public:
  explicit Csv(std::ofstream& file) : file_(file) {}
  void write(const Json& row) {
    std::string header, line;
    for (const auto& [name, value] : row.items()) {
      header += (header.empty() ? "" : ",") + name;
      line += (line.empty() ? "" : ",") + csv_field(value);
    }
    if (std::exchange(first_, false)) print(header);
    print(line);
  }

 private:
  void print(const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
    if (file_.is_open()) file_ << line << '\n' << std::flush;
  }

  std::ofstream& file_;
  bool first_ = true;
};

std::ofstream open(const char* option, const std::string& path) {
  if (path.empty()) return {};
  std::ofstream file(path);
  if (!file) throw ValueError(fmt::format("{} {}: cannot be written", option, path));
  return file;
}

int run(const Options& o) {
  const Device device = Device::parse(o.device);
  std::ofstream csv_file = open("--csv", o.csv), json_file = open("--json", o.json);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  manual_seed(o.seed);
  Random random(o.seed);
  const double rate = copy_rate(device);
  Csv csv(csv_file);
  Json rows = Json::array();
  std::int64_t cliffs = 0;
  for (std::int64_t i = 0; i < o.shapes && elapsed() < o.seconds; ++i) {
    const Call call = draw(random, o);
    rows.push_back(row_of(i, call, Measurement(call, device), rate));
    cliffs += rows.back()["forward_cliff"] == true || rows.back()["forward_backward_cliff"] == true;
    csv.write(rows.back());
    if (call.packed) rows.back()["cu_seqlens"] = boundaries(call);
  }
  const auto done = static_cast<std::int64_t>(rows.size());
  if (json_file.is_open())
    json_file << Json{{"device", device.name()}, {"seed", o.seed}, {"copy_bytes_per_second", rate}, {"rows", rows}}.dump(1)
              << '\n';
  fmt::print(stderr, "{} shapes on {} in {:.0f} s, {} with a cliff; a copy moves {:.0f} GB/s\n", done, device.name(), elapsed(),
             cliffs, rate * 1e-9);
  if (done < o.shapes) fmt::print(stderr, "{} shapes are left out: the time was over\n", o.shapes - done);
  if ((csv_file.is_open() && !csv_file.flush()) || (json_file.is_open() && !json_file.flush()))
    throw Error("the results could not be written whole");
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Times linear attention on random shapes, and flags those that take far longer than their neighbours.",
               "linear_attention_sweep");
  Options o;
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--shapes", o.shapes, "Number of shapes")->check(positive)->capture_default_str();
  app.add_option("--seed", o.seed, "Seed for sampling the shapes")->capture_default_str();
  app.add_option("--max-length", o.max_length, "Largest mean length of sequences")
      ->check(CLI::Range(kFewest, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--max-heads", o.max_heads, "Largest number of heads of all sequences")->check(positive)->capture_default_str();
  app.add_option("--max-head-size", o.max_head_size, "Largest number of channels of a head")
      ->check(CLI::Range(std::int64_t{16}, std::int64_t{512}))
      ->capture_default_str();
  app.add_option("--memory", o.memory, "GiB that a call may take")->check(CLI::Range(0.25, 1024.0))->capture_default_str();
  app.add_option("--seconds", o.seconds, "No shape starts after this time")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--csv", o.csv, "File for the rows, which are also printed");
  app.add_option("--json", o.json, "File for the rows, the boundaries of packed sequences, the seed and the rate of a copy");
  CLI11_PARSE(app, argc, argv);
  return run(o);
} catch (const std::exception& error) {
  fmt::print(stderr, "linear_attention_sweep: {}\n", error.what());
  return 1;
}
