#include <glade/ops/linear_attention/recurrent_cuda/kernel.cuh>

namespace glade::cuda::recurrent {

template void run<float, bfloat16>(Pass<float>, const RecurrentPassPlan&, Device);

}  // namespace glade::cuda::recurrent
