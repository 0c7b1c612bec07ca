#pragma once
// Elementwise loops on the CPU: f applied over any number of inputs, threaded, with inner loops the compiler vectorises.
#include <tuple>
#include <utility>

#include <glade/core/loops.h>
#include <glade/core/parallel.h>

namespace glade::cpu {

namespace detail {

// Inner loop with strides known at compile time (0 or 1), which is what lets it be vectorised. Not by omp simd: that makes an
// array of the 16-bit types' temporaries, which GCC cannot vectorise.
template <std::int64_t... Stride, class F, class Out, class... In>
void inner_fixed(std::int64_t n, const F& f, Out* out, const In*... in) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) out[i] = Out(f(in[i * Stride]...));
}

template <class F, class Out, class... In, std::size_t... I>
void inner(std::int64_t n, const std::int64_t* strides, const F& f, Out* out, std::index_sequence<I...>, const In*... in) {
  if (strides[0] == 1) {
    if constexpr (sizeof...(In) == 0) return inner_fixed<>(n, f, out);
    if (((strides[I + 1] == 1) && ...)) return inner_fixed<(static_cast<void>(I), 1)...>(n, f, out, in...);
    if constexpr (sizeof...(In) == 2) {
      if (strides[1] == 0 && strides[2] == 1) return inner_fixed<0, 1>(n, f, out, in...);
      if (strides[1] == 1 && strides[2] == 0) return inner_fixed<1, 0>(n, f, out, in...);
    }
  }
  for (std::int64_t i = 0; i < n; ++i) out[i * strides[0]] = Out(f(in[i * strides[I + 1]]...));
}

}  // namespace detail

/// out = f(in...) over the plan, whose operand 0 is `out`. Reads may overlap the write only element on element.
template <class F, class Out, class... In>
void elementwise(const LoopPlan<1 + sizeof...(In)>& plan, const F& f, Out* out, const In*... in) {
  constexpr int N = 1 + static_cast<int>(sizeof...(In));
  constexpr auto indices = std::index_sequence_for<In...>{};
  std::int64_t inner_strides[N];
  for (int i = 0; i < N; ++i) inner_strides[i] = plan.strides[i][0];
  parallel_for(plan.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    // Odometer over the outer dimensions, starting in the middle of a row where the range does.
    std::int64_t index[kMaxDims];
    std::int64_t rest = begin;
    for (int d = 0; d < plan.ndim; ++d) {
      index[d] = rest % plan.shape[d];
      rest /= plan.shape[d];
    }
    for (std::int64_t done = begin; done < end;) {
      std::int64_t at[N] = {};
      for (int i = 0; i < N; ++i)
        for (int d = 0; d < plan.ndim; ++d) at[i] += index[d] * plan.strides[i][d];
      const std::int64_t n = std::min(plan.shape[0] - index[0], end - done);
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        detail::inner(n, inner_strides, f, out + at[0], indices, (in + at[I + 1])...);
      }(indices);
      done += n;
      index[0] = 0;
      for (int d = 1; d < plan.ndim; ++d) {
        if (++index[d] < plan.shape[d]) break;
        index[d] = 0;
      }
    }
  });
}

}  // namespace glade::cpu
