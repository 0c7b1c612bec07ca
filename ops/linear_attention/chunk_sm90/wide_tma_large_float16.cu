#include <glade/ops/linear_attention/chunk_sm90/wide_tma_large.cuh>

namespace glade::cuda::chunk_sm90 {
template void run_wide_tma_large_pass<__half>(const Pass& p, cudaStream_t stream);
}  // namespace glade::cuda::chunk_sm90
