#include <glade/ops/linear_attention/recurrent_cuda/kernel.cuh>

namespace glade::cuda::recurrent {

template void run<float, float>(Pass<float>, const RecurrentPassPlan&, Device);

}  // namespace glade::cuda::recurrent
