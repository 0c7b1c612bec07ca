#pragma once
// What is reduced, on the GPU. A reducer has
//   In, Acc, State, Out   what is read, the type to compute in, what a thread carries, what is written;
//   padding()             the value of Acc that stands where there is none;
//   add(state, v, count, at)
//                         takes in the batch v, of which the first `count` (at least one) are there and the others hold
//                         padding(); at(i) is the position of v[i] in the reduced dimension and grows with i. Batches
//                         sit in registers: what is done once a batch costs little, and their sums are short;
//   merge(a, b)           of two states, in any order;
//   finish(state)         the result.
#include <cstdint>
#include <limits>
#include <type_traits>

#include <glade/core/cuda/instructions.cuh>
#include <glade/core/dtype.h>

namespace glade::cuda {

/// Small integers are computed with as int.
template <class T>
using batch_t = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, int, compute_t<T>>;

template <class T>
__device__ constexpr T lowest() {
  return std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}
template <class T>
__device__ constexpr T highest() {
  return std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}

/// What no element of T is worse than, in the search for the largest or the smallest. It fits into a T.
template <class T, bool largest>
__device__ constexpr batch_t<T> worst() {
  if constexpr (std::is_same_v<T, bool>) return largest ? 0 : 1;
  else return largest ? lowest<batch_t<T>>() : highest<batch_t<T>>();
}

/// The larger (smaller) of both; NaN wins.
template <class T>
__device__ T nan_max(T a, T b) {
  if constexpr (std::is_same_v<T, float>) return at_least(a, b);
  else return b > a || b != b ? b : a;
}
template <class T>
__device__ T nan_min(T a, T b) {
  if constexpr (std::is_same_v<T, float>) return at_most(a, b);
  else return b < a || b != b ? b : a;
}

/// f over all of v, whose number is a power of two, as a balanced tree. Recursive, for v to stay in registers.
template <int N, class T, class F>
__device__ T fold_tree(const T (&v)[N], F f) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    T half[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) half[i] = f(v[i], v[i + N / 2]);
    return fold_tree(half, f);
  }
}

__device__ inline float quick_exp(float x) { return __expf(x); }
__device__ inline double quick_exp(double x) { return exp(x); }

/// The square root of x, if wanted.
template <class T>
__device__ T rooted(T x, bool root) {
  return root ? T(sqrt(static_cast<compute_t<T>>(x))) : x;
}

/// Sums, and means with a divisor.
template <class T, class Result = T>
struct Sum {
  using In = stored_t<T>;
  using Out = Result;
  using Acc = std::conditional_t<std::is_same_v<T, std::int32_t>, std::int64_t, batch_t<T>>;
  using State = std::conditional_t<std::is_integral_v<T>, std::int64_t, Acc>;
  double divisor = 1;

  __device__ static State identity() { return 0; }
  __device__ static Acc padding() { return 0; }
  template <int N, class At>
  __device__ static void add(State& state, Acc (&v)[N], int, const At&) {
    state += fold_tree(v, [](Acc a, Acc b) { return a + b; });
  }
  __device__ static State merge(State a, State b) { return a + b; }
  __device__ Out finish(State state) const {
    if constexpr (std::is_integral_v<T>) return state;
    else return Out(state / static_cast<Acc>(divisor));
  }
};

/// Sums of squares, with a divisor.
template <class T>
struct SumOfSquares : Sum<T> {
  bool root = false;

  template <int N, class At>
  __device__ static void add(typename Sum<T>::State& state, typename Sum<T>::Acc (&v)[N], int count, const At& at) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= v[i];
    Sum<T>::add(state, v, count, at);
  }
  __device__ T finish(typename Sum<T>::State state) const { return rooted(Sum<T>::finish(state), root); }
};

/// Products.
template <class T, class Result = T>
struct Product {
  using In = stored_t<T>;
  using Out = Result;
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, compute_t<T>>;
  using State = Acc;

  __device__ static State identity() { return 1; }
  __device__ static Acc padding() { return 1; }
  template <int N, class At>
  __device__ static void add(State& state, Acc (&v)[N], int, const At&) {
    state *= fold_tree(v, [](Acc a, Acc b) { return a * b; });
  }
  __device__ static State merge(State a, State b) { return a * b; }
  __device__ Out finish(State state) const { return Out(state); }
};

/// Means and sums of squared deviations, joined by Chan's formula.
template <class T>
struct Variance {
  using In = stored_t<T>;
  using Out = T;
  using Acc = compute_t<T>;
  struct State {
    Acc n, mean, m2;
  };
  double divisor = 1;
  bool root = false;

  __device__ static State identity() { return {0, 0, 0}; }
  __device__ static Acc padding() { return 0; }
  template <int N, class At>
  __device__ static void add(State& state, Acc (&v)[N], int count, const At&) {
    Acc total = 0, m2 = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) total += v[i];
    const Acc n = static_cast<Acc>(count), mean = total / n;
#pragma unroll
    for (int i = 0; i < N; ++i) m2 += i < count ? (v[i] - mean) * (v[i] - mean) : Acc(0);
    state = merge(state, {n, mean, m2});
  }
  __device__ static State merge(const State& a, const State& b) {
    const Acc n = a.n + b.n, share = n > 0 ? b.n / n : Acc(0), delta = b.mean - a.mean;
    return {n, a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.n * share};
  }
  __device__ Out finish(const State& state) const {
    return rooted(Out(divisor > 0 ? state.m2 / static_cast<Acc>(divisor) : std::numeric_limits<Acc>::quiet_NaN()), root);
  }
};

template <class T, bool largest>
struct Extremum {
  using In = stored_t<T>;
  using Out = T;
  using Acc = batch_t<T>;
  using State = Acc;

  __device__ static State identity() { return padding(); }
  __device__ static Acc padding() { return worst<T, largest>(); }
  template <int N, class At>
  __device__ static void add(State& state, Acc (&v)[N], int, const At&) {
    state = merge(state, fold_tree(v, merge));
  }
  __device__ static State merge(State a, State b) { return largest ? nan_max(a, b) : nan_min(a, b); }
  __device__ Out finish(State state) const { return Out(state); }
};

/// The first position of the largest or the smallest value.
template <class T, bool largest>
struct ArgExtremum {
  using In = stored_t<T>;
  using Out = std::int64_t;
  using Acc = batch_t<T>;
  struct State {
    Acc value;
    std::int64_t index;
  };

  __device__ static State identity() { return {padding(), std::numeric_limits<std::int64_t>::max()}; }
  __device__ static Acc padding() { return worst<T, largest>(); }
  __device__ static bool beats(Acc a, Acc b) { return !(largest ? a <= b : a >= b) && b == b; }
  template <int N, class At>
  __device__ static void add(State& state, Acc (&v)[N], int, const At& at) {
    Acc best = v[0];
    int where = 0;
#pragma unroll
    for (int i = 1; i < N; ++i)
      if (beats(v[i], best)) {
        best = v[i];
        where = i;
      }
    if (state.index == identity().index || beats(best, state.value)) state = {best, at(where)};  // of two positions the first
  }
  __device__ static State merge(const State& a, const State& b) {
    return beats(b.value, a.value) || (b.index < a.index && !beats(a.value, b.value)) ? b : a;
  }
  __device__ Out finish(const State& state) const { return state.index; }
};

/// The largest value and the sum of exp(x - shift), with that value as the shift where it is finite.
template <class T>
struct LogSumExp {
  using In = stored_t<T>;
  using Out = T;
  using Acc = compute_t<T>;
  struct State {
    Acc largest, sum;

    __device__ Acc shift() const { return isfinite(largest) ? largest : Acc(0); }
    __device__ Acc log_sum() const { return shift() + log(sum); }
    /// The sum with another shift. 0 has no exponent to overflow with.
    __device__ Acc sum_from(Acc other) const { return sum == 0 ? Acc(0) : sum * quick_exp(shift() - other); }
  };

  __device__ static State identity() { return {padding(), 0}; }
  __device__ static Acc padding() { return lowest<Acc>(); }
  template <int N, class At>
  __device__ static void add(State& state, Acc (&v)[N], int, const At&) {
    State next{state.largest, 0};
#pragma unroll
    for (int i = 0; i < N; ++i) next.largest = nan_max(next.largest, v[i]);
    const Acc shift = next.shift();
    next.sum = state.sum_from(shift);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = quick_exp(v[i] - shift);
    next.sum += fold_tree(v, [](Acc a, Acc b) { return a + b; });
    state = next;
  }
  __device__ static State merge(const State& a, const State& b) {
    State both{nan_max(a.largest, b.largest), 0};
    both.sum = a.sum_from(both.shift()) + b.sum_from(both.shift());
    return both;
  }
  __device__ Out finish(const State& state) const { return Out(state.log_sum()); }
};

}  // namespace glade::cuda
