#include <glade/ops/linear_attention/common/chunk_gradients.h>

#include <cuda_fp16.h>

#include <glade/core/cuda/loops.cuh>
#include <glade/core/float16.h>
#include <glade/ops/linear_attention/common/sequence.cuh>
#include <glade/ops/shape/shape.h>

namespace glade::cuda::linear_attention {

namespace {

constexpr int kThreads = 256;

/// Sums over the parts and tiles of K of the gradients of per-head gates.
struct GateSums {
  const float* of_tiles;  ///< [tiles, tokens, heads, parts]
  int tiles, parts;
  std::int64_t count;  ///< tokens x heads
  void* dg;            ///< [tokens, heads], or null
  float* sums;         ///< the same, or null
};

/// One thread for each token and head. G: the elements of dg.
template <class G>
__global__ void __launch_bounds__(kThreads) sum_gates_kernel(GateSums s) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= s.count) return;
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < s.tiles * s.parts; ++i) sum += s.of_tiles[(i / s.parts * s.count + at) * s.parts + i % s.parts];
  if (s.dg) static_cast<G*>(s.dg)[at] = static_cast<G>(sum);
  if (s.sums) s.sums[at] = sum;
}

constexpr int kTokenThreads = 512;

/// Sums over the tokens: `sums` [tokens, heads] to dgamma [sequences, heads]. A block for each sequence and head.
__global__ void __launch_bounds__(kTokenThreads)
    sum_tokens_kernel(const float* sums, Sequences sequences, std::int64_t heads, float* dgamma) {
  const std::int64_t n = blockIdx.x;
  const Sequence sequence(sequences, n);
  const float* from = sums + sequence.begin * heads + blockIdx.y;
  float total = 0;
#pragma unroll 8
  for (std::int64_t t = threadIdx.x; t < sequence.length; t += kTokenThreads) total += from[t * heads];
  __shared__ float totals[kTokenThreads];
  totals[threadIdx.x] = total;
  __syncthreads();
  for (int step = kTokenThreads / 2; step > 0; step /= 2) {
    if (static_cast<int>(threadIdx.x) < step) totals[threadIdx.x] += totals[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) dgamma[n * heads + blockIdx.y] = totals[0];
}

void sum_gates(const Recurrence& r, const Tensor& of_tiles, const Tensor& dg, const Tensor& dgamma) {
  if (r.sequences == 0) return;
  const TensorOptions options{DType::float32, r.q.device()};
  const Tensor sums = dgamma.defined() ? empty({r.tokens, r.heads}, options) : Tensor();
  const GateSums s{.of_tiles = of_tiles.data<float>(),
                   .tiles = static_cast<int>(of_tiles.size(0)),
                   .parts = static_cast<int>(of_tiles.size(2) / r.heads),
                   .count = r.tokens * r.heads,
                   .dg = pointer(dg),
                   .sums = pointer<float>(sums)};
  const DType dtype = dg.defined() ? dg.dtype() : DType::float32;
  const auto kernel = dtype == DType::bfloat16  ? sum_gates_kernel<bfloat16>
                      : dtype == DType::float16 ? sum_gates_kernel<float16>
                                                : sum_gates_kernel<float>;
  const cudaStream_t on = stream(r.q.device());
  if (s.count > 0) {
    launch_kernel(kernel, blocks_for(s.count, kThreads), kThreads, {.early = can_start_early(kernel)}, on, s);
  }
  if (!dgamma.defined()) return;
  const dim3 grid(static_cast<unsigned>(r.sequences), static_cast<unsigned>(r.heads));
  sum_tokens_kernel<<<grid, kTokenThreads, 0, on>>>(sums.data<float>(), sequences(r), r.heads, dgamma.data<float>());
  GLADE_CUDA_LAUNCHED();
}

/// Sums of heads. T: the elements of the result, of which a thread has N.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_heads_kernel(const float* x, T* out, std::int64_t count, std::int64_t token_step, int heads, int summed, int size) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int quads = size / N;
  const std::int64_t row = i / quads, token = row / heads;
  const int channel = static_cast<int>(i - row * quads) * N, head = static_cast<int>(row - token * heads);
  using Floats = detail::Vector<float, N>;
  const float* from = x + row * summed * size + channel;
  Floats sum{};
  for (int part = 0; part < summed; ++part, from += size) {
    const Floats other = *reinterpret_cast<const Floats*>(from);
#pragma unroll
    for (int j = 0; j < N; ++j) sum.x[j] += other.x[j];
  }
  detail::Vector<T, N> rounded;
#pragma unroll
  for (int j = 0; j < N; ++j) rounded.x[j] = static_cast<T>(sum.x[j]);
  *reinterpret_cast<detail::Vector<T, N>*>(out + token * token_step + head * size + channel) = rounded;
}

}  // namespace

void sum_heads(const Tensor& x, const Tensor& given) {
  const std::int64_t size = x.size(-1), tokens = x.size(0), summed = x.numel() / std::max<std::int64_t>(given.numel(), 1);
  if (given.numel() == 0) return;
  const Tensor out = reshape(given, {tokens, x.size(1) / summed, size});
  const std::int64_t step = out.strides()[0];
  const auto run = [&]<class T, int N>(T, std::integral_constant<int, N>) {
    const std::int64_t count = out.numel() / N;
    sum_heads_kernel<T, N><<<blocks_for(count, kThreads), kThreads, 0, stream(x.device())>>>(
        x.data<float>(), static_cast<T*>(out.raw_data()), count, step, static_cast<int>(out.size(1)), static_cast<int>(summed),
        static_cast<int>(size));
    GLADE_CUDA_LAUNCHED();
  };
  const auto run_of = [&]<class T>(T t) {
    size % 4 == 0 && step % 4 == 0 ? run(t, std::integral_constant<int, 4>()) : run(t, std::integral_constant<int, 1>());
  };
  if (out.dtype() == DType::bfloat16) run_of(bfloat16());
  else if (out.dtype() == DType::float16) run_of(float16());
  else run_of(float());
}

void sum_chunk_gradients(const Recurrence& r, ChunkGradients&& of_heads, const RecurrenceGradients& grads) {
  const ChunkGradients own = std::move(of_heads);
  if (r.group() > 1 && own.k.defined()) sum_heads(own.k, grads.k);
  if (r.group() > 1 && own.v.defined()) sum_heads(own.v, grads.v);
  if (own.dg.defined()) sum_gates(r, own.dg, grads.g, grads.g_gamma);
}

}  // namespace glade::cuda::linear_attention
