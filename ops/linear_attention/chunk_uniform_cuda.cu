// Launches of the passes for heads whose decay is the same at every step (chunk_uniform.cuh).
#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/tensor_map.h>
#include <glade/ops/linear_attention/chunk_uniform.cuh>

namespace glade::cuda::passes {

namespace {

CUtensorMap map_of(const Rows& rows, std::int64_t tokens, std::int64_t token_step) {
  const std::int64_t sizes[] = {rows.size, rows.heads, tokens}, steps[] = {rows.size, token_step};
  const int box[] = {kTile, 1, kTile};
  return tensor_map(rows.data, sizes, steps, box);
}

}  // namespace

template <class E>
void run_uniform_pass(const Pass& p, std::int64_t tokens, int writers, cudaStream_t stream) {
  constexpr std::size_t kBytes = sizeof(ClusterShared<E>);
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = uniform_kernel<E>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(writers + 1), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(writers + 1), static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences * p.run_parts));
  config.blockDim = dim3(kClusterThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  const auto map = [&](const Rows& rows) { return map_of(rows, tokens, std::int64_t{rows.heads} * rows.size); };
  const Maps maps{map(p.x), map(p.y), map(p.w),
                  p.wide_out ? CUtensorMap{} : map_of({p.out, p.heads, 1, p.outer}, tokens, p.out_step)};
  GLADE_CUDA(cudaLaunchKernelEx(&config, kernel, p, maps));
}
template void run_uniform_pass<__nv_bfloat16>(const Pass&, std::int64_t, int, cudaStream_t);
template void run_uniform_pass<__half>(const Pass&, std::int64_t, int, cudaStream_t);

}  // namespace glade::cuda::passes
