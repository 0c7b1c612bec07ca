#include <glade/ops/linear_attention/recurrent_kernel.cuh>

namespace glade::cuda::recurrent {

template void run(const Pass<double>&, Device);
template std::int64_t checkpoint_size(const Pass<double>&, Device);

}  // namespace glade::cuda::recurrent
