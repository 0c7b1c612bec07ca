// A pass upwards over a single token, for generation: one read and one write of the state. A block has a strip of columns
// of one state; a thread has a quad of them in some of the rows, all of which it asks for before it needs the first. The
// state may be updated in place.
#include <glade/core/math.h>
#include <glade/ops/linear_attention/recurrent_pass.cuh>

namespace glade::cuda::recurrent {

namespace {

constexpr int kThreads = 128, kLanes = 8, kColumns = 4 * kLanes, kRowsAtOnce = kThreads / kLanes;
constexpr int kUnroll = 8;     // rows of a thread in flight
constexpr int kLargest = 512;  // inner channels

/// Four columns of a row of the state, as far as they are there.
template <bool kVector, class F>
__device__ Quad<F> load_columns(const F* row, int columns) {
  if constexpr (kVector) return *reinterpret_cast<const Quad<F>*>(row);
  Quad<F> quad{};
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < columns) quad.x[j] = row[j];
  return quad;
}
template <bool kVector, class F>
__device__ void store_columns(const Quad<F>& quad, F* row, int columns) {
  if constexpr (kVector) {
    *reinterpret_cast<Quad<F>*>(row) = quad;
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < columns) row[j] = quad.x[j];
  }
}

template <class F, bool kVector>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ Pass<F> pass, int strips) {
  __shared__ F a[kLargest], c[kLargest], d[kLargest];
  __shared__ Quad<F> sums[kThreads / 32][kLanes];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int pair = static_cast<int>(blockIdx.x) / strips, column = static_cast<int>(blockIdx.x) % strips * kColumns + lane * 4;
  const int n = pair / pass.heads, h = pair % pass.heads, columns = pass.outer() - column;
  const std::int64_t size = static_cast<std::int64_t>(pass.inner()) * pass.outer();
  const F* initial = pass.initial == nullptr ? nullptr : pass.initial + n * pass.initial_stride + h * size + column;
  F* final = pass.final + pair * size + column;

  Quad<F> state[kUnroll];
  auto load = [&](int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * kRowsAtOnce;
      state[u] = Quad<F>{};
      if (initial != nullptr && i < pass.inner() && columns > 0)
        state[u] = load_columns<kVector>(initial + static_cast<std::int64_t>(i) * pass.outer(), columns);
    }
  };
  auto element = [&](Operand operand, int channel) {
    const Rows& rows = pass.rows[operand];
    return load_element<F>(rows, rows.row(n, pass.heads, h) * rows.size + channel) * static_cast<F>(rows.factor);
  };

  int first = thread / kLanes;
  load(first);
  const F shared = load_element<F>(pass.head_gate, pair) + (pass.gamma != nullptr ? pass.gamma[pair] : F{0});
  for (int i = thread; i < pass.inner(); i += kThreads) {
    a[i] = math::exp(shared + element(kInnerGate, i));
    c[i] = element(kC, i);
    d[i] = element(kD, i);
  }
  Quad<F> b{}, e{}, sum{};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j >= columns) break;
    b.x[j] = pass.rows[kOuterGate].data != nullptr ? math::exp(element(kOuterGate, column + j)) : F{1};
    e.x[j] = element(kE, column + j);
  }
  __syncthreads();
  while (true) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * kRowsAtOnce;
      if (i >= pass.inner() || columns <= 0) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        state[u].x[j] = a[i] * b.x[j] * state[u].x[j] + d[i] * e.x[j];
        sum.x[j] += c[i] * state[u].x[j];
      }
      store_columns<kVector>(state[u], final + static_cast<std::int64_t>(i) * pass.outer(), columns);
    }
    first += kUnroll * kRowsAtOnce;
    if (first - thread / kLanes >= pass.inner()) break;
    load(first);
  }

  // The rows of a warp, then those of the block.
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.x[j] += __shfl_xor_sync(~0u, sum.x[j], offset);
  if (thread % 32 < kLanes) sums[thread / 32][lane] = sum;
  __syncthreads();
  if (thread >= kLanes) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    F total = 0;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) total += sums[warp][lane].x[j];
    if (j < columns) store_element(total, pass.out, pass.out_dtype, static_cast<std::int64_t>(pair) * pass.outer() + column + j);
  }
}

}  // namespace

template <class F>
void run_step(const Pass<F>& pass, Device device) {
  const int strips = (pass.outer() + kColumns - 1) / kColumns;
  const auto blocks = static_cast<unsigned>(pass.sequences.count * pass.heads * strips);
  if (blocks == 0) return;
  auto is_aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  const bool vector = pass.outer() % 4 == 0 && is_aligned(pass.initial) && is_aligned(pass.final);
  auto kernel = vector ? step_kernel<F, true> : step_kernel<F, false>;
  kernel<<<blocks, kThreads, 0, stream(device)>>>(pass, strips);
  GLADE_CUDA_LAUNCHED();
}

template void run_step(const Pass<float>&, Device);
template void run_step(const Pass<double>&, Device);

}  // namespace glade::cuda::recurrent
