#include <glade/ops/linear_attention/chunk_sm90/head_gate_scan.cuh>

namespace glade::cuda::chunk_sm90 {
template void run_head_gate_scan<__nv_bfloat16>(const IntraChunk& a, const ScanArguments& scan, const SegmentRoom& room,
                                                cudaStream_t stream);
}  // namespace glade::cuda::chunk_sm90
