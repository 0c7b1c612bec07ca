#include <glade/ops/linear_attention/chunk_apart.cuh>

namespace glade::cuda::passes {
template void run_apart<__nv_bfloat16>(const Apart& a, cudaStream_t stream);
}  // namespace glade::cuda::passes
