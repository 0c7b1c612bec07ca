#include <glade/ops/linear_attention/chunk_sm90/pass_kernel.cuh>

namespace glade::cuda::chunk_sm90 {
template void run_mapped_pass<__half>(const Pass& p, cudaStream_t stream);
}  // namespace glade::cuda::chunk_sm90
