// Operations that memory bounds, in bytes that must move (each input read once, the result written once) a second,
// beside a plain copy of the same tensor.
#include <algorithm>
#include <cstring>

#include "measure.h"

namespace {

using namespace glade;
using benchmarks::measure;

/// Rows of a tensor that no cache holds.
Shape shape_for(Device device) { return device.is_cuda() ? Shape{65536, 2048} : Shape{4096, 2048}; }

void copy(benchmark::State& state, TensorOptions options) {
  const Tensor from = ones(shape_for(options.device), options), to = empty_like(from);
  const auto bytes = from.numel() * static_cast<std::int64_t>(dtype_size(options.dtype));
  measure(state, options.device, "B/s", 2.0 * static_cast<double>(bytes), [&] {
    if (options.device.is_cpu()) {
      constexpr std::int64_t kBlock = 1 << 18;
#pragma omp parallel for schedule(static)
      for (std::int64_t begin = 0; begin < bytes; begin += kBlock)
        std::memcpy(static_cast<char*>(to.raw_data()) + begin, static_cast<const char*>(from.raw_data()) + begin,
                    static_cast<std::size_t>(std::min(kBlock, bytes - begin)));
    } else {
#if defined(GLADE_WITH_CUDA)
      benchmarks::check(cudaMemcpyAsync(to.raw_data(), from.raw_data(), static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                                        benchmarks::stream()));
#endif
    }
  });
}

/// f(x, y), which reads one or both; the bytes of its result are counted too.
template <class F>
void operation(benchmark::State& state, TensorOptions options, int inputs, const F& f) {
  const NoGradGuard no_grad;
  const Tensor x = to_data(randn(shape_for(options.device), {DType::float32, options.device}), options.dtype), y = clone(x);
  const auto size = static_cast<double>(dtype_size(options.dtype));
  const double bytes = (inputs * static_cast<double>(x.numel()) + static_cast<double>(f(x, y).numel())) * size;
  measure(state, options.device, "B/s", bytes, [&] { benchmark::DoNotOptimize(f(x, y)); });
}

const bool registered = [] {
  for (const Device device : benchmarks::devices())
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const TensorOptions options{dtype, device};
      const auto add_benchmark = [&](const std::string& name, auto f) {
        const std::string full = name + "/" + device.name() + "/" + std::string(dtype_name(dtype));
        benchmark::RegisterBenchmark(full.c_str(), f)->UseManualTime()->Unit(benchmark::kMicrosecond);
      };
      const auto add_operation = [&](const std::string& name, auto f, int inputs = 1) {
        add_benchmark(name, [=](benchmark::State& state) { operation(state, options, inputs, f); });
      };
      add_benchmark("copy", [=](benchmark::State& state) { copy(state, options); });
      add_operation("add", [](const Tensor& x, const Tensor& y) { return x + y; }, 2);
      add_operation("exp", [](const Tensor& x, const Tensor&) { return exp(x); });
      add_operation("silu", [](const Tensor& x, const Tensor&) { return silu(x); });
      add_operation("sum_last", [](const Tensor& x, const Tensor&) { return sum(x, {-1}); });
      add_operation("sum_first", [](const Tensor& x, const Tensor&) { return sum(x, {0}); });
      add_operation("sum_all", [](const Tensor& x, const Tensor&) { return sum(x); });
      add_operation("softmax", [](const Tensor& x, const Tensor&) { return softmax(x); });
      add_operation("rms_norm", [](const Tensor& x, const Tensor&) { return rms_norm(x); });
    }
  return true;
}();

}  // namespace
