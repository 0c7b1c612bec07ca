#include <glade/ops/linear_attention/chunk_pass.cuh>

namespace glade::cuda::passes {
template void run_pass<__nv_bfloat16>(const Pass& p, cudaStream_t stream);
}  // namespace glade::cuda::passes
