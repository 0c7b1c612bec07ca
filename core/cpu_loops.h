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

/// An operand of which every element is the same.
template <class T>
struct Repeated {
  T value;
  T operator[](std::int64_t) const { return value; }
};

// The only loop that is made for each f and dtype (with two operands also for either of them repeated), so that building them
// stays quick. Not vectorised by omp simd: that makes an array of the 16-bit types' temporaries, which GCC cannot vectorise.
template <class F, class Out, class... In>
[[gnu::noinline]] void contiguous(std::int64_t n, const F f, Out* out, const In... in) {
  if constexpr (requires { f.of_many(n, out, in...); }) {
    f.of_many(n, out, in...);
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = Out(f(in[i]...));
  }
}

/// Whether a loop over these two operands, of which one is repeated, was run.
template <class F, class Out, class A, class B>
bool with_repeated(std::int64_t n, const std::int64_t* strides, const F& f, Out* out, const A* a, const B* b) {
  if constexpr (requires { f(*a, *b); }) {
    if (strides[0] != 1 || strides[1] + strides[2] != 1 || strides[1] * strides[2] != 0) return false;
    if (strides[2] == 0) contiguous(n, f, out, a, Repeated<B>{*b});
    else contiguous(n, f, out, Repeated<A>{*a}, b);
    return true;
  }
  return false;
}

template <class F, class Out, class... In, std::size_t... I>
void inner(std::int64_t n, const std::int64_t* strides, const F& f, Out* out, std::index_sequence<I...>, const In*... in) {
  if (strides[0] == 1 && ((strides[I + 1] == 1) && ...)) return contiguous(n, f, out, in...);
  if constexpr (sizeof...(In) == 2)
    if (with_repeated(n, strides, f, out, in...)) return;
  if (strides[0] == 1 && n > 1 && ((strides[I + 1] == 0) && ...)) {  // one result for the whole row
    Out value;
    contiguous(1, f, &value, in...);
    std::fill_n(out, n, value);
    return;
  }
  Block<Out> result;
  std::tuple<Block<In>...> blocks;
  // The shorter a block, the less of it is filled with what is repeated.
  const std::int64_t step = n < 4 * kBlock && ((strides[I + 1] == 0) || ...) ? kBlock / 2 : kBlock;
  for (std::int64_t first = 0; first < n; first += step) {
    const std::int64_t count = std::min(step, n - first);
    contiguous(count, f, strides[0] == 1 ? out + first : result.values,
               gather(in, strides[I + 1], first, count, std::get<I>(blocks))...);
    if (strides[0] != 1) scatter(result, strides[0], first, count, out);
  }
}

}  // namespace detail

/// out = f(in...) over the plan, whose operand 0 is `out`; an f that takes many elements at once has f.of_many(n, out, in...),
/// which is called instead. Reads may overlap the write only element on element.
template <class F, class Out, class... In>
void elementwise(const LoopPlan<1 + sizeof...(In)>& plan, const F& f, Out* out, const In*... in) {
  constexpr int N = 1 + static_cast<int>(sizeof...(In));
  static_assert(N <= detail::kMaxOperands);
  const auto visit = [&f]<std::size_t... I>(const detail::Rows& rows, std::index_sequence<I...> indices) {
    for (std::int64_t r = 0; r < rows.count; ++r)
      detail::inner(rows.n, rows.strides, f, reinterpret_cast<Out*>(const_cast<char*>(rows.at[0] + r * rows.steps[0])), indices,
                    reinterpret_cast<const stored_t<In>*>(rows.at[I + 1] + r * rows.steps[I + 1])...);
  };
  detail::for_each_row(
      {N,
       plan.ndim,
       plan.numel,
       plan.shape,
       plan.strides,
       {reinterpret_cast<const char*>(out), reinterpret_cast<const char*>(in)...},
       {sizeof(Out), sizeof(In)...}},
      [](const void* context, const detail::Rows& rows) {
        (*static_cast<decltype(&visit)>(context))(rows, std::index_sequence_for<In...>{});
      },
      &visit);
}

}  // namespace glade::cpu
