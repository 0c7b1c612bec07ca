// Launches of the passes for heads whose decay is the same at every step (chunk_uniform.cuh).
#include <cudaTypedefs.h>

#include <glade/core/cuda/cuda.h>
#include <glade/core/format.h>
#include <glade/ops/linear_attention/chunk_uniform.cuh>

namespace glade::cuda::passes {

namespace {

/// The driver's function, without linking to it.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    GLADE_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
#else
    GLADE_CUDA(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found));
#endif
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return function;
}

template <class E>
CUtensorMap tensor_map(const Rows& rows, std::int64_t tokens, std::int64_t token_step) {
  constexpr auto kType = std::is_same_v<E, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(rows.size), static_cast<cuuint64_t>(rows.heads),
                              static_cast<cuuint64_t>(tokens)};
  const cuuint64_t strides[] = {sizes[0] * sizeof(E), static_cast<cuuint64_t>(token_step) * sizeof(E)};
  const cuuint32_t box[] = {kTile, 1, kTile}, steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode_function()(&map, kType, 3, const_cast<void*>(rows.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail<CudaError>("linear_attention: cuTensorMapEncodeTiled failed with {}", static_cast<int>(result));
  return map;
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
  const auto map = [&](const Rows& rows) { return tensor_map<E>(rows, tokens, std::int64_t{rows.heads} * rows.size); };
  const Maps maps{map(p.x), map(p.y), map(p.w),
                  p.wide_out ? CUtensorMap{} : tensor_map<E>({p.out, p.heads, 1, p.outer}, tokens, p.out_step)};
  GLADE_CUDA(cudaLaunchKernelEx(&config, kernel, p, maps));
}
template void run_uniform_pass<__nv_bfloat16>(const Pass&, std::int64_t, int, cudaStream_t);
template void run_uniform_pass<__half>(const Pass&, std::int64_t, int, cudaStream_t);

}  // namespace glade::cuda::passes
