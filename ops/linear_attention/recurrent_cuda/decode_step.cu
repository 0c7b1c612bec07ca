// A forward scan over a single token, for generation: it reads and writes the state once, and may update it in place.
// A block owns a strip of columns of one state; a thread processes a quad of columns in four rows at a time. A thread issues all
// its loads before it uses the first, and the threads share only the sums at the end. On GPUs with programmatic dependent launch
// the step starts before the previous kernel ends, and prefetches its first states into the L2 cache. This is safe even if that
// kernel writes those states, because both go through L2. Every block then prefetches the state of a later block.
#include <algorithm>

#include <glade/core/cuda/instructions.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/pass.cuh>

namespace glade::cuda::recurrent {

namespace {

constexpr int kLanes = 16, kColumns = 4 * kLanes;  // threads of a row, and columns of a block
constexpr int kMostThreads = 512;                  // threads of a block; small states use fewer
constexpr std::int64_t kMostSequences = 65535;     // sequences of a launch, which are the grid's third dimension
constexpr unsigned kAhead = 4;                     // a block prefetches the state of the sequence this far ahead

/// The grid is [strips of columns, heads, sequences from number `first` on]. This is one long function because the order of its
/// loads makes its speed: all of them are issued before the first use, and share their addresses.
template <class F, class T, class G, bool kVector>
__global__ void __launch_bounds__(kMostThreads, sizeof(F) == 4 ? 2 : 1)
    step_kernel(const __grid_constant__ Pass<F> pass, std::int64_t first) {
  __shared__ __align__(16) F sums[kMostThreads / 32][kColumns];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, own_row = thread / kLanes * 4,
            rows_at_once = static_cast<int>(blockDim.x) / kLanes * 4;
  const int h = static_cast<int>(blockIdx.y), strip = static_cast<int>(blockIdx.x) * kColumns, column = strip + lane * 4,
            columns = pass.outer() - column;
  const std::int64_t n = first + blockIdx.z, pair = n * pass.heads + h, kv_pair = pair / pass.rows[kD].group;
  const F* initial = pass.initial.data;
  if (initial != nullptr) initial += n * pass.initial.sequence + h * pass.state_size() + column;
  F* final = pass.final.data + pair * pass.state_size() + column;

  constexpr int kLine = 128 / static_cast<int>(4 * sizeof(F));  // threads whose quads share the cache line of a prefetch
  auto prefetch = [&](unsigned sequences) {                     // the block's strip of the state that many sequences ahead
    const F* from = initial + sequences * pass.initial.sequence;
    if (initial != nullptr && columns > 0 && lane % kLine == 0)
      for (int i = thread / kLanes; i < pass.inner(); i += rows_at_once / 4)
        prefetch_line(from + static_cast<std::int64_t>(i) * pass.outer());
  };
  if (blockIdx.z < kAhead) prefetch(0);
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif

  Raw<F> state[4];
  Raw<T> raw_c, raw_d;
  Raw<G> raw_a;
  auto rows_from = [&](int row) { return columns <= 0 ? 0 : kVector ? (row < pass.inner() ? 4 : 0) : pass.inner() - row; };
  auto load = [&](int row) {
    const int rows = rows_from(row);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      state[r] = Raw<F>();
      load_quad<kVector>(initial + static_cast<std::int64_t>(row + r) * pass.outer(), columns, initial != nullptr && r < rows,
                         state[r]);
    }
    raw_a = load_row<kVector, G, T>(pass.rows[kInnerGate], pair, row);
    raw_c = load_row<kVector, T>(pass.rows[kC], pair, row);
    raw_d = load_row<kVector, T>(pass.rows[kD], kv_pair, row);
  };
  load(own_row);
  if (blockIdx.z + kAhead < gridDim.z) prefetch(kAhead);
  const Raw<T> raw_e = load_row<kVector, T>(pass.rows[kE], kv_pair, column);
  const Raw<G> raw_b = load_row<kVector, G, T>(pass.rows[kOuterGate], pair, column);
  const F shared = load_element<F>(pass.head_gate, pair) + pass.gamma_gate(n, h);

  const F factor = static_cast<F>(pass.rows[kC].factor);
  const Quad<F> e = raw_e.template values<F>(), b = decays(raw_b.template values<F>(), F{0});
  Quad<F> sum{};
  for (int row = own_row;;) {
    const int rows = rows_from(row);
    const Quad<F> a = decays(raw_a.template values<F>(), shared), c = raw_c.template values<F>() * factor,
                  d = raw_d.template values<F>();
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r >= rows) break;
      Quad<F> x = state[r].template values<F>();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x.x[j] = a.x[r] * b.x[j] * x.x[j] + d.x[r] * e.x[j];
        sum.x[j] += c.x[r] * x.x[j];
      }
      store_quad<kVector>(x, final + static_cast<std::int64_t>(row + r) * pass.outer(), 0, columns);
    }
    row += rows_at_once;
    if (row - own_row >= pass.inner()) break;
    load(row);
  }

  // Sum over the rows of each warp, then over the warps of the block.
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.x[j] += __shfl_xor_sync(~0u, sum.x[j], offset);
  if (thread % 32 < kLanes) *reinterpret_cast<Quad<F>*>(&sums[thread / 32][lane * 4]) = sum;
  __syncthreads();
  for (int j = thread; j < kColumns && strip + j < pass.outer(); j += static_cast<int>(blockDim.x)) {
    F total = 0;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) total += sums[warp][j];
    static_cast<T*>(pass.out)[pair * pass.outer() + strip + j] = T(total);
  }
}

}  // namespace

template <class F, class T>
void run_step(const Pass<F>& pass, Device device) {
  const bool vector = std::ranges::all_of(pass.rows, is_vector) && is_aligned(pass.initial.data) && is_aligned(pass.final.data);
  const bool float_gates = has_type<F>(pass.rows[kInnerGate]) || has_type<F>(pass.rows[kOuterGate]);
  auto kernel = !vector ? step_kernel<F, T, F, false> : float_gates ? step_kernel<F, T, F, true> : step_kernel<F, T, T, true>;
  const int threads =
      static_cast<int>((std::clamp<std::int64_t>((pass.inner() + 3) / 4 * kLanes, 32, kMostThreads) + 31) / 32 * 32);
  for (std::int64_t first = 0; first < pass.sequences.count; first += kMostSequences) {
    const dim3 grid(blocks_for(pass.outer(), kColumns), static_cast<unsigned>(pass.heads),
                    static_cast<unsigned>(std::min(pass.sequences.count - first, kMostSequences)));
    launch_kernel(kernel, grid, threads, {.early = can_start_early(kernel)}, stream(device), pass, first);
  }
}

template void run_step<float, float>(const Pass<float>&, Device);
template void run_step<float, bfloat16>(const Pass<float>&, Device);
template void run_step<float, float16>(const Pass<float>&, Device);
template void run_step<double, double>(const Pass<double>&, Device);

}  // namespace glade::cuda::recurrent
