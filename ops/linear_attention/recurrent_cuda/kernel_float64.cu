#include <glade/ops/linear_attention/recurrent_cuda/kernel.cuh>

namespace glade::cuda::recurrent {

template void run<double, double>(Pass<double>, Device);
template std::int64_t checkpoint_size(const Pass<double>&);

}  // namespace glade::cuda::recurrent
