// Sums what the parts of a head's key channels add to the gradient of its values.
#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/instructions.cuh>
#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>

namespace glade::cuda::chunk_sm90 {

namespace {

constexpr int kThreads = 256, kVector = 8;  // elements of a thread: 16 bytes

/// A thread for every vector of `out`.
template <class E>
__global__ void __launch_bounds__(kThreads) sum_parts_kernel(PartSums s) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int vectors = s.size / kVector, of_token = s.heads * vectors;
  const std::int64_t token = i / of_token;
  if (token >= s.tokens) return;
  const int at = static_cast<int>(i % of_token), head = at / vectors, vector = at % vectors;
  const uint4* first = static_cast<const uint4*>(s.parts) + ((token * s.heads + head) * 2) * vectors + vector;
  const uint4 a = first[0], b = first[vectors];
  const auto sum = [](std::uint32_t x, std::uint32_t y) {
    const float2 p = unpack<E>(x), q = unpack<E>(y);
    return pack<E>(p.x + q.x, p.y + q.y);
  };
  *reinterpret_cast<uint4*>(static_cast<E*>(s.out) + token * s.out_step + std::int64_t{head} * s.size + vector * kVector) =
      make_uint4(sum(a.x, b.x), sum(a.y, b.y), sum(a.z, b.z), sum(a.w, b.w));
}

}  // namespace

template <class E>
void run_part_sums(const PartSums& s, cudaStream_t stream) {
  const std::int64_t vectors = s.tokens * s.heads * (s.size / kVector);
  sum_parts_kernel<E><<<blocks_for(vectors, kThreads), kThreads, 0, stream>>>(s);
  GLADE_CUDA_LAUNCHED();
}

template void run_part_sums<__nv_bfloat16>(const PartSums&, cudaStream_t);
template void run_part_sums<__half>(const PartSums&, cudaStream_t);

}  // namespace glade::cuda::chunk_sm90
