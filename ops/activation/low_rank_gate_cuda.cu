// The gates of a GLA layer from their low-rank projection, on tensor cores (mma.m16n8k16). A block has all channels of 16 rows at
// a time, a warp 64 of them. In what a warp holds of a result [16 rows, 64 channels], a thread has rows `lane / 4` and 8 further
// down, and of each the 16 channels from 16 (lane % 4) on: which columns of the eight products' results these are is ours to say.
#include <algorithm>

#include <glade/autograd/aside.h>
#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/instructions.cuh>
#include <glade/core/rounded_math.h>
#include <glade/ops/activation/low_rank_gate_kernels.h>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade::cuda {

namespace {

constexpr int kRank = static_cast<int>(kGateRank), kChannels = static_cast<int>(kGateChannels), kRows = 16,
              kTiles = kChannels / 8, kMostWarps = static_cast<int>(kMostGateChannels) / kChannels;

/// Two values of 16 bits, the first in the lower half.
template <class T>
__device__ unsigned pack(float first, float second) {
  return static_cast<unsigned>(T(first).bits) | static_cast<unsigned>(T(second).bits) << 16;
}
template <class T>
__device__ float2 unpack(unsigned pair) {
  T first, second;
  first.bits = static_cast<std::uint16_t>(pair);
  second.bits = static_cast<std::uint16_t>(pair >> 16);
  return make_float2(first, second);
}

/// sum += a b for a [16, 16] and b [16, 8].
template <class T>
__device__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#define GLADE_MMA(type)                                                 \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type   \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "           \
               "{%0,%1,%2,%3};"                                         \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, bfloat16>) GLADE_MMA("bf16");
  else GLADE_MMA("f16");
#undef GLADE_MMA
}

template <class T>
struct Arguments {
  const T *x, *weight, *bias;
  std::int64_t rows;
  float factor;  ///< 1 / normalizer
};

/// What a thread keeps of the map, and makes of rows.
template <class T>
struct Map {
  const Arguments<T>& in;
  int lane, first_channel;  // of this warp
  unsigned weight[kTiles][2];
  unsigned bias[kTiles];

  __device__ explicit Map(const Arguments<T>& arguments)
      : in(arguments), lane(static_cast<int>(threadIdx.x) % 32), first_channel(static_cast<int>(threadIdx.x) / 32 * kChannels) {
    const int column = lane / 4, own = column / 2 * 16 + column % 2;  // whose channel this is in tile 0
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const T* const row = in.weight + (first_channel + own + 2 * j) * kRank + lane % 4 * 2;
      weight[j][0] = *reinterpret_cast<const unsigned*>(row);
      weight[j][1] = *reinterpret_cast<const unsigned*>(row + 8);
      bias[j] = *reinterpret_cast<const unsigned*>(in.bias + channel() + 2 * j);
    }
  }
  __device__ int channel() const { return first_channel + lane % 4 * 16; }  ///< the first of this thread's
  __device__ std::int64_t row(std::int64_t first, int half) const { return first + lane / 4 + 8 * half; }

  /// Rows of x as products' left operand; zeros beyond the last.
  __device__ void load(unsigned (&a)[4], std::int64_t first) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool inside = row(first, half) < in.rows;
      const unsigned* const at = reinterpret_cast<const unsigned*>(in.x + row(first, half) * kRank) + lane % 4;
      a[half] = inside ? at[0] : 0;
      a[half + 2] = inside ? at[4] : 0;
    }
  }
  /// The map's results, rounded, in channels 2 j and 2 j + 1 of this thread's: of the upper row, then of the lower.
  __device__ void apply(float (&y)[4], const unsigned (&a)[4], int j) const {
    const float2 start = unpack<T>(bias[j]);
    y[0] = y[2] = start.x;
    y[1] = y[3] = start.y;
    multiply<T>(y, a, weight[j][0], weight[j][1]);
#pragma unroll
    for (float& value : y) value = T(value);
  }
};

template <class T>
__global__ void __launch_bounds__(kMostWarps * 32) gate_kernel(Arguments<T> in, T* __restrict__ gates) {
  const Map<T> map(in);
  const std::int64_t channels = std::int64_t{blockDim.x} / 32 * kChannels, step = std::int64_t{gridDim.x} * kRows;
  unsigned next[4];
  std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  map.load(next, first);
  for (; first < in.rows; first += step) {
    const unsigned a[4] = {next[0], next[1], next[2], next[3]};
    map.load(next, first + step);
    unsigned out[2][kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float y[4];
      map.apply(y, a, j);
#pragma unroll
      for (float& value : y) value = math::rounded_logsigmoid<T>(value) * in.factor;
      out[0][j] = pack<T>(y[0], y[1]);
      out[1][j] = pack<T>(y[2], y[3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (map.row(first, half) >= in.rows) continue;
      uint4* const to = reinterpret_cast<uint4*>(gates + map.row(first, half) * channels + map.channel());
#pragma unroll
      for (int i = 0; i < 2; ++i)
        to[i] = make_uint4(out[half][4 * i], out[half][4 * i + 1], out[half][4 * i + 2], out[half][4 * i + 3]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kMostWarps * 32) gate_backward_kernel(Arguments<T> in, const T* __restrict__ grad, T* grad_x,
                                                                        std::int64_t grad_x_step, float* __restrict__ parts) {
  __shared__ float of_warps[2][kMostWarps][kRows][kRank];  // in turns: the last may still be read
  const Map<T> map(in);
  const int lane = map.lane, warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const std::int64_t channels = std::int64_t{warps} * kChannels, step = std::int64_t{gridDim.x} * kRows;
  // The weight as the right operand [16 channels, 8 of x's columns] of x's gradient.
  unsigned down[kTiles / 2][2][2];
#pragma unroll
  for (int i = 0; i < kTiles / 2; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const T* const at = in.weight + (map.channel() + 4 * i + 2 * k) * kRank + 8 * half + lane / 4;
        down[i][half][k] = static_cast<unsigned>(at[0].bits) | static_cast<unsigned>(at[kRank].bits) << 16;
      }
  float of_weight[kTiles][4] = {};  // [16 of x's columns, channels]
  float of_bias[2 * kTiles] = {};

  unsigned next[4];
  uint4 next_grad[2][2];
  const auto fetch = [&](std::int64_t first) {
    map.load(next, first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool inside = map.row(first, half) < in.rows;
      const uint4* const at = reinterpret_cast<const uint4*>(grad + map.row(first, half) * channels + map.channel());
#pragma unroll
      for (int i = 0; i < 2; ++i) next_grad[half][i] = inside ? at[i] : uint4{};
    }
  };
  std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  fetch(first);
  for (int turn = 0; first < in.rows; first += step, turn ^= 1) {
    const unsigned a[4] = {next[0], next[1], next[2], next[3]};
    unsigned of_map[2][kTiles];  // at first the gates' gradient
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 loaded = next_grad[half][i];
        of_map[half][4 * i] = loaded.x;
        of_map[half][4 * i + 1] = loaded.y;
        of_map[half][4 * i + 2] = loaded.z;
        of_map[half][4 * i + 3] = loaded.w;
      }
    fetch(first + step);
    const unsigned columns[4] = {transposed(a[0]), transposed(a[2]), transposed(a[1]), transposed(a[3])};
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float y[4];
      map.apply(y, a, j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 dy = unpack<T>(of_map[half][j]);
        of_map[half][j] = pack<T>(dy.x * math::rounded_sigmoid<T>(-y[2 * half]) * in.factor,
                                  dy.y * math::rounded_sigmoid<T>(-y[2 * half + 1]) * in.factor);
        const float2 rounded = unpack<T>(of_map[half][j]);
        of_bias[2 * j] += rounded.x;
        of_bias[2 * j + 1] += rounded.y;
      }
      multiply<T>(of_weight[j], columns, transposed(of_map[0][j]), transposed(of_map[1][j]));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum[4] = {};
#pragma unroll
      for (int i = 0; i < kTiles / 2; ++i) {
        const unsigned rows[4] = {of_map[0][2 * i], of_map[1][2 * i], of_map[0][2 * i + 1], of_map[1][2 * i + 1]};
        multiply<T>(sum, rows, down[i][half][0], down[i][half][1]);
      }
      const int column = 8 * half + lane % 4 * 2;
      auto& own = of_warps[turn][warp];
      *reinterpret_cast<float2*>(&own[lane / 4][column]) = make_float2(sum[0], sum[1]);
      *reinterpret_cast<float2*>(&own[lane / 4 + 8][column]) = make_float2(sum[2], sum[3]);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kRank / 2; i += static_cast<int>(blockDim.x)) {
      const int row = i / (kRank / 2), column = i % (kRank / 2) * 2;
      float2 sum{};
      for (int other = 0; other < warps; ++other) {
        const float2 part = *reinterpret_cast<const float2*>(&of_warps[turn][other][row][column]);
        sum.x += part.x;
        sum.y += part.y;
      }
      if (first + row < in.rows)
        *reinterpret_cast<unsigned*>(grad_x + (first + row) * grad_x_step + column) = pack<T>(sum.x, sum.y);
    }
  }

  float* const part = parts + blockIdx.x * channels * (kRank + 1);
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = map.channel() + 2 * j + i % 2, column = lane / 4 + i / 2 * 8;
      part[channel * kRank + column] = of_weight[j][i];
    }
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) of_bias[i] += __shfl_xor_sync(~0u, of_bias[i], distance);
    if (lane < 4) part[channels * kRank + map.channel() + i] = of_bias[i];
  }
}

/// Calls f(arguments, threads of a block).
template <class F>
void visit(const LowRankGate& in, const F& f) {
  const auto call = [&]<class T>(T) {
    f(Arguments<T>{in.x.data<T>(), in.weight.data<T>(), in.bias.data<T>(), in.x.size(0), static_cast<float>(1 / in.normalizer)},
      static_cast<unsigned>(in.weight.size(0) / kChannels * 32));
  };
  DeviceGuard guard(in.x.device());
  in.x.dtype() == DType::bfloat16 ? call(bfloat16()) : call(float16());
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

void low_rank_gate(const LowRankGate& in, const Tensor& gates) {
  constexpr int kBlocks = 3;  // of a multiprocessor
  visit(in, [&]<class T>(const Arguments<T>& arguments, unsigned threads) {
    const auto blocks = std::min<std::int64_t>(blocks_for(arguments.rows, kRows), kBlocks * multiprocessor_count(gates.device()));
    gate_kernel<<<static_cast<unsigned>(blocks), threads, 0, stream(gates.device())>>>(arguments, gates.data<T>());
  });
}

void low_rank_gate_backward(const LowRankGate& in, const Tensor& grad, const Tensor& grad_x, const Tensor& sums, bool aside) {
  const std::int64_t blocks = std::min<std::int64_t>(blocks_for(in.x.size(0), kRows),
                                                     multiprocessor_count(grad.device()));  // each has a part of the sums
  const Tensor parts = empty({blocks, sums.numel()}, sums.options());
  visit(in, [&]<class T>(const Arguments<T>& arguments, unsigned threads) {
    gate_backward_kernel<<<static_cast<unsigned>(blocks), threads, 0, stream(grad.device())>>>(
        arguments, grad.data<T>(), grad_x.data<T>(), grad_x.strides()[0], parts.data<float>());
  });
  const auto add_up = [parts, sums] { reduce(ReduceOp::sum, {1, parts.size(0), sums.numel()}, parts, sums); };
  aside ? autograd::run_aside(grad.device(), add_up) : add_up();
}

}  // namespace glade::cuda
