// A pass upwards over a single token, for generation: one read and one write of the state, which may be updated in place.
// A block has a strip of columns of one state; a thread has a quad of them in some of the rows, all of which it asks for
// before it needs the first. Where the GPU can, a step starts while the kernel before it ends, and fetches its state into
// the L2 cache meanwhile, which is harmless also where that kernel writes it.
#include <algorithm>

#include <glade/core/math.h>
#include <glade/ops/linear_attention/recurrent_pass.cuh>

namespace glade::cuda::recurrent {

namespace {

constexpr int kThreads = 128;
constexpr int kLargest = 512, kQuads = kLargest / 128;  // inner channels, and quads of them that a thread prepares
constexpr int kInnerOperands = kInnerGate + 1;

/// Waits until the kernels queued before this one are done, and lets the next start up.
__device__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

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

/// kLanes: threads a row, each with four columns. kUnroll: rows of a thread in flight.
template <class F, bool kVector, int kLanes, int kUnroll>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ Pass<F> pass, int strips) {
  constexpr int kColumns = 4 * kLanes, kRowsAtOnce = kThreads / kLanes, kWarps = kThreads / 32;
  __shared__ __align__(16) F prepared[kInnerOperands][kLargest];  // c, d and the inner decay
  __shared__ Quad<F> sums[kWarps][kLanes];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int pair = static_cast<int>(blockIdx.x) / strips, strip = static_cast<int>(blockIdx.x) % strips * kColumns;
  const int n = pair / pass.heads, h = pair % pass.heads, column = strip + lane * 4, columns = pass.outer() - column;
  const std::int64_t size = pass.state_size();
  const F* initial = pass.initial.data == nullptr ? nullptr : pass.initial.data + n * pass.initial.sequence + h * size + column;
  F* final = pass.final.data + pair * size + column;

#if __CUDA_ARCH__ >= 900
  if (initial != nullptr && columns > 0)
    for (int i = thread / kLanes; i < pass.inner(); i += kRowsAtOnce)
      if (kColumns * sizeof(F) <= 128 ? lane == 0 : lane % (32 / static_cast<int>(sizeof(F))) == 0)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(initial + static_cast<std::int64_t>(i) * pass.outer()));
#endif
  wait_for_previous();

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
  // All that comes from memory is asked for at once: c, d and the inner gate by a warp each.
  int first = thread / kLanes;
  load(first);
  auto load_row = [&](const Rows& rows, int channel, bool wanted, RawQuad<F>(&raw)[1]) {
    const bool there = wanted && rows.data != nullptr && channel < rows.size;
    load_quads<kVector>(rows, rows.row(n, h) * rows.size + channel, 0, rows.size - channel, there, raw);
  };
  const int operand = thread / 32;
  const Rows& rows = pass.rows[operand < kInnerOperands ? operand : 0];
  RawQuad<F> raw[kQuads][1], raw_e[1], raw_b[1];
#pragma unroll
  for (int r = 0; r < kQuads; ++r) load_row(rows, (thread % 32 + r * 32) * 4, operand < kInnerOperands, raw[r]);
  load_row(pass.rows[kE], column, true, raw_e);
  load_row(pass.rows[kOuterGate], column, true, raw_b);
  const F shared = load_element<F>(pass.head_gate, pair) + (pass.gamma != nullptr ? pass.gamma[pair] : F{0});
#pragma unroll
  for (int r = 0; r < kQuads; ++r) {
    Quad<F> values[1];
    decode(rows, raw[r], values);
    if (operand >= kInnerOperands) break;
#pragma unroll
    for (F& x : values[0].x) x = operand == kInnerGate ? math::exp(shared + x) : x * static_cast<F>(rows.factor);
    *reinterpret_cast<Quad<F>*>(&prepared[operand][(thread % 32 + r * 32) * 4]) = values[0];
  }
  const F *a = prepared[kInnerGate], *c = prepared[kC], *d = prepared[kD];
  Quad<F> b[1], e[1];
  decode(pass.rows[kE], raw_e, e);
  decode(pass.rows[kOuterGate], raw_b, b);
#pragma unroll
  for (F& x : b[0].x) x = math::exp(x);
  Quad<F> sum{};
  __syncthreads();
  while (true) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * kRowsAtOnce;
      if (i >= pass.inner() || columns <= 0) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        state[u].x[j] = a[i] * b[0].x[j] * state[u].x[j] + d[i] * e[0].x[j];
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
    for (int warp = 0; warp < kWarps; ++warp) total += sums[warp][lane].x[j];
    if (j < columns) store_element(total, pass.out, pass.out_dtype, static_cast<std::int64_t>(pair) * pass.outer() + column + j);
  }
}

template <class F, int kLanes, int kUnroll>
void launch_step(const Pass<F>& pass, Device device) {
  const int strips = (pass.outer() + 4 * kLanes - 1) / (4 * kLanes);
  auto is_aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  const bool vector = std::ranges::all_of(pass.rows, is_vector) && is_aligned(pass.initial.data) && is_aligned(pass.final.data);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(pass.sequences.count * pass.heads * strips));
  config.blockDim = dim3(kThreads);
  config.stream = stream(device);
  config.attrs = &early;
  config.numAttrs = compute_capability(device) >= 90 ? 1 : 0;
  auto kernel = vector ? step_kernel<F, true, kLanes, kUnroll> : step_kernel<F, false, kLanes, kUnroll>;
  GLADE_CUDA(cudaLaunchKernelEx(&config, kernel, pass, strips));
}

}  // namespace

template <class F>
void run_step(const Pass<F>& pass, Device device) {
  if (pass.sequences.count == 0) return;
  launch_step<F, 16, 16>(pass, device);
}

template void run_step(const Pass<float>&, Device);
template void run_step(const Pass<double>&, Device);

}  // namespace glade::cuda::recurrent
