#include <glade/ops/linear_attention/recurrent_cuda/gate_gradients.cuh>

namespace glade::cuda::recurrent {

namespace {

constexpr int kBlock = 128;                   // threads
constexpr int kBatch = 8;                     // positions whose rows are loaded before the first one is used
constexpr int kHeadBlock = 32 * 32 / kBatch;  // threads of head_kernel: enough warps for 32 positions in batches

/// The positions of one sequence and head up to a checkpoint, from the checkpoint before it: [low, high).
struct CheckpointInterval {
  std::int64_t n, index, low, high;
  int h;
  Sequence sequence;

  __device__ CheckpointInterval(const Sequences& all, int heads, std::int64_t number)
      : n(number / heads / all.longest()),
        index(number / heads % all.longest()),
        low(index * all.interval),
        h(static_cast<int>(number % heads)),
        sequence(all, n) {
    high = low + all.interval < sequence.length ? low + all.interval : sequence.length;
  }
};

/// Computes x past_x - y past_y for a quad of channels at kBatch positions, from `high` in descending order. The checkpoint has
/// no term of y, and positions before the interval give 0. All loads are issued before the first use.
template <class F, class T, bool kVector>
__device__ __forceinline__ void load_terms(const GateGradients<F>& gates, const CheckpointInterval& interval, std::int64_t high,
                                           int channel, Quad<F> (&terms)[kBatch]) {
  Raw<T> x[kBatch], y[kBatch];
  Raw<F> past_x[kBatch], past_y[kBatch];
  const int size = gates.x.size, count = size - channel;
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const std::int64_t position = high - j, token = interval.sequence.token(position);
    const std::int64_t past = (token * gates.heads + interval.h) * size + channel;
    const bool present = position >= interval.low && count > 0, has_y = present && position != interval.high - 1;
    load_quad<kVector>(static_cast<const T*>(gates.x.data) + gates.x.row(token, interval.h) * size + channel, count, present,
                       x[j]);
    load_quad<kVector>(gates.past_x + past, count, present, past_x[j]);
    load_quad<kVector>(static_cast<const T*>(gates.y.data) + gates.y.row(token, interval.h) * size + channel, count, has_y, y[j]);
    load_quad<kVector>(gates.past_y + past, count, has_y, past_y[j]);
  }
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const Quad<F> a = x[j].template values<F>(), b = past_x[j].template values<F>(), c = y[j].template values<F>(),
                  d = past_y[j].template values<F>();
#pragma unroll
    for (int i = 0; i < 4; ++i) terms[j].x[i] = a.x[i] * b.x[i] - c.x[i] * d.x[i];
  }
}

/// Calls f with the element type of the rows, and with whether they can be read as aligned quads.
template <class F, class Function>
__device__ void visit(const GateGradients<F>& gates, Function f) {
  visit_rows<F>(gates.y.dtype, [&]<class T>(const T*) {
    if (is_vector(gates.x) && is_vector(gates.y)) f.template operator()<T, true>();
    else f.template operator()<T, false>();
  });
}

/// The product that the reverse scan left at the checkpoint of an interval.
template <class F>
__device__ F product(const GateGradients<F>& gates, const CheckpointInterval& interval, int channel) {
  const std::int64_t row = (interval.sequence.first_checkpoint + interval.index) * gates.heads + interval.h;
  return gates.products[row * gates.x.size + channel];
}

/// Gradients of per-channel gates. One thread handles a quad of channels of a checkpoint interval.
template <class F>
__global__ void __launch_bounds__(kBlock) channel_kernel(GateGradients<F> gates) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x, quads = (gates.x.size + 3) / 4;
  if (i >= gates.sequences.count * gates.sequences.longest() * gates.heads * quads) return;
  const CheckpointInterval interval(gates.sequences, gates.heads, i / quads);
  const int channel = static_cast<int>(i % quads) * 4;
  if (interval.low >= interval.high) return;
  Quad<F> sum;
#pragma unroll
  for (int x = 0; x < 4; ++x) sum.x[x] = channel + x < gates.x.size ? product(gates, interval, channel + x) : F{0};
  visit(gates, [&]<class T, bool kVector>() {
    for (std::int64_t high = interval.high - 1; high >= interval.low; high -= kBatch) {
      Quad<F> terms[kBatch];
      load_terms<F, T, kVector>(gates, interval, high, channel, terms);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (high - j < interval.low) break;
        sum = sum + terms[j];
        const std::int64_t row = (interval.sequence.token(high - j) * gates.heads + interval.h) * gates.x.size;
        if (gates.channel_dtype == gates.y.dtype)
          store_quad<kVector>(sum, static_cast<T*>(gates.channel) + row, channel, gates.x.size);
        else store_quad<kVector>(sum, static_cast<F*>(gates.channel) + row, channel, gates.x.size);
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

/// The sum over this lane and the lanes before it, which have later positions.
template <class F>
__device__ F sum_later(F x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const F other = __shfl_up_sync(~0u, x, offset);
    if (lane >= offset) x += other;
  }
  return x;
}

/// Gradients of per-head gates. One block handles a checkpoint interval: its warps sum the terms over the channels, then the
/// first warp accumulates them over the positions, and sums the gradients of the interval for g_gamma.
template <class F>
__global__ void __launch_bounds__(kHeadBlock) head_kernel(GateGradients<F> gates, F* gamma_partials) {
  __shared__ F terms[32];  // one per position, in descending order
  const std::int64_t number = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const CheckpointInterval interval(gates.sequences, gates.heads, number);
  F total = 0, carry = 0;  // carry: the sum over the later positions
  if (interval.low < interval.high && warp == 0) {
    for (int channel = lane; channel < gates.x.size; channel += 32) carry += product(gates, interval, channel);
    carry = warp_sum(carry);
  }
  for (std::int64_t high = interval.high - 1; high >= interval.low; high -= 32) {
    F sums[kBatch] = {};
    visit(gates, [&]<class T, bool kVector>() {
      for (int channel = lane * 4; channel < gates.x.size; channel += 128) {
        Quad<F> quads[kBatch];
        load_terms<F, T, kVector>(gates, interval, high - warp * kBatch, channel, quads);
#pragma unroll
        for (int j = 0; j < kBatch; ++j) sums[j] += quads[j].x[0] + quads[j].x[1] + quads[j].x[2] + quads[j].x[3];
      }
    });
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      sums[j] = warp_sum(sums[j]);
      if (lane == 0) terms[warp * kBatch + j] = sums[j];
    }
    __syncthreads();
    if (warp == 0) {
      const F sum = sum_later(terms[lane]) + carry;
      carry = __shfl_sync(~0u, sum, 31);
      const std::int64_t position = high - lane;
      if (position >= interval.low) {
        total += sum;
        if (gates.head != nullptr)
          store_element(sum, gates.head, gates.head_dtype, interval.sequence.token(position) * gates.heads + interval.h);
      }
    }
    __syncthreads();
  }
  total = warp_sum(total);
  if (threadIdx.x == 0 && gamma_partials != nullptr) gamma_partials[number] = total;
}

/// The same from sums over strips of channels. One warp handles a checkpoint interval.
template <class F>
__global__ void __launch_bounds__(kBlock) head_sums_kernel(GateGradients<F> gates, F* gamma_partials, std::int64_t intervals) {
  const std::int64_t number = (std::int64_t{blockIdx.x} * kBlock + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (number >= intervals) return;
  const CheckpointInterval interval(gates.sequences, gates.heads, number);
  F total = 0, carry = 0;  // as in head_kernel
  if (interval.low < interval.high)
    for (int channel = lane; channel < gates.x.size; channel += 32) carry += product(gates, interval, channel);
  carry = warp_sum(carry);
  for (std::int64_t high = interval.high - 1; high >= interval.low; high -= 32) {
    const std::int64_t position = high - lane, token = interval.sequence.token(position);
    F term = 0;
    if (position >= interval.low)
      for (int strip = 0; strip < gates.strips; ++strip)
        term += gates.sums[(static_cast<std::int64_t>(strip) * gates.heads + interval.h) * gates.tokens + token];
    const F sum = sum_later(term) + carry;
    carry = __shfl_sync(~0u, sum, 31);
    if (position < interval.low) continue;
    total += sum;
    if (gates.head != nullptr) store_element(sum, gates.head, gates.head_dtype, token * gates.heads + interval.h);
  }
  total = warp_sum(total);
  if (lane == 0 && gamma_partials != nullptr) gamma_partials[number] = total;
}

/// The gradient of g_gamma: one warp sums the checkpoint intervals of a sequence and head.
template <class F>
__global__ void __launch_bounds__(kBlock) gamma_kernel(GateGradients<F> gates, const F* partials) {
  const std::int64_t pair = (std::int64_t{blockIdx.x} * kBlock + threadIdx.x) / 32, intervals = gates.sequences.longest();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (pair >= gates.sequences.count * gates.heads) return;
  const std::int64_t n = pair / gates.heads, h = pair % gates.heads;
  F sum = 0;
  for (std::int64_t i = lane; i < intervals; i += 32) sum += partials[(n * intervals + i) * gates.heads + h];
  sum = warp_sum(sum);
  if (lane == 0) gates.gamma[pair] = sum;
}

}  // namespace

template <class F>
void run(const GateGradients<F>& gates, Device device) {
  const std::int64_t pairs = gates.sequences.count * gates.heads, intervals = pairs * gates.sequences.longest();
  const cudaStream_t on = stream(device);
  if (gates.channel != nullptr && intervals > 0) {
    channel_kernel<<<blocks_for(intervals * ((gates.x.size + 3) / 4), kBlock), kBlock, 0, on>>>(gates);
    GLADE_CUDA_LAUNCHED();
  }
  if (gates.head == nullptr && gates.gamma == nullptr) return;
  const unsigned blocks = blocks_for(intervals, 1);
  const Scratch partials(static_cast<std::size_t>(intervals) * sizeof(F), device);
  if (intervals > 0) {
    F* const totals = partials.template data<F>();
    if (gates.sums != nullptr) head_sums_kernel<<<blocks_for(intervals * 32, kBlock), kBlock, 0, on>>>(gates, totals, intervals);
    else head_kernel<<<blocks, kHeadBlock, 0, on>>>(gates, totals);
    GLADE_CUDA_LAUNCHED();
  }
  if (gates.gamma == nullptr || pairs == 0) return;
  gamma_kernel<<<blocks_for(pairs * 32, kBlock), kBlock, 0, on>>>(gates, partials.template data<F>());
  GLADE_CUDA_LAUNCHED();
}

template void run(const GateGradients<float>&, Device);
template void run(const GateGradients<double>&, Device);

}  // namespace glade::cuda::recurrent
