#include <glade/ops/linear_attention/chunk_sm90/intra_chunk.cuh>

namespace glade::cuda::chunk_sm90 {
template void run_intra_chunk<__nv_bfloat16>(const IntraChunk& a, cudaStream_t stream);
}  // namespace glade::cuda::chunk_sm90
