#include <glade/ops/linear_attention/recurrent_cuda/kernel.cuh>

namespace glade::cuda::recurrent {

template void run<float, float>(Pass<float>, Device);
template std::int64_t checkpoint_size(const Pass<float>&);

}  // namespace glade::cuda::recurrent
