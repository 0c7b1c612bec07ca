#pragma once
// Elementwise loops on the CPU: f applied over any number of inputs, threaded, with inner loops the compiler vectorises.
#include <algorithm>
#include <tuple>
#include <utility>

#include <glade/core/loops.h>
#include <glade/core/parallel.h>

namespace glade::cpu {

namespace detail {

/// Of one loop, the output among them.
inline constexpr int kMaxOperands = 8;

/// `count` rows of n elements of every operand: the first row from at[i] on, its elements strides[i] elements apart, the next row
/// steps[i] bytes on.
struct Rows {
  std::int64_t count, n;
  const char* const* at;
  const std::int64_t *strides, *steps;
};
using VisitRows = void (*)(const void* context, const Rows& rows);

/// A plan and the memory of its operands, the output first, with the bytes of an element.
struct Loop {
  int operands, ndim;
  std::int64_t numel;
  const std::int64_t* shape;
  const std::int64_t (*strides)[kMaxDims];
  const char* data[kMaxOperands];
  std::int64_t sizes[kMaxOperands];
};

/// Calls visit(context, rows) over all of a loop, in parallel where that pays. Inputs that lie across the rows, as those of a
/// transposed matrix do, are brought into rows tile by tile.
void for_each_row(const Loop& loop, VisitRows visit, const void* context);

/// Elements that are brought together where memory has them apart.
inline constexpr std::int64_t kBlock = 512;
template <class T>
struct Block {
  T values[kBlock];
  Block() {}  // NOLINT: filled as far as it is read
};

/// The n elements from `first` on of a row of stride `stride`, side by side. A repeated element fills the block once, for
/// pieces that are no longer than the first.
template <class T>
[[gnu::noinline]] const T* gather(const T* row, std::int64_t stride, std::int64_t first, std::int64_t n, Block<T>& block) {
  if (stride == 1) return row + first;
  if (stride == -1) std::reverse_copy(row - first - n + 1, row - first + 1, block.values);
  else if (stride == 2)
    for (std::int64_t i = 0; i < n; ++i) block.values[i] = row[(first + i) * 2];  // which the compiler vectorises
  else if (stride != 0)
    for (std::int64_t i = 0; i < n; ++i) block.values[i] = row[(first + i) * stride];
  else if (first == 0) std::fill_n(block.values, n, *row);
  return block.values;
}

template <class T>
[[gnu::noinline]] void scatter(const Block<T>& block, std::int64_t stride, std::int64_t first, std::int64_t n, T* row) {
  for (std::int64_t i = 0; i < n; ++i) row[(first + i) * stride] = block.values[i];
}

/// An operand's rows, whose elements lie side by side.
template <class T>
struct Elements {
  const char* at;
  std::int64_t step;
  const T* row(std::int64_t r) const { return reinterpret_cast<const T*>(at + r * step); }
};
/// An operand's rows, each of which is one element again and again.
template <class T>
struct Repeated {
  const char* at;
  std::int64_t step;
  struct Row {
    T value;
    T operator[](std::int64_t) const { return value; }
  };
  Row row(std::int64_t r) const { return {*reinterpret_cast<const T*>(at + r * step)}; }
};

template <class F, class Out, class... In>
GLADE_INLINE void run_row(std::int64_t n, const F& f, Out* out, const In... in) {
  if constexpr (requires { f.of_many(n, out, in...); }) {
    f.of_many(n, out, in...);
  } else {
    // A cache line at a time: some processors take up to twice as long where its halves are written one by one.
#pragma GCC ivdep
#pragma GCC unroll 2
    for (std::int64_t i = 0; i < n; ++i) out[i] = Out(f(in[i]...));
  }
}

// The only loop that is made for each f and dtype (with two operands also for either of them repeated), so that building them
// stays quick. Not vectorised by omp simd: that makes an array of the 16-bit types' temporaries, which GCC cannot vectorise.
template <class Out, class F, class... In>
[[gnu::noinline]] void contiguous(std::int64_t rows, std::int64_t n, const F f, const char* out, std::int64_t step,
                                  const In... in) {
  for (std::int64_t r = 0; r < rows; ++r) run_row(n, f, reinterpret_cast<Out*>(const_cast<char*>(out + r * step)), in.row(r)...);
}

/// One row of operands with gaps, or of several of which some are repeated: in blocks.
template <class F, class Out, class... In, std::size_t... I>
void row_in_blocks(std::int64_t n, const std::int64_t* strides, const F& f, Out* out, std::index_sequence<I...>,
                   const In*... in) {
  const auto run = [&f](std::int64_t count, Out* to, const In*... from) {
    contiguous<Out>(1, count, f, reinterpret_cast<const char*>(to), 0, Elements<In>{reinterpret_cast<const char*>(from), 0}...);
  };
  if (strides[0] == 1 && n > 1 && ((strides[I + 1] == 0) && ...)) {  // one result for the whole row
    Out value{};
    run(1, &value, in...);
    run_row(n, [value] { return value; }, out);
    return;
  }
  Block<Out> result;
  std::tuple<Block<In>...> blocks;
  // The shorter a block, the less of it is filled with what is repeated.
  const std::int64_t step = n < 4 * kBlock && ((strides[I + 1] == 0) || ...) ? kBlock / 2 : kBlock;
  for (std::int64_t first = 0; first < n; first += step) {
    const std::int64_t count = std::min(step, n - first);
    run(count, strides[0] == 1 ? out + first : result.values, gather(in, strides[I + 1], first, count, std::get<I>(blocks))...);
    if (strides[0] != 1) scatter(result, strides[0], first, count, out);
  }
}

template <class Out, class... In, class F, std::size_t... I>
void run_rows(const Rows& rows, const F& f, std::index_sequence<I...> indices) {
  const auto run = [&](const auto... in) { contiguous<Out>(rows.count, rows.n, f, rows.at[0], rows.steps[0], in...); };
  if (rows.strides[0] == 1 && ((rows.strides[I + 1] == 1) && ...)) return run(Elements<In>{rows.at[I + 1], rows.steps[I + 1]}...);
  if constexpr (sizeof...(In) == 2 && requires(In... in) { f(in...); }) {
    using A = std::tuple_element_t<0, std::tuple<In...>>;
    using B = std::tuple_element_t<1, std::tuple<In...>>;
    const std::int64_t a = rows.strides[1], b = rows.strides[2];
    if (rows.strides[0] == 1 && a == 1 && b == 0)
      return run(Elements<A>{rows.at[1], rows.steps[1]}, Repeated<B>{rows.at[2], rows.steps[2]});
    if (rows.strides[0] == 1 && a == 0 && b == 1)
      return run(Repeated<A>{rows.at[1], rows.steps[1]}, Elements<B>{rows.at[2], rows.steps[2]});
  }
  for (std::int64_t r = 0; r < rows.count; ++r)
    row_in_blocks(rows.n, rows.strides, f, reinterpret_cast<Out*>(const_cast<char*>(rows.at[0] + r * rows.steps[0])), indices,
                  reinterpret_cast<const In*>(rows.at[I + 1] + r * rows.steps[I + 1])...);
}

}  // namespace detail

/// out = f(in...) over the plan, whose operand 0 is `out`; an f that takes many elements at once has f.of_many(n, out, in...),
/// which is called instead. Reads may overlap the write only element on element.
template <class F, class Out, class... In>
void elementwise(const LoopPlan<1 + sizeof...(In)>& plan, const F& f, Out* out, const In*... in) {
  constexpr int N = 1 + static_cast<int>(sizeof...(In));
  static_assert(N <= detail::kMaxOperands);
  detail::for_each_row(
      {N,
       plan.ndim,
       plan.numel,
       plan.shape,
       plan.strides,
       {reinterpret_cast<const char*>(out), reinterpret_cast<const char*>(in)...},
       {sizeof(Out), sizeof(In)...}},
      [](const void* context, const detail::Rows& rows) {
        detail::run_rows<Out, stored_t<In>...>(rows, *static_cast<const F*>(context), std::index_sequence_for<In...>{});
      },
      &f);
}

}  // namespace glade::cpu
