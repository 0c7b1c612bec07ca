// Reductions on the CPU. The work is cut into pieces of fixed size (blocks folded in vector registers, chunks given to
// threads), and pieces are merged in order: the result does not depend on the number of threads.
#include <cmath>
#include <functional>
#include <limits>

#include <glade/core/parallel.h>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade::cpu {

namespace {

constexpr std::int64_t kTile = 256;           // columns taken together
constexpr std::int64_t kBlock = 4096;         // values folded before their result is merged into the wider state
constexpr std::int64_t kBlocksPerChunk = 16;  // blocks of a task

/// Up to kTile columns of a row-major matrix, `rows` rows of `width` values that lie `stride` apart. `first_row` is the
/// position of the first one in the reduced dimension.
template <class T>
struct Block {
  const T* x;
  std::int64_t rows, stride, width, first_row;
};

/// acc[j] = f(acc[j], x, r, j) over the rows r of each column j, starting from `identity`.
template <class Acc, class T, class F, class Merge>
void fold(const Block<T>& block, Acc identity, Acc* __restrict acc, F f, Merge merge) {
  const T* x = block.x;
  if (block.width > 1 || block.stride > 1) {
    std::fill_n(acc, block.width, identity);
    for (std::int64_t r = 0; r < block.rows; ++r, x += block.stride)
#pragma omp simd
      for (std::int64_t j = 0; j < block.width; ++j) acc[j] = f(acc[j], x[j], r, j);
    return;
  }
  // One contiguous run: as many accumulators as keep the vector units busy.
  constexpr int lanes = 128 / sizeof(Acc);
  Acc total = identity;
  std::int64_t r = 0;
  if (block.rows >= lanes) {
    Acc lane[lanes];
    std::fill_n(lane, lanes, identity);
    for (; r + lanes <= block.rows; r += lanes)
#pragma omp simd
      for (int l = 0; l < lanes; ++l) lane[l] = f(lane[l], x[r + l], r + l, 0);
    for (int half = lanes / 2; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lane[l] = merge(lane[l], lane[l + half]);
    total = lane[0];
  }
  for (; r < block.rows; ++r) total = f(total, x[r], r, 0);
  acc[0] = total;
}

// A reducer says how a block is folded into the columns' states, how two states merge (the first is of earlier rows),
// and what the result of a state is.

/// Sums, and means with a divisor: float32 inside a block, float64 between blocks.
template <class T, class Result = T>
struct Sum {
  using In = T;
  using Out = Result;
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, compute_t<T>>;
  using State = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  double divisor = 1;

  static State identity() { return 0; }
  static void add(const Block<T>& block, State* state) {
    Acc sum[kTile];
    fold(block, Acc(0), sum, [](Acc a, T x, std::int64_t, std::int64_t) { return a + static_cast<Acc>(x); }, std::plus<Acc>());
    for (std::int64_t j = 0; j < block.width; ++j) state[j] += sum[j];
  }
  static State merge(State a, State b) { return a + b; }
  Out finish(State state) const {
    if constexpr (std::is_integral_v<T>) return state;
    else return Out(static_cast<compute_t<T>>(state / divisor));
  }
};

template <class Reducer>
void run(const ReduceGeometry& g, const Reducer& reducer, const typename Reducer::In* x, typename Reducer::Out* y) {
  using State = typename Reducer::State;
  const std::int64_t width = std::min(g.inner, kTile), block_rows = std::max<std::int64_t>(1, kBlock / width);
  const std::int64_t chunk_rows = block_rows * kBlocksPerChunk;
  const std::int64_t tiles = (g.inner + width - 1) / width, chunks = std::max<std::int64_t>(1, (g.n + chunk_rows - 1) / chunk_rows);
  const std::int64_t per_outer = tiles * chunks;
  std::vector<State> partial(static_cast<std::size_t>(chunks > 1 ? chunks * g.outer * g.inner : 0));
  const std::int64_t task_size = width * std::clamp<std::int64_t>(g.n, 1, chunk_rows);
  parallel_for(g.outer * per_outer, std::max<std::int64_t>(1, kGrain / task_size), [&](std::int64_t begin, std::int64_t end) {
    State state[kTile];
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t o = per_outer == 1 ? task : task / per_outer, rest = task - o * per_outer;
      const std::int64_t tile = chunks == 1 ? rest : rest / chunks, chunk = rest - tile * chunks;
      const std::int64_t column = tile * width, columns = std::min(width, g.inner - column);
      std::fill_n(state, columns, Reducer::identity());
      const std::int64_t last = std::min(g.n, (chunk + 1) * chunk_rows);
      for (std::int64_t row = chunk * chunk_rows; row < last; row += block_rows)
        reducer.add({x + (o * g.n + row) * g.inner + column, std::min(block_rows, last - row), g.inner, columns, row}, state);
      if (chunks == 1) {
        for (std::int64_t j = 0; j < columns; ++j) y[o * g.inner + column + j] = reducer.finish(state[j]);
      } else {
        std::copy_n(state, columns, partial.data() + (chunk * g.outer + o) * g.inner + column);
      }
    }
  });
  if (chunks == 1) return;
  const std::int64_t outputs = g.outer * g.inner;
  parallel_for(outputs, std::max<std::int64_t>(1, kGrain / chunks), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      State state = partial[static_cast<std::size_t>(i)];
      for (std::int64_t c = 1; c < chunks; ++c) state = Reducer::merge(state, partial[static_cast<std::size_t>(c * outputs + i)]);
      y[i] = reducer.finish(state);
    }
  });
}

}  // namespace

void reduce(ReduceOp op, const ReduceGeometry& g, const Tensor& x, const Tensor& y) {
  switch (op) {
    case ReduceOp::sum:
      return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
        using Result = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
        run(g, Sum<T, Result>{}, x.data<T>(), y.data<Result>());
      });
    case ReduceOp::mean:
      return visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { run(g, Sum<T>{g.divisor}, x.data<T>(), y.data<T>()); });
    default: return;
  }
}

}  // namespace glade::cpu
