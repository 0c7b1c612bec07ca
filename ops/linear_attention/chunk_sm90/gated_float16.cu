#include <glade/ops/linear_attention/chunk_sm90/gated_pass.cuh>
#include <glade/ops/linear_attention/chunk_sm90/gated_rows.cuh>
#include <glade/ops/linear_attention/chunk_sm90/shared_gates.cuh>

namespace glade::cuda::chunk_sm90 {
template void run_gated_rows<__half>(const GatedRows& a, cudaStream_t stream);
template void run_gated_pass<__half>(const GatedPass& p, cudaStream_t stream);
template void run_shared_gates_pass<__half>(const GatedPass& p, const GatedRows& rows, int multiprocessors, cudaStream_t stream);
}  // namespace glade::cuda::chunk_sm90
