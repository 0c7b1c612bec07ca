// Reductions on the CPU. The work is cut into pieces of fixed size (blocks folded in vector registers, chunks given to
// threads), and pieces are merged in order: the result does not depend on the number of threads.
#include <cmath>
#include <functional>
#include <limits>

#include <glade/core/math.h>
#include <glade/core/parallel.h>
#include <glade/ops/reduce/cpu_fold.h>
#include <glade/ops/reduce/range_flags.h>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade::cpu {

namespace {

constexpr std::int64_t kTile = 256;           // columns taken together
constexpr std::int64_t kBlocksPerChunk = 16;  // blocks of a task

/// Up to kTile columns of a row-major matrix, `rows` rows of values that lie `stride` apart. `first_row` is the position of the
/// first one in the reduced dimension. A `single` column has no gaps.
template <class T, bool single>
struct Block {
  static constexpr std::int64_t kWidth = single ? 1 : kTile;
  const stored_t<T>* x;
  std::int64_t rows, stride, columns, first_row;

  std::int64_t width() const { return single ? 1 : columns; }
};

/// acc[j] = f(acc[j], x, r, j) over the rows r of each column j, starting from `identity`.
template <class Acc, class Wide, class T, bool single, class F, class Merge>
void fold(const Block<T, single>& block, Acc identity, Wide* __restrict acc, const F& f, const Merge& merge) {
  const stored_t<T>* x = block.x;
  if constexpr (single) {
    acc[0] = fold_run<Acc, Wide>(block.rows, identity, [&](auto a, std::int64_t r) { return f(a, x[r], r, 0); }, merge);
  } else {
    std::fill_n(acc, block.columns, identity);
    constexpr int kUnroll = 4;  // rows for one load and store of acc
    std::int64_t r = 0;
    for (; r + kUnroll <= block.rows; r += kUnroll, x += kUnroll * block.stride)
#pragma omp simd
      for (std::int64_t j = 0; j < block.columns; ++j) {
        Wide a = acc[j];
#pragma GCC unroll 4
        for (int u = 0; u < kUnroll; ++u) a = f(a, x[u * block.stride + j], r + u, j);
        acc[j] = a;
      }
    for (; r < block.rows; ++r, x += block.stride)
#pragma omp simd
      for (std::int64_t j = 0; j < block.columns; ++j) acc[j] = f(acc[j], x[j], r, j);
  }
}

/// The square root of x, if wanted.
template <class T>
T rooted(T x, bool root) {
  return root ? T(math::sqrt(static_cast<compute_t<T>>(x))) : x;
}

// A reducer says how a block is folded into the columns' states, how two states merge (the first is of earlier rows),
// and what the result of a state is.

/// Sums, or sums of squares, and means with a divisor: float32 inside a block, float64 between blocks.
template <class T, class Result = T, bool squares = false>
struct Sum {
  using In = T;
  using Out = Result;
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, compute_t<T>>;
  using State = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  double divisor = 1;
  bool root = false;

  static State identity() { return 0; }
  template <bool single>
  static void add(const Block<T, single>& block, State* state) {
    Acc sum[block.kWidth];
    const auto add_one = [](Acc a, T x, std::int64_t, std::int64_t) {
      const auto value = static_cast<Acc>(x);
      return a + (squares ? value * value : value);
    };
    fold(block, Acc(0), sum, add_one, std::plus<Acc>());
    for (std::int64_t j = 0; j < block.width(); ++j) state[j] += sum[j];
  }
  static State merge(State a, State b) { return a + b; }
  Out finish(State state) const {
    if constexpr (std::is_integral_v<T>) return state;
    else return rooted(Out(static_cast<compute_t<T>>(state / divisor)), root);
  }
};

/// Products. Integers wrap around.
template <class T, class Result = T>
struct Product {
  using In = T;
  using Out = Result;
  using Acc = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;
  using State = Acc;

  static State identity() { return 1; }
  template <bool single>
  static void add(const Block<T, single>& block, State* state) {
    if constexpr (std::is_same_v<compute_t<T>, float>) {  // in float32, where that loses no more than digits
      std::conditional_t<single, State, float> product[Block<T, single>::kWidth];
      const RangeFlags flags;
      fold(
          block, 1.0F, product, [](auto a, T x, std::int64_t, std::int64_t) { return a * static_cast<float>(x); },
          std::multiplies<>());
      if (!flags.raised(product)) {
        for (std::int64_t j = 0; j < block.width(); ++j) state[j] *= product[j];
        return;
      }
    }
    Acc product[block.kWidth];
    const auto multiply = [](Acc a, T x, std::int64_t, std::int64_t) {
      if constexpr (std::is_integral_v<T>) return a * static_cast<Acc>(x);
      else return a * static_cast<Acc>(static_cast<compute_t<T>>(x));
    };
    fold(block, Acc(1), product, multiply, std::multiplies<Acc>());
    for (std::int64_t j = 0; j < block.width(); ++j) state[j] *= product[j];
  }
  static State merge(State a, State b) { return a * b; }
  static Out finish(State state) {
    if constexpr (std::is_integral_v<T>) return static_cast<Out>(state);
    else return Out(static_cast<compute_t<T>>(state));
  }
};

/// Means and sums of squared deviations, joined by Chan's formula.
template <class T>
struct Variance {
  using In = T;
  using Out = T;
  using Acc = compute_t<T>;
  struct State {
    double n, mean, m2;
  };
  double divisor;
  bool root;

  static State identity() { return {0, 0, 0}; }
  template <bool single>
  static void add(const Block<T, single>& block, State* state) {
    Acc mean[block.kWidth], m2[block.kWidth];
    fold(block, Acc(0), mean, [](Acc a, T x, std::int64_t, std::int64_t) { return a + Acc(x); }, std::plus<Acc>());
    for (std::int64_t j = 0; j < block.width(); ++j) mean[j] /= static_cast<Acc>(block.rows);
    const auto square = [&mean](Acc a, T x, std::int64_t, std::int64_t j) { return a + (Acc(x) - mean[j]) * (Acc(x) - mean[j]); };
    fold(block, Acc(0), m2, square, std::plus<Acc>());
    for (std::int64_t j = 0; j < block.width(); ++j)
      state[j] = merge(state[j], {static_cast<double>(block.rows), mean[j], m2[j]});
  }
  static State merge(State a, State b) {
    const double n = a.n + b.n, delta = b.mean - a.mean;
    return {n, a.mean + delta * b.n / n, a.m2 + b.m2 + delta * delta * a.n * b.n / n};
  }
  Out finish(State state) const {
    const double result = divisor > 0 ? state.m2 / divisor : std::numeric_limits<double>::quiet_NaN();
    return rooted(Out(static_cast<Acc>(result)), root);
  }
};

template <class T>
constexpr T kLowest = std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
template <class T>
constexpr T kHighest = std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();

template <class T, bool largest>
struct Extremum {
  using In = T;
  using Out = T;
  using Acc = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, compute_t<T>>;
  using State = Acc;

  static State identity() { return largest ? kLowest<Acc> : kHighest<Acc>; }
  template <bool single>
  static void add(const Block<T, single>& block, State* state) {
    Acc best[block.kWidth];
    fold(block, identity(), best, [](Acc a, T x, std::int64_t, std::int64_t) { return merge(a, Acc(x)); }, merge);
    for (std::int64_t j = 0; j < block.width(); ++j) state[j] = merge(state[j], best[j]);
  }
  static State merge(State a, State b) { return largest ? nan_max(a, b) : nan_min(a, b); }
  static Out finish(State state) { return Out(state); }
};

/// The first position of the largest or the smallest value.
template <class T, bool largest>
struct ArgExtremum {
  using In = T;
  using Out = std::int64_t;
  using Acc = compute_t<T>;
  struct State {
    Acc value;
    std::int64_t index;
  };

  static Acc worst() { return largest ? kLowest<Acc> : kHighest<Acc>; }
  static Acc better(Acc a, Acc b) { return largest ? nan_max(a, b) : nan_min(a, b); }
  static State identity() { return {worst(), -1}; }
  static bool beats(Acc later, const State& state) {
    return state.index < 0 || (largest ? later > state.value : later < state.value) ||
           (later != later && state.value == state.value);
  }
  template <bool single>
  static void add(const Block<T, single>& block, State* state) {
    Acc best[block.kWidth];
    std::int32_t row[block.kWidth];
    fold(block, worst(), best, [](Acc a, T x, std::int64_t, std::int64_t) { return better(a, Acc(x)); }, better);
    bool any = false;
    for (std::int64_t j = 0; j < block.width(); ++j) any |= beats(best[j], state[j]);
    if (!any) return;
    const auto find = [&best](std::int32_t first, T x, std::int64_t r, std::int64_t j) {
      return (Acc(x) == best[j]) | (x != x) ? std::min(first, static_cast<std::int32_t>(r)) : first;
    };
    fold(block, std::numeric_limits<std::int32_t>::max(), row, find,
         [](std::int32_t a, std::int32_t b) { return std::min(a, b); });
    for (std::int64_t j = 0; j < block.width(); ++j) state[j] = merge(state[j], {best[j], block.first_row + row[j]});
  }
  static State merge(State a, State b) { return beats(b.value, a) ? b : a; }
  static Out finish(State state) { return state.index; }
};

/// The largest value and the sum of exp(x - shift), with that value as the shift where it is finite.
template <class T>
struct LogSumExp {
  using In = T;
  using Out = T;
  using Acc = compute_t<T>;
  struct State {
    Acc largest;
    double sum;
  };

  static State identity() { return {kLowest<Acc>, 0}; }
  static Acc shift(Acc largest) { return std::isfinite(largest) ? largest : Acc(0); }
  template <bool single>
  static void add(const Block<T, single>& block, State* state) {
    Acc largest[block.kWidth], shifts[block.kWidth], sum[block.kWidth];
    fold(block, kLowest<Acc>, largest, [](Acc a, T x, std::int64_t, std::int64_t) { return nan_max(a, Acc(x)); }, nan_max<Acc>);
    for (std::int64_t j = 0; j < block.width(); ++j) shifts[j] = shift(largest[j]);
    const auto exponential = [&shifts](Acc a, T x, std::int64_t, std::int64_t j) { return a + math::exp(Acc(x) - shifts[j]); };
    fold(block, Acc(0), sum, exponential, std::plus<Acc>());
    for (std::int64_t j = 0; j < block.width(); ++j) state[j] = merge(state[j], {largest[j], sum[j]});
  }
  static State merge(State a, State b) {
    const Acc largest = nan_max(a.largest, b.largest);
    const auto rescaled = [&](const State& s) {  // 0 has no exponent to overflow with
      return s.sum == 0 ? 0 : s.sum * std::exp(static_cast<double>(shift(s.largest)) - shift(largest));
    };
    return {largest, rescaled(a) + rescaled(b)};
  }
  static Out finish(State state) { return Out(static_cast<Acc>(shift(state.largest) + std::log(state.sum))); }
};

template <class Reducer>
void run(const ReduceGeometry& g, const Reducer& reducer, const typename Reducer::In* elements, typename Reducer::Out* y) {
  const auto* const x = stored(elements);
  using State = typename Reducer::State;
  const std::int64_t width = std::min(g.inner, kTile), block_rows = std::max<std::int64_t>(32, kFoldBlock / width);
  const std::int64_t chunk_rows = block_rows * kBlocksPerChunk;
  const std::int64_t tiles = (g.inner + width - 1) / width,
                     chunks = std::max<std::int64_t>(1, (g.n + chunk_rows - 1) / chunk_rows);
  const std::int64_t per_outer = tiles * chunks;
  std::vector<State> partial(static_cast<std::size_t>(chunks > 1 ? chunks * g.outer * g.inner : 0));
  const std::int64_t task_size = width * std::clamp<std::int64_t>(g.n, 1, chunk_rows);
  const auto run_tasks = [&]<bool single>(std::bool_constant<single>, std::int64_t begin, std::int64_t end) {
    State state[single ? 1 : kTile];
    for (std::int64_t task = begin; task < end; ++task) {
      std::int64_t o = task, tile = 0, chunk = 0;
      if (per_outer > 1) {  // divisions take as long as a short row
        o = task / per_outer;
        tile = (task - o * per_outer) / chunks;
        chunk = task - o * per_outer - tile * chunks;
      }
      const std::int64_t column = tile * width, columns = single ? 1 : std::min(width, g.inner - column);
      std::fill_n(state, columns, Reducer::identity());
      const std::int64_t last = std::min(g.n, (chunk + 1) * chunk_rows);
      for (std::int64_t row = chunk * chunk_rows; row < last; row += block_rows)
        reducer.add(Block<typename Reducer::In, single>{x + (o * g.n + row) * g.inner + column, std::min(block_rows, last - row),
                                                        g.inner, columns, row},
                    state);
      if (chunks == 1) {
        for (std::int64_t j = 0; j < columns; ++j) y[o * g.inner + column + j] = reducer.finish(state[j]);
      } else {
        std::copy_n(state, columns, partial.data() + (chunk * g.outer + o) * g.inner + column);
      }
    }
  };
  parallel_for(g.outer * per_outer, std::max<std::int64_t>(1, kGrain / task_size), [&](std::int64_t begin, std::int64_t end) {
    if (g.inner == 1) run_tasks(std::true_type{}, begin, end);
    else run_tasks(std::false_type{}, begin, end);
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
    case ReduceOp::sum_of_squares:
      return visit_floating(x.dtype(),
                            [&]<class T>(TypeTag<T>) { run(g, Sum<T, T, true>{g.divisor, g.root}, x.data<T>(), y.data<T>()); });
    case ReduceOp::prod:
      return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
        using Result = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
        run(g, Product<T, Result>{}, x.data<T>(), y.data<Result>());
      });
    case ReduceOp::mean:
      return visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { run(g, Sum<T>{g.divisor}, x.data<T>(), y.data<T>()); });
    case ReduceOp::var:
      return visit_floating(x.dtype(),
                            [&]<class T>(TypeTag<T>) { run(g, Variance<T>{g.divisor, g.root}, x.data<T>(), y.data<T>()); });
    case ReduceOp::max:
      return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) { run(g, Extremum<T, true>{}, x.data<T>(), y.data<T>()); });
    case ReduceOp::min:
      return visit_all(x.dtype(), [&]<class T>(TypeTag<T>) { run(g, Extremum<T, false>{}, x.data<T>(), y.data<T>()); });
    case ReduceOp::argmax:
      return visit_all(x.dtype(),
                       [&]<class T>(TypeTag<T>) { run(g, ArgExtremum<T, true>{}, x.data<T>(), y.data<std::int64_t>()); });
    case ReduceOp::argmin:
      return visit_all(x.dtype(),
                       [&]<class T>(TypeTag<T>) { run(g, ArgExtremum<T, false>{}, x.data<T>(), y.data<std::int64_t>()); });
    case ReduceOp::logsumexp:
      return visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) { run(g, LogSumExp<T>{}, x.data<T>(), y.data<T>()); });
  }
}

}  // namespace glade::cpu
