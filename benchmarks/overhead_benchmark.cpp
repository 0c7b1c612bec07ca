// What one eager operation costs beyond its arithmetic: operations on 16 numbers. On CUDA the host queues operations
// without waiting for them, so that the time is that of the host or of the GPU's launches, whichever is longer.
#include "measure.h"

namespace {

using namespace glade;

constexpr std::int64_t kNumbers = 16;

template <class F>
void run(benchmark::State& state, Device device, const F& f) {
  for (int i = 0; i < 100; ++i) f();
  for (auto _ : state) f();
  if (device.is_cuda()) cuda::synchronize();
}

void forward(benchmark::State& state, Device device, bool recorded) {
  const Tensor x = ones({kNumbers}, {DType::float32, device}).set_requires_grad(recorded), b = ones_like(x);
  run(state, device, [&] { benchmark::DoNotOptimize(x * b); });
}

void two_operations(benchmark::State& state, Device device) {
  const Tensor x = ones({kNumbers}, {DType::float32, device}), b = ones_like(x), a = ones_like(x);
  run(state, device, [&] { benchmark::DoNotOptimize(x * b + a); });
}

/// Ends in gradients of both operands, with the gradients of the last time let go.
void forward_backward(benchmark::State& state, Device device) {
  const Tensor x = ones({kNumbers}, {DType::float32, device}).set_requires_grad();
  const Tensor b = ones({kNumbers}, {DType::float32, device}).set_requires_grad(), gradient = ones_like(b);
  run(state, device, [&] {
    (x * b).backward(gradient);
    x.set_grad({});
    b.set_grad({});
  });
}

/// The same for x * b + a.
void two_operations_backward(benchmark::State& state, Device device) {
  const TensorOptions options{DType::float32, device};
  const Tensor gradient = ones({kNumbers}, options);
  Tensor x = ones_like(gradient).set_requires_grad(), b = ones_like(gradient).set_requires_grad(),
         a = ones_like(gradient).set_requires_grad();
  run(state, device, [&] {
    (x * b + a).backward(gradient);
    for (const Tensor& leaf : {x, b, a}) leaf.set_grad({});
  });
}

const bool registered = [] {
  for (const Device device : benchmarks::devices()) {
    const auto add = [&](const std::string& name, auto f) {
      benchmark::RegisterBenchmark((name + "/" + device.name()).c_str(), f);
    };
    add("overhead/forward", [=](benchmark::State& state) { forward(state, device, false); });
    add("overhead/forward_recorded", [=](benchmark::State& state) { forward(state, device, true); });
    add("overhead/forward_two_operations", [=](benchmark::State& state) { two_operations(state, device); });
    add("overhead/two_operations_backward", [=](benchmark::State& state) { two_operations_backward(state, device); });
    add("overhead/forward_backward", [=](benchmark::State& state) { forward_backward(state, device); });
  }
  return true;
}();

}  // namespace
