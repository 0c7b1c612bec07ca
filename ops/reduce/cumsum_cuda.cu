// Running sums on the GPU, in float64 for floating-point types. The scanned dimension is cut into chunks where there are
// too few sequences to fill the GPU: first every chunk's total, then the running sums of those, then the sums themselves.
// A sequence that is contiguous in memory is scanned by a warp, one that is a column by a thread beside its neighbours.
#include <glade/ops/reduce/cumsum_kernels.h>
#include <glade/ops/reduce/fold.cuh>

namespace glade::cuda {

namespace {

/// Calls store(i, carry + load(0) + ... + load(i)) for i in [0, n) and returns the last sum. Lanes is 1 or a warp, of which
/// all threads take part.
template <int Lanes, class Acc, class Load, class Store>
__device__ Acc scan_run(std::int64_t n, Acc carry, int lane, const Load& load, const Store& store) {
  for (std::int64_t base = lane; base - lane < n; base += kLoads * Lanes) {
    Acc v[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) v[k] = base + k * Lanes < n ? load(base + k * Lanes) : Acc(0);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
#pragma unroll
      for (int offset = 1; offset < Lanes; offset *= 2) {
        const Acc before = __shfl_up_sync(~0u, v[k], offset);
        if (lane >= offset) v[k] += before;
      }
      v[k] += carry;
      carry = Lanes == 1 ? v[k] : __shfl_sync(~0u, v[k], Lanes - 1);
      if (base + k * Lanes < n) store(base + k * Lanes, v[k]);
    }
  }
  return carry;
}

struct Chunks {
  std::int64_t count, size;
};

template <class T>
using sum_t = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

/// One chunk of one sequence a group of Lanes threads: writes its total where `totals_only`, else its sums, which go on from
/// the totals' running sums.
template <class T, class Out, int Lanes>
__global__ void __launch_bounds__(kReduceThreads)
    scan_chunks(ScanGeometry g, Chunks chunks, const stored_t<T>* x, Out* y, sum_t<T>* totals, bool totals_only) {
  using Acc = sum_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  const std::int64_t piece = (std::int64_t{blockIdx.x} * kReduceThreads + threadIdx.x) / Lanes;
  const std::int64_t block = quotient(piece, g.inner), column = piece - block * g.inner;
  const std::int64_t o = quotient(block, chunks.count), chunk = block - o * chunks.count;
  if (o >= g.outer) return;
  const std::int64_t first = chunk * chunks.size, size = min(chunks.size, g.n - first);
  const std::int64_t start = (o * g.n + (g.reverse ? g.n - 1 - first : first)) * g.inner + column;
  const std::int64_t step = g.reverse ? -g.inner : g.inner;
  const std::int64_t at = (o * g.inner + column) * chunks.count + chunk;
  const auto load = [&](std::int64_t i) { return static_cast<Acc>(static_cast<compute_t<T>>(x[start + i * step])); };
  if (totals_only) {
    const Acc total = scan_run<Lanes>(size, Acc(0), lane, load, [](std::int64_t, Acc) {});
    if (lane == 0) totals[at] = total;
    return;
  }
  scan_run<Lanes>(size, chunk == 0 ? Acc(0) : totals[at - 1], lane, load, [&](std::int64_t i, Acc sum) {
    if constexpr (std::is_integral_v<T>) y[start + i * step] = sum;
    else y[start + i * step] = Out(static_cast<compute_t<T>>(sum));
  });
}

/// Running sums of the totals, in place: one sequence a warp.
template <class Acc>
__global__ void __launch_bounds__(kReduceThreads) scan_totals(std::int64_t sequences, std::int64_t chunks, Acc* totals) {
  const std::int64_t sequence = (std::int64_t{blockIdx.x} * kReduceThreads + threadIdx.x) / 32;
  if (sequence >= sequences) return;
  Acc* of_sequence = totals + sequence * chunks;
  scan_run<32>(
      chunks, Acc(0), static_cast<int>(threadIdx.x) % 32, [=](std::int64_t i) { return of_sequence[i]; },
      [=](std::int64_t i, Acc sum) { of_sequence[i] = sum; });
}

template <class T, class Out, int Lanes>
void launch(const ScanGeometry& g, Device device, const stored_t<T>* x, Out* y) {
  const std::int64_t sequences = g.outer * g.inner, wanted = std::int64_t{2048} * multiprocessor_count(device);
  const std::int64_t least = 8 * kLoads * Lanes;  // steps worth a chunk
  const std::int64_t size = std::max(ceil_div(g.n * sequences * Lanes, wanted), std::min(least, g.n));
  const Chunks chunks{ceil_div(g.n, size), size};
  const Scratch totals(chunks.count > 1 ? static_cast<std::size_t>(sequences * chunks.count) * sizeof(sum_t<T>) : 0, device);
  auto* data = totals.data<sum_t<T>>();
  const unsigned blocks = blocks_for(sequences * chunks.count * Lanes, kReduceThreads);
  if (chunks.count > 1) {
    scan_chunks<T, Out, Lanes><<<blocks, kReduceThreads, 0, stream(device)>>>(g, chunks, x, y, data, true);
    GLADE_CUDA_LAUNCHED();
    scan_totals<<<blocks_for(sequences * 32, kReduceThreads), kReduceThreads, 0, stream(device)>>>(sequences, chunks.count, data);
    GLADE_CUDA_LAUNCHED();
  }
  scan_chunks<T, Out, Lanes><<<blocks, kReduceThreads, 0, stream(device)>>>(g, chunks, x, y, data, false);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

void cumsum(const ScanGeometry& g, const Tensor& x, const Tensor& y) {
  DeviceGuard guard(x.device());
  visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Out = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
    if (g.inner == 1) launch<T, Out, 32>(g, x.device(), stored(x.data<T>()), y.data<Out>());
    else launch<T, Out, 1>(g, x.device(), stored(x.data<T>()), y.data<Out>());
  });
}

}  // namespace glade::cuda
