#include <glade/ops/linear_attention/recurrent_cuda/warp_chunks.cuh>

namespace glade::cuda::recurrent {

template void run_warp_chunks<float>(const Pass<float>&, const RecurrentPassPlan&, Device);

}  // namespace glade::cuda::recurrent
