#pragma once
// Launches of the kernels of chunk_sm90.
#include <type_traits>

#include <glade/core/cuda/cuda.h>

namespace glade::cuda::chunk_sm90 {

/// kernel<<<grid, threads, shared_bytes, stream>>>(arguments...), checked. `early`: it may start before the launch ahead of it
/// has ended, and calls cudaGridDependencySynchronize() before it reads what that one writes. So must some block of it in any
/// case, because what follows must wait for both.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, bool early, cudaStream_t stream,
            const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  GLADE_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace glade::cuda::chunk_sm90
