#include <glade/ops/linear_attention/chunk_apart.cuh>

namespace glade::cuda::passes {
template void run_apart<__half>(const Apart& a, cudaStream_t stream);
}  // namespace glade::cuda::passes
