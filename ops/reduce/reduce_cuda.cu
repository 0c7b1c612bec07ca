// Reductions on the GPU. Rows (inner size 1) are read by groups of neighbouring threads, columns by threads side by side,
// 16 bytes a thread either way. Where there are too few outputs to fill the GPU, the reduced range is split between blocks,
// whose states a second kernel merges.
#include <glade/ops/reduce/fold.cuh>
#include <glade/ops/reduce/reduce_kernels.h>
#include <glade/ops/reduce/reducers.cuh>

namespace glade::cuda {

namespace {

/// The part of the reduced range that one piece of work takes.
struct Splits {
  std::int64_t count, size;
};

/// Blocks on a multiprocessor, by the registers that they need to have all of a batch's loads under way.
template <class R>
constexpr int kBlocks = sizeof(typename R::In) == 1 || std::is_same_v<typename R::Acc, double> ? 3 : 4;

/// Every group of `lanes` threads reduces one split of one row.
template <class R>
__global__ void __launch_bounds__(kReduceThreads, kBlocks<R>)
    reduce_rows(R reducer, const typename R::In* x, std::int64_t rows, std::int64_t n, int lanes, Splits splits,
                typename R::Out* y, typename R::State* partial) {
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t item = row_of_thread(lanes);
  typename R::State state = R::identity();
  if (item < rows * splits.count) {
    const std::int64_t row = quotient(item, splits.count), first = (item - row * splits.count) * splits.size;
    fold_run<R>(state, x + row * n + first, min(splits.size, n - first), first, lane, lanes);
  }
  state = merge_lanes<R>(state, lanes);
  if (lane != 0 || item >= rows * splits.count) return;
  if (splits.count == 1) y[item] = reducer.finish(state);
  else partial[item] = state;
}

/// Every group of `lanes` threads merges the `splits` states of one output.
template <class R>
__global__ void __launch_bounds__(kReduceThreads) merge_splits(R reducer, const typename R::State* partial, std::int64_t outputs,
                                                               std::int64_t splits, int lanes, typename R::Out* y) {
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t output = row_of_thread(lanes);
  typename R::State state = R::identity();
  if (output < outputs) {
#pragma unroll 4
    for (std::int64_t i = lane; i < splits; i += lanes) state = R::merge(state, partial[output * splits + i]);
  }
  state = merge_lanes<R>(state, lanes);
  if (lane == 0 && output < outputs) y[output] = reducer.finish(state);
}

/// How a block's threads are laid over the columns: `across` of them side by side, `down` on different rows of the same
/// columns, and what is left on other tiles.
struct ColumnTiling {
  int across, down;
  std::int64_t tiles;  // in a row
};

/// A thread reduces W neighbouring columns; `down` threads merge through shared memory.
template <class R, int W>
__global__ void __launch_bounds__(kReduceThreads, kBlocks<R>)
    reduce_columns(R reducer, const typename R::In* x, ReduceGeometry g, ColumnTiling tiling, Splits splits, typename R::Out* y,
                   typename R::State* partial) {
  using State = typename R::State;
  using Acc = typename R::Acc;
  using Loaded = detail::Vector<typename R::In, W>;
  constexpr int loads = W == 1 ? 2 * kLoads : kLoads;
  const int thread = static_cast<int>(threadIdx.x), across = thread % tiling.across, down = thread / tiling.across % tiling.down;
  const std::int64_t item = (std::int64_t{blockIdx.x} * kReduceThreads + thread) / (tiling.across * tiling.down);
  const std::int64_t block = quotient(item, tiling.tiles), o = quotient(block, splits.count), split = block - o * splits.count;
  const std::int64_t column = ((item - block * tiling.tiles) * tiling.across + across) * W;
  const bool inside = o < g.outer && column < g.inner;
  State state[W];
#pragma unroll
  for (State& s : state) s = R::identity();
  if (inside) {
    const std::int64_t end = min(g.n, (split + 1) * splits.size);
    const auto take = [&]<bool whole>(std::bool_constant<whole>, std::int64_t row) {
      Loaded loaded[loads];
      int count = 0;
#pragma unroll
      for (int u = 0; u < loads; ++u) {
        if (whole || row + u * tiling.down < end) {
          loaded[u] = *reinterpret_cast<const Loaded*>(x + (o * g.n + row + u * tiling.down) * g.inner + column);
          count = u + 1;
        } else {
#pragma unroll
          for (int w = 0; w < W; ++w) loaded[u].x[w] = typename R::In(R::padding());
        }
      }
#pragma unroll
      for (int w = 0; w < W; ++w) {
        Acc v[loads];
#pragma unroll
        for (int u = 0; u < loads; ++u) v[u] = static_cast<Acc>(loaded[u].x[w]);
        R::add(state[w], v, count, [=](int u) { return row + u * tiling.down; });
      }
    };
    std::int64_t row = split * splits.size + down;
#pragma unroll 1
    for (; row + (loads - 1) * tiling.down < end; row += loads * tiling.down) take(std::true_type{}, row);
    if (row < end) take(std::false_type{}, row);
  }
  __shared__ State shared[W][kReduceThreads];
  for (int half = tiling.down / 2; half > 0; half /= 2) {
#pragma unroll
    for (int w = 0; w < W; ++w) shared[w][thread] = state[w];
    __syncthreads();
    if (down < half)
#pragma unroll
      for (int w = 0; w < W; ++w) state[w] = R::merge(state[w], shared[w][thread + half * tiling.across]);
    __syncthreads();
  }
  if (down != 0 || !inside) return;
#pragma unroll
  for (int w = 0; w < W; ++w) {
    const std::int64_t output = o * g.inner + column + w;
    if (splits.count == 1) y[output] = reducer.finish(state[w]);
    else partial[output * splits.count + split] = state[w];
  }
}

/// Splits n so that `work` times the splits fill the GPU, in multiples of `step`, which is worth a block's while.
Splits split(std::int64_t n, std::int64_t work, std::int64_t wanted, std::int64_t step) {
  const std::int64_t count =
      std::clamp<std::int64_t>(wanted / std::max<std::int64_t>(work, 1), 1, std::max<std::int64_t>(n / step, 1));
  const std::int64_t size = std::max(ceil_div(ceil_div(n, count), step) * step, step);
  return {std::max<std::int64_t>(ceil_div(n, size), 1), size};
}

/// Runs first(partial), which writes y itself where there is one split, else the states to `partial`; then merges those.
template <class R, class First>
void with_splits(const R& reducer, std::int64_t outputs, std::int64_t splits, typename R::Out* y, Device device,
                 const First& first) {
  using State = typename R::State;
  const Scratch partial(splits > 1 ? static_cast<std::size_t>(outputs * splits) * sizeof(State) : 0, device);
  first(partial.data<State>());
  GLADE_CUDA_LAUNCHED();
  if (splits == 1) return;
  const int lanes = lanes_for(splits, splits > 128 ? kReduceThreads : 32);
  merge_splits<<<blocks_for(outputs * lanes, kReduceThreads), kReduceThreads, 0, stream(device)>>>(reducer, partial.data<State>(),
                                                                                                   outputs, splits, lanes, y);
  GLADE_CUDA_LAUNCHED();
}

template <class R, int W>
void launch_columns(const R& reducer, const ReduceGeometry& g, Device device, const typename R::In* x, typename R::Out* y,
                    std::int64_t wanted) {
  const std::int64_t vectors = g.inner / W;
  ColumnTiling tiling{};
  tiling.across = lanes_for(vectors, 32);
  tiling.down = lanes_for(ceil_div(g.n, kLoads), kReduceThreads / tiling.across);
  tiling.tiles = ceil_div(vectors, tiling.across);
  const std::int64_t threads = g.outer * tiling.tiles * tiling.across * tiling.down;
  const Splits splits = split(g.n, threads, wanted, std::int64_t{kLoads} * tiling.down);
  with_splits(reducer, g.outer * g.inner, splits.count, y, device, [&](typename R::State* partial) {
    reduce_columns<R, W><<<blocks_for(threads * splits.count, kReduceThreads), kReduceThreads, 0, stream(device)>>>(
        reducer, x, g, tiling, splits, y, partial);
  });
}

template <class R>
void launch(const R& reducer, const ReduceGeometry& g, const Tensor& input, const Tensor& result) {
  using In = typename R::In;
  const Device device = input.device();
  DeviceGuard guard(device);
  const In* x = static_cast<const In*>(input.raw_data());
  auto* y = static_cast<typename R::Out*>(result.raw_data());
  // Half of the threads that fit have enough bytes under way: more would only add states to merge.
  const std::int64_t wanted = std::int64_t{1024} * multiprocessor_count(device);
  if (g.inner > 1) {
    constexpr int W = std::min(kWidth<In>, 8);
    const bool vectors = g.inner % W == 0 && reinterpret_cast<std::uintptr_t>(x) % (W * sizeof(In)) == 0;
    return vectors ? launch_columns<R, W>(reducer, g, device, x, y, wanted)
                   : launch_columns<R, 1>(reducer, g, device, x, y, wanted);
  }
  int lanes = lanes_of_row(ceil_div(g.n, kWidth<In>), kReduceThreads);
  while (lanes > 32 && g.outer * lanes > wanted) lanes /= 2;
  const Splits splits = split(g.n, g.outer * lanes, wanted, std::int64_t{kLoads} * kWidth<In> * lanes);
  with_splits(reducer, g.outer, splits.count, y, device, [&](typename R::State* partial) {
    reduce_rows<<<blocks_for(g.outer * splits.count * lanes, kReduceThreads), kReduceThreads, 0, stream(device)>>>(
        reducer, x, g.outer, g.n, lanes, splits, y, partial);
  });
}

}  // namespace

void reduce(ReduceOp op, const ReduceGeometry& g, const Tensor& x, const Tensor& y) {
  switch (op) {
    case ReduceOp::sum:
      return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
        launch(Sum<T, std::conditional_t<std::is_integral_v<T>, std::int64_t, T>>{}, g, x, y);
      });
    case ReduceOp::sum_of_squares:
      return visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { launch(SumOfSquares<T>{{g.divisor}, g.root}, g, x, y); });
    case ReduceOp::prod:
      return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
        launch(Product<T, std::conditional_t<std::is_integral_v<T>, std::int64_t, T>>{}, g, x, y);
      });
    case ReduceOp::mean: return visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { launch(Sum<T>{g.divisor}, g, x, y); });
    case ReduceOp::var:
      return visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { launch(Variance<T>{g.divisor, g.root}, g, x, y); });
    case ReduceOp::max: return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) { launch(Extremum<T, true>{}, g, x, y); });
    case ReduceOp::min: return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) { launch(Extremum<T, false>{}, g, x, y); });
    case ReduceOp::argmax: return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) { launch(ArgExtremum<T, true>{}, g, x, y); });
    case ReduceOp::argmin: return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) { launch(ArgExtremum<T, false>{}, g, x, y); });
    case ReduceOp::logsumexp: return visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { launch(LogSumExp<T>{}, g, x, y); });
  }
}

}  // namespace glade::cuda
