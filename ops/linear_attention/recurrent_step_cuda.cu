// A pass upwards over a single token, for generation: one read and one write of the state, which may be updated in place.
// A block has a strip of columns of one state; a thread has a quad of them in some of the rows, all of which it asks for
// before it needs the first. Where the GPU can, a step starts while the kernel before it ends, and fetches its state into
// the L2 cache meanwhile, which is harmless also where that kernel writes it.
#include <algorithm>

#include <glade/core/math.h>
#include <glade/ops/linear_attention/recurrent_pass.cuh>

namespace glade::cuda::recurrent {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kLargest = 512, kQuads = kLargest / 128;  // inner channels, and quads of them that a thread prepares
constexpr int kInnerOperands = kInnerGate + 1;

/// Waits until the kernels queued before this one are done, and lets the next start up.
__device__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The quad of elements of a row from a channel on, as they lie in memory; zeros where there are none.
/// T, G, kVector: see Producer (recurrent_tile.cuh).
template <bool kVector, class G, class T = G>
__device__ __forceinline__ Raw<G> load_row(const Rows& rows, std::int64_t token, int h, int channel) {
  Raw<G> raw;
  const bool present = rows.data != nullptr && channel < rows.size;
  const std::int64_t at = rows.row(token, h) * rows.size + channel;
  if constexpr (!kVector && !std::is_same_v<G, T>) {
    if (rows.dtype == dtype_of<T>()) {
      load_quad<kVector>(static_cast<const T*>(rows.data) + at, rows.size - channel, present, raw);
      return raw;
    }
  }
  load_quad<kVector>(static_cast<const G*>(rows.data) + at, rows.size - channel, present, raw);
  return raw;
}

/// kLanes: threads a row, each with four columns. kUnroll: rows of a thread in flight.
template <class F, class T, class G, bool kVector, int kLanes, int kUnroll>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ Pass<F> pass, int strips) {
  constexpr int kColumns = 4 * kLanes, kRowsAtOnce = kThreads / kLanes;
  __shared__ __align__(16) F prepared[kInnerOperands][kLargest];  // c, d and the inner decay
  __shared__ Quad<F> sums[kWarps][kLanes];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, warp = thread / 32;
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

  // All that comes from memory is asked for at once: c, d and the inner gate by a warp each.
  Raw<T> row[kQuads];
  Raw<G> inner_log[kQuads];
  if (warp < kInnerGate) {
#pragma unroll
    for (int r = 0; r < kQuads; ++r) row[r] = load_row<kVector, T>(pass.rows[warp], n, h, (thread % 32 + r * 32) * 4);
  } else if (warp == kInnerGate) {
#pragma unroll
    for (int r = 0; r < kQuads; ++r)
      inner_log[r] = load_row<kVector, G, T>(pass.rows[kInnerGate], n, h, (thread % 32 + r * 32) * 4);
  }
  const Raw<T> raw_e = load_row<kVector, T>(pass.rows[kE], n, h, column);
  const Raw<G> raw_b = load_row<kVector, G, T>(pass.rows[kOuterGate], n, h, column);
  const F shared = load_element<F>(pass.head_gate, pair) + (pass.gamma != nullptr ? pass.gamma[pair] : F{0});
  Raw<F> state[kUnroll];
  auto load = [&](int first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * kRowsAtOnce;
      state[u] = Raw<F>();
      load_quad<kVector>(initial + static_cast<std::int64_t>(i) * pass.outer(), columns,
                         initial != nullptr && i < pass.inner() && columns > 0, state[u]);
    }
  };
  int first = thread / kLanes;
  load(first);

  if (warp < kInnerOperands) {
#pragma unroll
    for (int r = 0; r < kQuads; ++r) {
      Quad<F> values;
      if (warp == kInnerGate) {
        values = inner_log[r].template values<F>();
#pragma unroll
        for (F& x : values.x) x = math::exp(shared + x);
      } else {
        values = row[r].template values<F>() * static_cast<F>(pass.rows[warp].factor);
      }
      *reinterpret_cast<Quad<F>*>(&prepared[warp][(thread % 32 + r * 32) * 4]) = values;
    }
  }
  const F *a = prepared[kInnerGate], *c = prepared[kC], *d = prepared[kD];
  const Quad<F> e = raw_e.template values<F>();
  Quad<F> b = raw_b.template values<F>(), sum{};
#pragma unroll
  for (F& x : b.x) x = math::exp(x);
  __syncthreads();
  while (true) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * kRowsAtOnce;
      if (i >= pass.inner() || columns <= 0) break;
      Quad<F> x = state[u].template values<F>();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x.x[j] = a[i] * b.x[j] * x.x[j] + d[i] * e.x[j];
        sum.x[j] += c[i] * x.x[j];
      }
      store_quad<kVector>(x, final + static_cast<std::int64_t>(i) * pass.outer(), 0, columns);
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
  if (thread % 32 < kLanes) sums[warp][lane] = sum;
  __syncthreads();
  if (thread >= kLanes) return;
  Quad<F> total = sums[0][lane];
#pragma unroll
  for (int other = 1; other < kWarps; ++other) total = total + sums[other][lane];
  if (columns > 0)
    store_quad<kVector>(total, static_cast<T*>(pass.out) + static_cast<std::int64_t>(pair) * pass.outer(), column, pass.outer());
}

template <class F, class T, int kLanes, int kUnroll>
void launch_step(const Pass<F>& pass, Device device) {
  const int strips = (pass.outer() + 4 * kLanes - 1) / (4 * kLanes);
  const bool vector = std::ranges::all_of(pass.rows, is_vector) && is_aligned(pass.initial.data) && is_aligned(pass.final.data) &&
                      is_aligned(pass.out);
  const bool wide_gates = has_type<F>(pass.rows[kInnerGate]) || has_type<F>(pass.rows[kOuterGate]);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(pass.sequences.count * pass.heads * strips));
  config.blockDim = dim3(kThreads);
  config.stream = stream(device);
  config.attrs = &early;
  config.numAttrs = compute_capability(device) >= 90 ? 1 : 0;
  auto kernel = !vector      ? step_kernel<F, T, F, false, kLanes, kUnroll>
                : wide_gates ? step_kernel<F, T, F, true, kLanes, kUnroll>
                             : step_kernel<F, T, T, true, kLanes, kUnroll>;
  GLADE_CUDA(cudaLaunchKernelEx(&config, kernel, pass, strips));
}

}  // namespace

template <class F, class T>
void run_step(const Pass<F>& pass, Device device) {
  if (pass.sequences.count == 0) return;
  launch_step<F, T, 16, 16>(pass, device);
}

template void run_step<float, float>(const Pass<float>&, Device);
template void run_step<float, bfloat16>(const Pass<float>&, Device);
template void run_step<float, float16>(const Pass<float>&, Device);
template void run_step<double, double>(const Pass<double>&, Device);

}  // namespace glade::cuda::recurrent
