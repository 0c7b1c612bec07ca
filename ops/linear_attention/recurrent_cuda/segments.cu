#include <glade/ops/linear_attention/recurrent_cuda/segments.cuh>

namespace glade::cuda::recurrent {

namespace {

constexpr int kBlock = 128;

/// One thread composes the segments for one element of the state of a sequence and head.
template <class F>
__global__ void __launch_bounds__(kBlock)
    compose_kernel(const __grid_constant__ Pass<F> pass, const F* decays, F* states, F* total_decay) {
  const std::int64_t size = pass.state_size(), element = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (element >= pass.sequences.count * pass.heads * size) return;
  const std::int64_t pair = element / size, n = pair / pass.heads, h = pair % pass.heads, at = element % size;
  const int i = static_cast<int>(at / pass.inner_stride % pass.inner()),
            j = static_cast<int>(at / pass.outer_stride % pass.outer());
  const std::int64_t all = pass.sequences.count * pass.heads, channels = pass.inner() + pass.outer();
  const std::int64_t count = (Sequence(pass.sequences, n).length + pass.segment - 1) / pass.segment;

  F state = pass.initial.data != nullptr ? pass.initial.data[n * pass.initial.sequence + h * size + at] : F{0};
#pragma unroll 4
  for (std::int64_t s = 0; s < max(count, std::int64_t{1}); ++s) {
    const std::int64_t row = (pass.reverse_scan && count > 0 ? count - 1 - s : s) * all + pair;
    const F own = states[row * size + at];
    states[row * size + at] = state;
    state = state * (decays[row * channels + i] * decays[row * channels + pass.inner() + j]) + own;
  }
  if (total_decay == nullptr) return;
  pass.final.data[n * pass.final.sequence + h * size + at] = state;
  const auto total = [&](int channel) {
    F product = 1;
    for (std::int64_t s = 0; s < max(count, std::int64_t{1}); ++s) product *= decays[(s * all + pair) * channels + channel];
    total_decay[pair * channels + channel] = product;
  };
  if (j == 0) total(i);
  if (i == 0) total(pass.inner() + j);
}

}  // namespace

template <class F>
void compose(const Pass<F>& pass, const F* decays, F* states, F* total_decay, Device device) {
  const std::int64_t elements = pass.sequences.count * pass.heads * pass.state_size();
  compose_kernel<<<blocks_for(elements, kBlock), kBlock, 0, stream(device)>>>(pass, decays, states, total_decay);
  GLADE_CUDA_LAUNCHED();
}

template void compose(const Pass<float>&, const float*, float*, float*, Device);
template void compose(const Pass<double>&, const double*, double*, double*, Device);

}  // namespace glade::cuda::recurrent
