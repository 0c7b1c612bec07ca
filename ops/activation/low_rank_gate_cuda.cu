// The gates of a GLA layer from their low-rank projection, on tensor cores (mma.m16n8k16). A block has 16 rows at a time, and of
// them all channels or, where these are many, a slice; a warp has 64 channels. In what a warp holds of a result [16 rows, 64
// channels], a thread has rows `lane / 4` and 8 further down, and of each the 8 channels from 8 (lane % 4) on and 32 further:
// which columns of the eight products' results these are is ours to say. So is the order of x's columns in a product's sum: a
// thread has four that are neighbours.
#include <algorithm>

#include <glade/autograd/running_pass.h>
#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/instructions.cuh>
#include <glade/core/cuda/loops.cuh>
#include <glade/core/pointer.h>
#include <glade/core/rounded_math.h>
#include <glade/ops/activation/low_rank_gate_kernels.h>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade::cuda {

namespace {

constexpr int kRank = static_cast<int>(kGateRank), kChannels = static_cast<int>(kGateChannels), kRows = 16,
              kTiles = kChannels / 8, kMostWarps = 8;

template <class T>
struct Arguments {
  const T *x, *weight, *bias;
  std::int64_t rows, channels;
  float factor;  ///< 1 / normalizer
};

/// What a thread keeps of the map, and makes of rows.
template <class T>
struct Map {
  const Arguments<T>& in;
  int lane, first_channel;  // of this warp
  uint2 weight[kTiles];     // [8 of the warp's channels, 16 of x's columns]
  unsigned bias[kTiles];

  __device__ explicit Map(const Arguments<T>& arguments)
      : in(arguments),
        lane(static_cast<int>(threadIdx.x) % 32),
        first_channel(static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) / 32 * kChannels) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      weight[j] = reinterpret_cast<const uint2*>(in.weight + channel(j, lane / 4) * kRank)[lane % 4];
      bias[j] = *reinterpret_cast<const unsigned*>(in.bias + channel(j));
    }
  }
  /// The channel of a column of a tile's result; this thread has two from channel(tile) on.
  __device__ int channel(int tile, int column) const {
    return first_channel + tile / 4 * 32 + column / 2 * 8 + tile % 4 * 2 + column % 2;
  }
  __device__ int channel(int tile) const { return channel(tile, lane % 4 * 2); }
  __device__ std::int64_t row(std::int64_t first, int half) const { return first + lane / 4 + 8 * half; }
  __device__ bool inside(std::int64_t first, int half) const { return row(first, half) < in.rows; }

  /// Rows of x as products' left operand; zeros beyond the last.
  __device__ void load(unsigned (&a)[4], std::int64_t first) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2* const at = reinterpret_cast<const uint2*>(in.x + row(first, half) * kRank) + lane % 4;
      const uint2 pairs = inside(first, half) ? *at : uint2{};
      a[half] = pairs.x;
      a[half + 2] = pairs.y;
    }
  }
  /// The map's results, rounded, in this thread's channels of a tile: of the upper row, then of the lower.
  __device__ void apply(float (&y)[4], const unsigned (&a)[4], int tile) const {
    const float2 start = unpack<T>(bias[tile]);
    y[0] = y[2] = start.x;
    y[1] = y[3] = start.y;
    mma<T>(y, a, weight[tile].x, weight[tile].y);
#pragma unroll
    for (float& value : y) value = math::rounded<T>(value);
  }
};

template <class T>
__global__ void __launch_bounds__(kMostWarps * 32) gate_kernel(Arguments<T> in, T* __restrict__ gates) {
  const Map<T> map(in);
  const std::int64_t step = std::int64_t{gridDim.x} * kRows;
  unsigned next[4];
  std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  map.load(next, first);
  for (; first < in.rows; first += step) {
    const unsigned a[4] = {next[0], next[1], next[2], next[3]};
    map.load(next, first + step);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 4) {
      unsigned out[2][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float y[4];
        map.apply(y, a, tile + k);
#pragma unroll
        for (float& value : y) value = math::rounded_logsigmoid<T>(value) * in.factor;
        out[0][k] = pack<T>(y[0], y[1]);
        out[1][k] = pack<T>(y[2], y[3]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (map.inside(first, half))
          *reinterpret_cast<uint4*>(gates + map.row(first, half) * in.channels + map.channel(tile)) =
              make_uint4(out[half][0], out[half][1], out[half][2], out[half][3]);
    }
  }
}

/// The gradient of x goes to grad_x or, from each of several slices, to x_parts [slices, rows, kRank].
template <class T>
__global__ void __launch_bounds__(kMostWarps * 32)
    gate_backward_kernel(Arguments<T> in, const T* __restrict__ grad, T* grad_x, std::int64_t grad_x_step,
                         float* __restrict__ x_parts, float* __restrict__ parts) {
  __shared__ float of_warps[2][kMostWarps][kRows][kRank];  // in turns: the last may still be read
  const Map<T> map(in);
  const int lane = map.lane, warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const std::int64_t channels = in.channels, step = std::int64_t{gridDim.x} * kRows;
  uint2 down[kTiles];  // the weight as the right operand of x's gradient
#pragma unroll
  for (int j = 0; j < kTiles; ++j) down[j] = make_uint2(transposed(map.weight[j].x), transposed(map.weight[j].y));
  float of_weight[kTiles][4] = {};  // [16 of x's columns, 8 channels]
  float2 of_bias[kTiles] = {};

  unsigned next[4];
  uint4 next_grad[2][2];
  const auto fetch = [&](std::int64_t first, int i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4* const at = reinterpret_cast<const uint4*>(grad + map.row(first, half) * channels + map.channel(4 * i));
      next_grad[i][half] = map.inside(first, half) ? *at : uint4{};
    }
  };
  std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  map.load(next, first);
  fetch(first, 0);
  fetch(first, 1);
  for (int turn = 0; first < in.rows; first += step, turn ^= 1) {
    const unsigned a[4] = {next[0], next[1], next[2], next[3]};
    map.load(next, first + step);
    const unsigned columns[4] = {transposed(a[0]), transposed(a[2]), transposed(a[1]), transposed(a[3])};
    float of_x[2][4] = {};  // in x's columns 4 (lane % 4) + 0 and 1, and in 2 and 3
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 grads[2] = {next_grad[i][0], next_grad[i][1]};
      fetch(first + step, i);
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        unsigned of_map[4];  // of two tiles, as a left operand
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int tile = 4 * i + k + l;
          float y[4];
          map.apply(y, a, tile);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const unsigned pairs[4] = {grads[half].x, grads[half].y, grads[half].z, grads[half].w};
            const float2 dy = unpack<T>(pairs[k + l]);
            unsigned& pair = of_map[2 * l + half];
            pair = pack<T>(dy.x * math::rounded_sigmoid<T>(-y[2 * half]) * in.factor,
                           dy.y * math::rounded_sigmoid<T>(-y[2 * half + 1]) * in.factor);
            const float2 rounded = unpack<T>(pair);
            of_bias[tile].x += rounded.x;
            of_bias[tile].y += rounded.y;
          }
          mma<T>(of_weight[tile], columns, transposed(of_map[2 * l]), transposed(of_map[2 * l + 1]));
        }
        const int tile = 4 * i + k;
        mma<T>(of_x[0], of_map, down[tile].x, down[tile + 1].x);
        mma<T>(of_x[1], of_map, down[tile].y, down[tile + 1].y);
      }
    }
    float* const own = &of_warps[turn][warp][lane / 4][lane % 4 * 4];
    *reinterpret_cast<float4*>(own) = make_float4(of_x[0][0], of_x[0][1], of_x[1][0], of_x[1][1]);
    *reinterpret_cast<float4*>(own + 8 * kRank) = make_float4(of_x[0][2], of_x[0][3], of_x[1][2], of_x[1][3]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kRank / 2; i += static_cast<int>(blockDim.x)) {
      const int row = i / (kRank / 2), column = i % (kRank / 2) * 2;
      float2 sum{};
#pragma unroll
      for (int other = 0; other < kMostWarps; ++other) {
        if (other == warps) break;
        const float2 part = *reinterpret_cast<const float2*>(&of_warps[turn][other][row][column]);
        sum.x += part.x;
        sum.y += part.y;
      }
      if (first + row >= in.rows) continue;
      if (x_parts == nullptr) *reinterpret_cast<unsigned*>(grad_x + (first + row) * grad_x_step + column) = pack<T>(sum.x, sum.y);
      else *reinterpret_cast<float2*>(x_parts + (blockIdx.y * in.rows + first + row) * kRank + column) = sum;
    }
  }

  float* const part = parts + blockIdx.x * channels * (kRank + 1);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = lane / 8 * 4 + lane / 4 % 2 + i / 2 * 2;
      part[(map.channel(tile) + i % 2) * kRank + column] = of_weight[tile][i];
    }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float2 sum = of_bias[tile];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, distance);
      sum.y += __shfl_xor_sync(~0u, sum.y, distance);
    }
    if (lane < 4) *reinterpret_cast<float2*>(part + channels * kRank + map.channel(tile)) = sum;
  }
}

/// Two neighbouring elements a thread.
template <class T>
__global__ void __launch_bounds__(detail::kThreads)
    add_slices_kernel(const float* __restrict__ x_parts, int slices, std::int64_t rows, T* grad_x, std::int64_t grad_x_step) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * detail::kThreads + threadIdx.x) * 2;
  if (i >= rows * kRank) return;
  float2 sum{};
  for (int slice = 0; slice < slices; ++slice) {
    const float2 part = *reinterpret_cast<const float2*>(x_parts + slice * rows * kRank + i);
    sum.x += part.x;
    sum.y += part.y;
  }
  *reinterpret_cast<unsigned*>(grad_x + i / kRank * grad_x_step + i % kRank) = pack<T>(sum.x, sum.y);
}

/// How the channels are divided.
struct Slices {
  unsigned count, threads;  ///< of slices; of a block

  explicit Slices(std::int64_t channels) {
    const auto warps = static_cast<unsigned>(channels / kChannels);
    count = (warps + kMostWarps - 1) / kMostWarps;
    while (warps % count != 0) ++count;
    threads = warps / count * 32;
  }
  /// Blocks that cover the rows, but no more than `most` with all slices.
  dim3 grid(std::int64_t rows, int most) const {
    return {std::max(1u, std::min(blocks_for(rows, kRows), static_cast<unsigned>(most) / count)), count};
  }
};

/// Calls f(arguments).
template <class F>
void visit(const LowRankGate& in, const F& f) {
  const auto call = [&]<class T>(T) {
    f(Arguments<T>{in.x.data<T>(), in.weight.data<T>(), in.bias.data<T>(), in.x.size(0), in.weight.size(0),
                   static_cast<float>(1 / in.normalizer)});
  };
  DeviceGuard guard(in.x.device());
  in.x.dtype() == DType::bfloat16 ? call(bfloat16()) : call(float16());
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

void low_rank_gate(const LowRankGate& in, const Tensor& gates) {
  constexpr int kBlocks = 3;  // of a multiprocessor
  const Slices slices(in.weight.size(0));
  visit(in, [&]<class T>(const Arguments<T>& arguments) {
    const dim3 grid = slices.grid(arguments.rows, kBlocks * multiprocessor_count(gates.device()));
    gate_kernel<<<grid, slices.threads, 0, stream(gates.device())>>>(arguments, gates.data<T>());
  });
}

void low_rank_gate_backward(const LowRankGate& in, const Tensor& grad, const Tensor& grad_x, const Tensor& sums, bool defer) {
  const Device device = grad.device();
  const std::int64_t rows = in.x.size(0);
  const Slices slices(in.weight.size(0));
  const dim3 grid = slices.grid(rows, multiprocessor_count(device));
  const Tensor parts = empty({grid.x, sums.numel()}, sums.options()),  // each block's share of the sums
      x_parts = slices.count > 1 ? empty({slices.count, rows, kRank}, sums.options()) : Tensor();
  visit(in, [&]<class T>(const Arguments<T>& arguments) {
    gate_backward_kernel<<<grid, slices.threads, 0, stream(device)>>>(
        arguments, grad.data<T>(), grad_x.data<T>(), grad_x.strides()[0], pointer<float>(x_parts), parts.data<float>());
    if (x_parts.defined())
      launch_kernel(add_slices_kernel<T>, blocks_for(rows * kRank, 2 * detail::kThreads), detail::kThreads, device,
                    x_parts.data<float>(), static_cast<int>(slices.count), rows, grad_x.data<T>(), grad_x.strides()[0]);
  });
  const auto add_up = [parts](const Tensor& to) { reduce(ReduceOp::sum, {1, parts.size(0), to.numel()}, parts, to); };
  defer ? autograd::defer(sums, add_up) : add_up(sums);
}

}  // namespace glade::cuda
