#include <glade/ops/linear_attention/chunk_pass.cuh>

namespace glade::cuda::passes {
template void run_pass<__half>(const Pass& p, cudaStream_t stream);
}  // namespace glade::cuda::passes
