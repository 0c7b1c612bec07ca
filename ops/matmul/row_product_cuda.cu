// A matrix times a vector: products with a single row or a single column, as generation makes one for every weight. Each lasts
// as long as the matrix takes to read, so a warp (or a few) sums up a row with all of its loads under way at once.
#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/hopper/copy.cuh>
#include <glade/ops/matmul/matmul_kernels.h>
#include <glade/ops/reduce/fold.cuh>

namespace glade::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
// Blocks that share a multiprocessor. Without this bound nvcc uses only 32 registers, and waits for each load before the next.
constexpr int kBlocks = 8;
// The largest matrix, in bytes, that is prefetched to the L2 cache while the kernel ahead still runs. On an H200 generation with
// small matrices gains a tenth from it; a matrix of 64 MB loses as much.
constexpr std::int64_t kMostEarly = std::int64_t{1} << 24;

template <class T, class Out>
struct Product {
  const T *matrix, *vector, *bias;
  const Out* addend;
  Out* out;
  std::int64_t rows, leading;
  int row_vectors;  ///< vectors of 16 bytes in a row
  int row_warps;    ///< warps that share a row: 1, 2 or 4
  int bias_step;    ///< from one row's bias to the next: 1 or 0
  bool early;       ///< the kernel may start before the one ahead of it has ended
};

template <class T, class Out>
__global__ void __launch_bounds__(kThreads, kBlocks) row_product_kernel(const Product<T, Out> p) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, part = warp % p.row_warps;
  const std::int64_t row = std::int64_t{blockIdx.x} * (kWarps / p.row_warps) + warp / p.row_warps;
  const bool exists = row < p.rows, writes = exists && part == 0 && lane == 0;
  const uint4* const matrix = reinterpret_cast<const uint4*>(p.matrix + row * p.leading);
  const uint4* const vector = reinterpret_cast<const uint4*>(p.vector);
#if __CUDA_ARCH__ >= 900
  if (p.early) {
    if (writes) prefetch_bulk(matrix, p.row_vectors * 16);
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
  }
#endif
  float sums[kLoads] = {};
  if (writes && p.bias != nullptr) sums[0] = static_cast<float>(p.bias[row * p.bias_step]);
  if (writes && p.addend != nullptr) sums[1] = static_cast<float>(p.addend[row]);
  const int step = 32 * p.row_warps, last = p.row_vectors - 1;
#pragma unroll 1
  for (int first = part * 32 + lane; exists && first <= last; first += kLoads * step) {
    uint4 a[kLoads], x[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int i = min(first + u * step, last);  // no branch, so that no load waits for another
      a[u] = matrix[i];
      x[u] = vector[i];
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (first + u * step > last) a[u] = x[u] = uint4{};
      const auto m = as_numbers<T>(a[u]), v = as_numbers<T>(x[u]);
#pragma unroll
      for (int w = 0; w < kWidth<T>; ++w) sums[u] += m.x[w] * v.x[w];
    }
  }
  float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (p.row_warps > 1) {
    __shared__ float of_warp[kWarps];
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();
    if (!writes) return;
    for (int i = 1; i < p.row_warps; ++i) sum += of_warp[warp + i];
  }
  if (writes) p.out[row] = Out(sum);
}

template <class T, class Out>
void run_rows(const Gemm& p, const GemmMatrix& matrix, const GemmMatrix& vector, std::int64_t rows) {
  Product<T, Out> product{static_cast<const T*>(matrix.data),
                          static_cast<const T*>(vector.data),
                          static_cast<const T*>(p.bias),
                          static_cast<const Out*>(p.addend),
                          static_cast<Out*>(p.out),
                          rows,
                          matrix.leading,
                          static_cast<int>(p.k / kWidth<T>),
                          1,
                          p.m == 1 ? 1 : 0,
                          rows * p.k * static_cast<std::int64_t>(sizeof(T)) <= kMostEarly};
  while (product.row_warps < kWarps && product.row_vectors > kLoads * 32 * product.row_warps) product.row_warps *= 2;
  const unsigned blocks = blocks_for(rows * product.row_warps, kWarps);
  const auto kernel = row_product_kernel<T, Out>;
  launch_kernel(kernel, dim3(blocks), kThreads, {.early = product.early && can_start_early(kernel)}, stream(p.device), product);
}

}  // namespace

bool multiply_by_vector(const Gemm& p) {
  const bool one_row = p.m == 1;
  if (p.batch != 1 || p.dtype == DType::float64 || !(one_row || p.n == 1)) return false;
  const GemmMatrix &matrix = one_row ? p.b : p.a, &vector = one_row ? p.a : p.b;
  const std::int64_t rows = one_row ? p.n : p.m, width = 16 / static_cast<std::int64_t>(dtype_size(p.dtype));
  const auto aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  const bool in_rows = matrix.transposed == one_row && (vector.leading == 1 || vector.transposed != one_row);
  if (!in_rows || p.k % width != 0 || matrix.leading % width != 0 || !aligned(matrix.data) || !aligned(vector.data)) return false;
  constexpr std::int64_t kMost = std::int64_t{1} << 30, kLong = 4 * kLoads * kThreads;
  if (rows > kMost || p.k / width > kMost) return false;
  // A long row keeps its block busy, so there must be enough rows to fill the GPU.
  if (p.k / width > kLong && rows < 8 * multiprocessor_count(p.device)) return false;
  if (p.dtype == DType::float32) run_rows<float, float>(p, matrix, vector, rows);
  else if (p.dtype == DType::bfloat16 && p.out_dtype == DType::bfloat16) run_rows<bfloat16, bfloat16>(p, matrix, vector, rows);
  else if (p.dtype == DType::bfloat16) run_rows<bfloat16, float>(p, matrix, vector, rows);
  else if (p.out_dtype == DType::float16) run_rows<float16, float16>(p, matrix, vector, rows);
  else run_rows<float16, float>(p, matrix, vector, rows);
  return true;
}

}  // namespace glade::cuda
