#include <glade/ops/linear_attention/recurrent_gates.cuh>

namespace glade::cuda::recurrent {

namespace {

constexpr int kBlock = 128;  // threads
constexpr int kBatch = 4;    // positions whose rows are read before the first is used

/// The positions between two checkpoints of one sequence and head.
struct Stretch {
  std::int64_t n, index, low, high;
  int h;
  Sequence sequence;

  __device__ Stretch(const Sequences& all, int heads, std::int64_t number)
      : n(number / heads / all.longest()),
        index(number / heads % all.longest()),
        low(index * all.interval),
        h(static_cast<int>(number % heads)),
        sequence(all, n) {
    high = low + all.interval < sequence.length ? low + all.interval : sequence.length;
  }
};

/// x past_x - y past_y at `position` of a channel; without y at the checkpoint; 0 below the stretch.
template <class F, class T>
__device__ F term(const GateGradients<F>& gates, const Stretch& stretch, std::int64_t position, int channel) {
  if (position < stretch.low) return 0;
  const std::int64_t token = stretch.sequence.token(position), past = (token * gates.heads + stretch.h) * gates.x.size + channel;
  F sum = 0;
  if (gates.x.data != nullptr) sum = static_cast<F>(static_cast<const T*>(gates.x.data)[past]) * gates.past_x[past];
  if (position == stretch.high - 1) return sum;
  const std::int64_t y = gates.y.row(token, stretch.h) * gates.y.size + channel;
  return sum - static_cast<F>(static_cast<const T*>(gates.y.data)[y]) * gates.past_y[past];
}

template <class F>
__device__ F product(const GateGradients<F>& gates, const Stretch& stretch, int channel) {
  const std::int64_t row = (stretch.sequence.first_checkpoint + stretch.index) * gates.heads + stretch.h;
  return gates.products[row * gates.x.size + channel];
}

/// A thread for each channel of a stretch.
template <class F>
__global__ void __launch_bounds__(kBlock) channel_kernel(GateGradients<F> gates) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const std::int64_t stretches = gates.sequences.count * gates.sequences.longest() * gates.heads;
  if (i >= stretches * gates.x.size) return;
  const Stretch stretch(gates.sequences, gates.heads, i / gates.x.size);
  const int channel = static_cast<int>(i % gates.x.size);
  if (stretch.low >= stretch.high) return;
  F sum = product(gates, stretch, channel);
  visit_rows<F>(gates.y.dtype, [&]<class T>(const T*) {
    for (std::int64_t position = stretch.high - 1; position >= stretch.low; position -= kBatch) {
      F terms[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) terms[j] = term<F, T>(gates, stretch, position - j, channel);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (position - j < stretch.low) break;
        sum += terms[j];
        const std::int64_t row = stretch.sequence.token(position - j) * gates.heads + stretch.h;
        store_element(sum, gates.channel, gates.channel_dtype, row * gates.x.size + channel);
      }
    }
  });
}

template <class F>
__device__ F warp_sum(F x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

/// A warp for each stretch: sums over the channels, and over the stretch for gamma.
template <class F>
__global__ void __launch_bounds__(kBlock) head_kernel(GateGradients<F> gates, F* gamma_parts) {
  const std::int64_t number = (std::int64_t{blockIdx.x} * kBlock + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (number >= gates.sequences.count * gates.sequences.longest() * gates.heads) return;
  const Stretch stretch(gates.sequences, gates.heads, number);
  F total = 0;
  if (stretch.low < stretch.high) {
    F sum = 0;
    for (int channel = lane; channel < gates.x.size; channel += 32) sum += product(gates, stretch, channel);
    sum = warp_sum(sum);
    visit_rows<F>(gates.y.dtype, [&]<class T>(const T*) {
      for (std::int64_t position = stretch.high - 1; position >= stretch.low; position -= kBatch) {
        F terms[kBatch] = {};
        for (int channel = lane; channel < gates.x.size; channel += 32)
#pragma unroll
          for (int j = 0; j < kBatch; ++j) terms[j] += term<F, T>(gates, stretch, position - j, channel);
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          sum += warp_sum(terms[j]);
          if (position - j < stretch.low) continue;
          total += sum;
          if (lane == 0 && gates.head != nullptr)
            store_element(sum, gates.head, gates.head_dtype, stretch.sequence.token(position - j) * gates.heads + stretch.h);
        }
      }
    });
  }
  if (lane == 0 && gamma_parts != nullptr) gamma_parts[number] = total;
}

/// A warp for each sequence and head: the sum of its stretches.
template <class F>
__global__ void __launch_bounds__(kBlock) gamma_kernel(GateGradients<F> gates, const F* parts) {
  const std::int64_t pair = (std::int64_t{blockIdx.x} * kBlock + threadIdx.x) / 32, stretches = gates.sequences.longest();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (pair >= gates.sequences.count * gates.heads) return;
  const std::int64_t n = pair / gates.heads, h = pair % gates.heads;
  F sum = 0;
  for (std::int64_t i = lane; i < stretches; i += 32) sum += parts[(n * stretches + i) * gates.heads + h];
  sum = warp_sum(sum);
  if (lane == 0) gates.gamma[pair] = sum;
}

}  // namespace

template <class F>
void run(const GateGradients<F>& gates, Device device) {
  const std::int64_t pairs = gates.sequences.count * gates.heads, stretches = pairs * gates.sequences.longest();
  const cudaStream_t on = stream(device);
  if (gates.channel != nullptr && stretches > 0) {
    channel_kernel<<<blocks_for(stretches * gates.x.size, kBlock), kBlock, 0, on>>>(gates);
    GLADE_CUDA_LAUNCHED();
  }
  if (gates.head == nullptr && gates.gamma == nullptr) return;
  const Scratch parts(static_cast<std::size_t>(stretches) * sizeof(F), device);
  if (stretches > 0) {
    head_kernel<<<blocks_for(stretches * 32, kBlock), kBlock, 0, on>>>(gates, parts.template data<F>());
    GLADE_CUDA_LAUNCHED();
  }
  if (gates.gamma == nullptr || pairs == 0) return;
  gamma_kernel<<<blocks_for(pairs * 32, kBlock), kBlock, 0, on>>>(gates, parts.template data<F>());
  GLADE_CUDA_LAUNCHED();
}

template void run(const GateGradients<float>&, Device);
template void run(const GateGradients<double>&, Device);

}  // namespace glade::cuda::recurrent
