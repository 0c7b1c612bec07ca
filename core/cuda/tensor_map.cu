#include <glade/core/cuda/tensor_map.h>

#include <cudaTypedefs.h>

#include <glade/core/cuda/cuda.h>
#include <glade/core/format.h>

namespace glade::cuda {

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

}  // namespace

CUtensorMap tensor_map(const void* data, std::span<const std::int64_t> sizes, std::span<const std::int64_t> steps,
                       std::span<const int> box) {
  constexpr std::size_t kMostDims = 5;
  constexpr cuuint64_t kBytes = 2;
  cuuint64_t lengths[kMostDims], strides[kMostDims];
  cuuint32_t boxes[kMostDims], every[kMostDims];
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    lengths[i] = static_cast<cuuint64_t>(sizes[i]);
    boxes[i] = static_cast<cuuint32_t>(box[i]);
    every[i] = 1;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) strides[i] = static_cast<cuuint64_t>(steps[i]) * kBytes;
  CUtensorMap map;
  const CUresult result = encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 /* or anything of two bytes */,
                                            static_cast<cuuint32_t>(sizes.size()), const_cast<void*>(data), lengths, strides,
                                            boxes, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail<CudaError>("cuTensorMapEncodeTiled failed with {}", static_cast<int>(result));
  return map;
}

}  // namespace glade::cuda
