#include <glade/ops/linear_attention/chunk_sm90/head_gate_chunk.cuh>

namespace glade::cuda::chunk_sm90 {
template void run_head_gate_chunk<__half>(const IntraChunk& a, cudaStream_t stream);
}  // namespace glade::cuda::chunk_sm90
