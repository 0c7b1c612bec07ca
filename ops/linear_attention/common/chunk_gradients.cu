#include <glade/ops/linear_attention/common/chunk_gradients.h>

#include <cuda_fp16.h>

#include <glade/core/cuda/cuda.h>
#include <glade/core/float16.h>
#include <glade/ops/linear_attention/common/sequence.cuh>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade::cuda::linear_attention {

namespace {

constexpr int kThreads = 256;

/// Sums over the tiles of K of the gradients of per-head gates.
struct GateSums {
  const float* of_tiles;  ///< [tiles, tokens, heads]
  int tiles, heads;
  std::int64_t tokens;
  Sequences sequences;
  void* dg;       ///< [tokens, heads], or null
  float* dgamma;  ///< [sequences, heads], or null
};

/// A block for each sequence and head. G: the elements of dg.
template <class G>
__global__ void __launch_bounds__(kThreads) sum_gates_kernel(GateSums s) {
  const std::int64_t n = blockIdx.x;
  const Sequence sequence(s.sequences, n);
  const int head = blockIdx.y;
  float total = 0;
  for (std::int64_t t = threadIdx.x; t < sequence.length; t += kThreads) {
    const std::int64_t at = (sequence.begin + t) * s.heads + head;
    float sum = 0;
    for (int i = 0; i < s.tiles; ++i) sum += s.of_tiles[i * s.tokens * s.heads + at];
    if (s.dg) static_cast<G*>(s.dg)[at] = static_cast<G>(sum);
    total += sum;
  }
  __shared__ float totals[kThreads];
  totals[threadIdx.x] = total;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (static_cast<int>(threadIdx.x) < step) totals[threadIdx.x] += totals[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0 && s.dgamma) s.dgamma[n * s.heads + head] = totals[0];
}

void sum_gates(const Recurrence& r, const Tensor& of_tiles, const Tensor& dg, const Tensor& dgamma) {
  if (r.sequences == 0) return;
  const GateSums s{
      of_tiles.data<float>(), static_cast<int>(of_tiles.size(0)), static_cast<int>(r.heads), r.tokens, sequences(r), pointer(dg),
      pointer<float>(dgamma)};
  const dim3 grid(static_cast<unsigned>(r.sequences), static_cast<unsigned>(r.heads));
  const DType dtype = dg.defined() ? dg.dtype() : DType::float32;
  const auto kernel = dtype == DType::bfloat16  ? sum_gates_kernel<bfloat16>
                      : dtype == DType::float16 ? sum_gates_kernel<float16>
                                                : sum_gates_kernel<float>;
  kernel<<<grid, kThreads, 0, stream(r.q.device())>>>(s);
  GLADE_CUDA_LAUNCHED();
}

/// [tokens, heads, size] summed over the query heads of each kv head, into `out` [..., kv_heads, size].
void sum_groups(const Recurrence& r, const Tensor& x, const Tensor& out) {
  const std::int64_t size = x.size(-1);
  copy_data(reshape(out, {r.tokens, r.kv_heads, size}), sum(reshape(x, {r.tokens, r.kv_heads, r.group(), size}), {2}));
}

}  // namespace

void sum_chunk_gradients(const Recurrence& r, ChunkGradients&& of_heads, const RecurrenceGradients& grads) {
  const ChunkGradients own = std::move(of_heads);
  if (r.group() > 1 && own.k.defined()) sum_groups(r, own.k, grads.k);
  if (r.group() > 1 && own.v.defined()) sum_groups(r, own.v, grads.v);
  if (own.dg.defined()) sum_gates(r, own.dg, grads.g, grads.g_gamma);
}

}  // namespace glade::cuda::linear_attention
