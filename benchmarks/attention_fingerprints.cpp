// Hashes the results of seeded recurrences, so that two commits can be compared: equal hashes where the kernels are the same.
//     attention_fingerprints [COUNT] [DEVICE] > FILE
// A line for each problem: number, shape, gates, dtype, algorithms; the hashes of the output, the final state and the gradients
// of query, key, value, g, g_gamma, gk, gv and initial_state; peak memory in bytes.
#include <glade/glade.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace glade;

namespace {

struct Problem {
  std::int64_t B, T, H, G, K, V;
  bool g, g_gamma, gk, gv, float_gates, packed, reverse, state;
  double strength;
  DType dtype;
  Algorithm algorithm;
};

template <class T>
T pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

Problem draw(std::mt19937_64& random) {
  Problem p{};
  p.dtype = pick(random, {DType::bfloat16, DType::bfloat16, DType::bfloat16, DType::float16, DType::float32, DType::float64});
  p.K = pick<std::int64_t>(random, {16, 32, 64, 64, 96, 128, 128, 128, 160, 256, 40, 33, 288});
  p.V = pick<std::int64_t>(random, {16, 32, 64, 64, 96, 128, 128, 128, 192, 256, 48, 35, 512});
  p.H = pick<std::int64_t>(random, {1, 2, 4, 4, 8, 16});
  p.G = random() % 4 == 0 ? 1 : p.H;
  p.T = pick<std::int64_t>(random, {1, 7, 64, 65, 200, 512, 1000, 1024, 2048, 4096});
  p.B = pick<std::int64_t>(random, {1, 1, 2, 3, 8});
  while (p.B * p.T * p.H * std::max(p.K, p.V) > std::int64_t{1} << 23) p.B > 1 ? p.B /= 2 : p.T /= 2;
  const auto gates = random() % 10;
  p.gk = gates < 4 || gates == 8;
  p.g = gates == 4 || gates == 5 || gates == 8;
  p.g_gamma = gates == 6 || gates == 5;
  p.gv = gates == 9 || (p.gk && random() % 8 == 0);
  p.float_gates = random() % 3 == 0;
  p.packed = random() % 4 == 0;
  p.reverse = random() % 5 == 0;
  p.state = random() % 2 == 0;
  p.strength = pick(random, {1.0 / 16, 1.0 / 16, 1.0, 10.0});
  p.algorithm = pick(random, {Algorithm::automatic, Algorithm::automatic, Algorithm::recurrent, Algorithm::chunk});
  if (p.gv && p.algorithm == Algorithm::chunk) p.algorithm = Algorithm::automatic;
  if (p.dtype == DType::float64 && p.algorithm == Algorithm::chunk) p.algorithm = Algorithm::recurrent;
  return p;
}

std::uint64_t hash_of(const Tensor& x) {
  if (!x.defined()) return 0;
  const Tensor host = to_data(x, kCPU);
  const Tensor rows = contiguous_data(host);
  const auto* bytes = static_cast<const unsigned char*>(rows.raw_data());
  std::uint64_t hash = 0xcbf29ce484222325;
  const std::size_t size = static_cast<std::size_t>(rows.numel()) * dtype_size(rows.dtype());
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  for (; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

void run(int number, const Problem& p, Device device) {
  Generator generator(static_cast<std::uint64_t>(number) + 1);
  const TensorOptions wide{DType::float32, device};
  const auto random = [&](const Shape& shape, DType dtype) { return to_data(normal(shape, 0, 1, wide, generator), dtype); };
  const DType state = p.dtype == DType::float64 ? DType::float64 : DType::float32;
  const DType gates = p.float_gates ? state : p.dtype;
  const auto gate = [&](const Shape& shape) {
    return to_data(logsigmoid(normal(shape, 0, 1, wide, generator)) * p.strength, gates).set_requires_grad();
  };
  const std::int64_t N = p.packed ? 3 : p.B, B = p.packed ? 1 : p.B, T = p.packed ? p.B * p.T : p.T;
  Tensor q = random({B, T, p.H, p.K}, p.dtype).set_requires_grad(), k = random({B, T, p.G, p.K}, p.dtype).set_requires_grad(),
         v = random({B, T, p.G, p.V}, p.dtype).set_requires_grad();
  RecurrentOptions options;
  if (p.g) options.g = gate({B, T, p.H});
  if (p.gk) options.gk = gate({B, T, p.H, p.K});
  if (p.gv) options.gv = gate({B, T, p.H, p.V});
  if (p.g_gamma) options.g_gamma = to_data(lightning_g_gamma(p.H, 1, 8, device), state);
  if (p.g_gamma && number % 3 == 0) options.g_gamma.set_requires_grad();
  if (p.state) options.initial_state = random({N, p.H, p.K, p.V}, state).set_requires_grad();
  if (p.packed) options.cu_seqlens = Tensor::from_vector<std::int64_t>({0, T / 3, T / 3, T});
  options.reverse = p.reverse;
  options.algorithm = p.algorithm;
  std::printf("%d B%ld_T%ld_H%ld_G%ld_K%ld_V%ld%s%s%s%s%s%s%s %s %d", number, p.B, p.T, p.H, p.G, p.K, p.V, p.g ? " g" : "",
              p.g_gamma ? " g_gamma" : "", p.gk ? " gk" : "", p.gv ? " gv" : "", p.packed ? " packed" : "",
              p.reverse ? " reverse" : "", p.state ? " state" : "", std::string(dtype_name(p.dtype)).c_str(),
              static_cast<int>(p.algorithm));
  if (device.is_cuda()) cuda::reset_peak_memory_stats();
  try {
    const auto [o, final_state] = recurrent(q, k, v, options);
    const Tensor grad_o = random(o.shape(), o.dtype()), grad_state = random(final_state.shape(), final_state.dtype());
    Tensors inputs{q, k, v};
    for (const Tensor& x : {options.g, options.g_gamma, options.gk, options.gv, options.initial_state})
      if (x.defined() && x.requires_grad()) inputs.push_back(x);
    const Tensors grads = autograd::grad({o, final_state}, inputs, {grad_o, grad_state});
    std::printf(" o %016lx", hash_of(o));
    std::printf(" s %016lx", hash_of(final_state));
    for (const Tensor& x : grads) std::printf(" %016lx", hash_of(x));
    if (device.is_cuda()) std::printf(" peak %zu", cuda::memory_stats().peak_allocated);
    std::printf("\n");
  } catch (const Error& error) {
    std::printf(" error %s\n", error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 500;
  const Device device = Device::parse(argc > 2 ? argv[2] : "auto");
  for (int i = 0; i < count; ++i) {
    std::mt19937_64 random(static_cast<std::uint64_t>(i) * 7919 + 13);
    run(i, draw(random), device);
  }
}
