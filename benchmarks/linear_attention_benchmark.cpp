// The gated recurrence: forward, forward with backward, and generation. compare_fla.py runs this beside fla's kernels.
#include "measure.h"

namespace {

using namespace glade;
using benchmarks::measure;

struct Case {
  std::int64_t B, T, H, K, V;

  std::string name() const {
    std::string name;
    for (const auto& [letter, size] : {std::pair{"B", B}, {"_T", T}, {"_H", H}, {"_K", K}, {"_V", V}})
      name.append(letter).append(std::to_string(size));
    return name;
  }
};

/// Inputs of one call. gate: "gk", "g", "g_gamma" or "none", log decays as in trained models.
struct Inputs {
  Tensor query, key, value, grad;
  RecurrentOptions options;

  Inputs(const Case& c, const std::string& gate, TensorOptions like, Algorithm algorithm) {
    auto random = [&](const Shape& shape) { return to_data(randn(shape, {DType::float32, like.device}), like.dtype); };
    auto gates = [&](const Shape& shape) {
      return to_data(logsigmoid(randn(shape, {DType::float32, like.device})) / 16, like.dtype);
    };
    query = random({c.B, c.T, c.H, c.K});
    key = random({c.B, c.T, c.H, c.K});
    value = random({c.B, c.T, c.H, c.V});
    grad = random({c.B, c.T, c.H, c.V});
    if (gate == "gk") options.gk = gates({c.B, c.T, c.H, c.K});
    if (gate == "g") options.g = gates({c.B, c.T, c.H});
    if (gate == "g_gamma") options.g_gamma = lightning_g_gamma(c.H, 1, 8, like.device);
    options.algorithm = algorithm;
    options.return_state = false;  // as compare_fla.py calls fla
  }

  void require_gradients() {
    for (Tensor* x : {&query, &key, &value, &options.g, &options.gk})
      if (x->defined()) x->set_requires_grad();
  }
};

/// Enough inputs that no cache holds them, taken in turn.
class Rotation {
 public:
  Rotation(const Case& c, const std::string& gate, TensorOptions like, Algorithm algorithm, bool gradients) {
    constexpr std::int64_t kBeyondCaches = 128 << 20;
    const std::int64_t bytes = c.B * c.T * c.H * (2 * c.K + 2 * c.V) * static_cast<std::int64_t>(dtype_size(like.dtype));
    const std::int64_t count = like.device.is_cuda() ? kBeyondCaches / bytes + 2 : 1;
    const NoGradGuard no_grad;
    for (std::int64_t i = 0; i < count; ++i) {
      inputs_.emplace_back(c, gate, like, algorithm);
      if (gradients) inputs_.back().require_gradients();
    }
  }
  const Inputs& next() { return inputs_[turn_++ % inputs_.size()]; }

 private:
  std::vector<Inputs> inputs_;
  std::size_t turn_ = 0;
};

void forward(benchmark::State& state, const Case& c, const std::string& gate, TensorOptions like, Algorithm algorithm) {
  const NoGradGuard no_grad;
  Rotation rotation(c, gate, like, algorithm, false);
  measure(state, like.device, "tokens/s", static_cast<double>(c.B * c.T), [&] {
    const Inputs& x = rotation.next();
    benchmark::DoNotOptimize(recurrent(x.query, x.key, x.value, x.options));
  });
}

/// The counter "memory" is what a call takes on the GPU beside its inputs, in bytes.
void forward_backward(benchmark::State& state, const Case& c, const std::string& gate, TensorOptions like, Algorithm algorithm) {
  Rotation rotation(c, gate, like, algorithm, true);
  auto call = [&] {
    const Inputs& x = rotation.next();
    const Tensor o = recurrent(x.query, x.key, x.value, x.options).first;
    Tensors leaves;
    for (const Tensor& leaf : {x.query, x.key, x.value, x.options.g, x.options.gk})
      if (leaf.defined()) leaves.push_back(leaf);
    benchmark::DoNotOptimize(autograd::grad({o}, leaves, {x.grad}));
  };
  if (like.device.is_cuda()) {
    cuda::reset_peak_memory_stats();
    const std::size_t before = cuda::memory_stats().allocated;
    call();
    state.counters["memory"] = static_cast<double>(cuda::memory_stats().peak_allocated - before);
  }
  measure(state, like.device, "tokens/s", static_cast<double>(c.B * c.T), call);
}

#if defined(GLADE_WITH_CUDA)
/// The first call of a process, its kernels' loading included, where no other benchmark ran before.
void first_call(benchmark::State& state) {
  Inputs x({4, 2048, 16, 128, 128}, "gk", {DType::bfloat16, kCUDA}, Algorithm::automatic);
  x.require_gradients();
  for (auto _ : state) {
    cuda::synchronize();
    const auto start = std::chrono::steady_clock::now();
    const Tensor o = recurrent(x.query, x.key, x.value, x.options).first;
    benchmark::DoNotOptimize(autograd::grad({o}, {x.query, x.key, x.value, x.options.gk}, {x.grad}));
    cuda::synchronize();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

/// One token of `batch` sequences, as a CUDA graph of many steps on states that no cache holds. The time is that of one
/// step.
void generate(benchmark::State& state, std::int64_t batch) {
  const NoGradGuard no_grad;
  const Case c{batch, 1, 16, 128, 128};
  const std::int64_t bytes = 4 * batch * c.H * c.K * c.V, states = (256 << 20) / bytes + 2;
  const Inputs x(c, "gk", {DType::bfloat16, kCUDA}, Algorithm::automatic);
  const Tensor out = empty_like(x.value);
  Tensors rotation;
  for (std::int64_t i = 0; i < states; ++i) rotation.push_back(zeros({batch, c.H, c.K, c.V}, {DType::float32, kCUDA}));
  const int steps = static_cast<int>(std::max<std::int64_t>(states, 64));
  cuda::synchronize();

  cuda::Graph graph;
  graph.capture([&] {
    for (int i = 0; i < steps; ++i)
      recurrent_step_(rotation[static_cast<std::size_t>(i) % rotation.size()], x.query, x.key, x.value, x.options, out);
  });
  graph.replay();

  benchmarks::Stopwatch stopwatch(kCUDA);
  for (auto _ : state) {
    stopwatch.start();
    graph.replay();
    state.SetIterationTime(stopwatch.stop() / steps);
  }
  state.counters["B/s"] = benchmark::Counter(2.0 * static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate);
}
#endif

void add(const std::string& name, const Case& c, const std::string& gate, TensorOptions like, Algorithm algorithm) {
  const std::string tail = "/" + gate + "/" + c.name() + "/" + like.device.name();
  auto with = [&](const char* what, auto f) {
    benchmark::RegisterBenchmark((name + "/" + what + tail).c_str(),
                                 [=](benchmark::State& state) { f(state, c, gate, like, algorithm); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  };
  with("forward", forward);
  with("forward_backward", forward_backward);
}

const bool registered = [] {
  for (const char* gate : {"gk", "g", "g_gamma", "none"})
    for (const Case& c : {Case{4, 1024, 4, 64, 64}, {4, 64, 4, 64, 64}, {4, 16, 4, 64, 64}, {2, 1024, 4, 128, 128}}) {
      add("recurrent", c, gate, {DType::float32, kCPU}, Algorithm::recurrent);
      add("chunk", c, gate, {DType::float32, kCPU}, Algorithm::chunk);
    }
  if (!cuda::is_available()) return true;
  const TensorOptions like{DType::bfloat16, kCUDA};
  for (const char* gate : {"gk", "g", "g_gamma"}) {
    for (const Case& c : {Case{4, 2048, 16, 128, 128}, {8, 1024, 8, 64, 64}, {8, 2048, 4, 128, 256}, {1, 16384, 8, 128, 128}}) {
      add("recurrent", c, gate, like, Algorithm::recurrent);
      add("chunk", c, gate, like, Algorithm::chunk);
    }
    for (const Case& c : {Case{4, 2048, 4, 256, 512},
                          {4, 4096, 8, 256, 256},
                          {1, 8192, 4, 256, 256},
                          {2, 4096, 8, 192, 192},
                          {4, 2048, 8, 256, 128},
                          {3, 3000, 12, 96, 96},
                          {64, 256, 6, 32, 64},
                          {64, 128, 16, 128, 128},
                          {4, 4096, 8, 128, 128},
                          {8, 2048, 32, 64, 64},
                          {1, 8192, 64, 128, 128}})
      add("chunk", c, gate, like, Algorithm::chunk);
    for (const std::int64_t T : {131072, 1048576}) add("recurrent", {1, T, 8, 128, 128}, gate, like, Algorithm::recurrent);
    for (const Case& c : {Case{8, 2048, 32, 256, 256}, {2, 16384, 16, 128, 128}, {1, 131072, 8, 128, 128}})
      add("chunk", c, gate, like, Algorithm::chunk);
  }
  // In no table, so nothing was chosen by them.
  for (const Case& c : {Case{2, 2048, 5, 256, 512},
                        {2, 1500, 7, 64, 128},
                        {6, 700, 10, 128, 64},
                        {1, 5000, 3, 192, 384},
                        {3, 2222, 20, 96, 192},
                        {16, 512, 4, 256, 256},
                        {1, 20000, 2, 128, 128},
                        {128, 100, 2, 64, 64}})
    add("chunk", c, "gk", like, Algorithm::chunk);
  for (std::int64_t T = 512; T < 131072; T *= 2) add("chunk", {131072 / T, T, 8, 128, 128}, "gk", like, Algorithm::chunk);
#if defined(GLADE_WITH_CUDA)
  benchmark::RegisterBenchmark("first_call/gk/B4_T2048_H16_K128_V128", first_call)->UseManualTime()->Iterations(1);
  for (const std::int64_t batch : {1, 32, 256})
    benchmark::RegisterBenchmark(std::string("generate/gk/B").append(std::to_string(batch)).c_str(),
                                 [=](benchmark::State& state) { generate(state, batch); })
        ->UseManualTime()
        ->Iterations(20)  // each of many steps
        ->Unit(benchmark::kMicrosecond);
#endif
  return true;
}();

}  // namespace
