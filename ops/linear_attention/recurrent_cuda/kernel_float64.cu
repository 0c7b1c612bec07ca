#include <glade/ops/linear_attention/recurrent_cuda/kernel.cuh>

namespace glade::cuda::recurrent {

template void run<double, double>(Pass<double>, const RecurrentPassPlan&, Device);

}  // namespace glade::cuda::recurrent
