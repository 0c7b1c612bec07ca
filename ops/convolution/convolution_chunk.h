#pragma once
// The short convolution of some tokens in a few channels: the work of one CUDA thread, or of one step of a CPU thread.
// The same source on both devices. Going through the tokens, the last inputs stay in a window of `width`.
#include <algorithm>
#include <cstdint>

#include <glade/core/float16.h>
#include <glade/core/math.h>
#include <glade/core/pointer.h>
#include <glade/ops/convolution/convolution_kernels.h>

/// Unrolls the loop that follows in device code, where arrays are registers only as far as their indices are constants.
#if defined(__CUDA_ARCH__)
#define GLADE_UNROLL _Pragma("unroll")
#else
#define GLADE_UNROLL
#endif

namespace glade::convolution {

template <class T>
struct Arguments {
  std::int64_t tokens, channels, sequences;
  int width;
  bool silu;
  bool aligned;                    ///< rows can be read and written in whole packs
  const std::int64_t* cu_seqlens;  // pointers but x, weight, y and grad_x may be null
  const T *x, *weight, *bias, *initial_state;
  std::int64_t x_row;
  T *y, *final_state;
  const T *grad_y, *grad_final;
  T *grad_x, *grad_initial;
};

template <class T>
Arguments<T> common_arguments(const ShortConvolution& problem) {
  Arguments<T> a{};
  a.tokens = problem.x.size(0);
  a.channels = problem.x.size(1);
  a.sequences = problem.sequences;
  a.width = static_cast<int>(problem.weight.size(1));
  a.silu = problem.silu;
  a.cu_seqlens = pointer<std::int64_t>(problem.cu_seqlens);
  a.x = pointer<T>(problem.x);
  a.weight = pointer<T>(problem.weight);
  a.bias = pointer<T>(problem.bias);
  a.initial_state = pointer<T>(problem.initial_state);
  a.x_row = problem.x.strides()[0];
  return a;
}

template <class T>
Arguments<T> forward_arguments(const ShortConvolution& problem, const Tensor& y, const Tensor& final_state) {
  Arguments<T> a = common_arguments<T>(problem);
  a.y = pointer<T>(y);
  a.final_state = pointer<T>(final_state);
  return a;
}

template <class T>
Arguments<T> backward_arguments(const ShortConvolution& problem, const Tensor& grad_y, const Tensor& grad_final,
                                const Tensor& grad_x, const Tensor& grad_initial) {
  Arguments<T> a = common_arguments<T>(problem);
  a.grad_y = pointer<T>(grad_y);
  a.grad_final = pointer<T>(grad_final);
  a.grad_x = pointer<T>(grad_x);
  a.grad_initial = pointer<T>(grad_initial);
  return a;
}

/// Tokens [begin, end) are sequence n.
struct Sequence {
  std::int64_t n, begin, end;
};

template <class T>
GLADE_HOST_DEVICE Sequence sequence(const Arguments<T>& a, std::int64_t n) {
  if (a.cu_seqlens != nullptr) return {n, a.cu_seqlens[n], a.cu_seqlens[n + 1]};
  const std::int64_t length = a.tokens / a.sequences;
  return {n, n * length, (n + 1) * length};
}

template <class T>
GLADE_HOST_DEVICE Sequence sequence_of_token(const Arguments<T>& a, std::int64_t token) {
  if (a.cu_seqlens == nullptr) return sequence(a, token / (a.tokens / a.sequences));
  std::int64_t low = 0, high = a.sequences;  // cu_seqlens[low] <= token < cu_seqlens[high]
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (a.cu_seqlens[middle] <= token) low = middle;
    else high = middle;
  }
  return sequence(a, low);
}

/// Channels next to each other; two are read and written in one access, so that their place must be aligned.
template <class T, int Lanes>
struct alignas(Lanes == 2 ? 2 * sizeof(T) : sizeof(T)) Pack {
  T x[Lanes];
};

/// What both directions keep while going through the tokens: taps and inputs, [j] for j tokens ago. MaxWidth bounds
/// the width at compile time, so that the arrays of a CUDA thread can be registers.
template <class T, int MaxWidth, int Lanes>
struct Window {
  using C = compute_t<T>;
  static constexpr int kAhead = Lanes == 2 ? 4 : 1;  ///< tokens loaded before the first of them is used

  const Arguments<T>& a;
  std::int64_t channel;
  C taps[MaxWidth][Lanes], bias[Lanes], inputs[MaxWidth][Lanes];

  GLADE_HOST_DEVICE Window(const Arguments<T>& arguments, std::int64_t first_channel) : a(arguments), channel(first_channel) {
    for (int j = 0; j < MaxWidth; ++j)
      for (int c = 0; c < Lanes; ++c) taps[j][c] = j < a.width ? C(a.weight[(channel + c) * a.width + a.width - 1 - j]) : C(0);
    for (int c = 0; c < Lanes; ++c) bias[c] = a.bias != nullptr ? C(a.bias[channel + c]) : C(0);
  }

  /// Of lane c in a [sequences, channels, width - 1] state.
  GLADE_HOST_DEVICE std::int64_t state_index(std::int64_t n, int c, std::int64_t at) const {
    return (n * a.channels + channel + c) * (a.width - 1) + at;
  }
  GLADE_HOST_DEVICE Pack<T, Lanes> load_row(const T* rows, std::int64_t row_step, std::int64_t token) const {
    return *reinterpret_cast<const Pack<T, Lanes>*>(rows + token * row_step + channel);
  }
  GLADE_HOST_DEVICE void store_row(T* rows, std::int64_t token, const C (&values)[Lanes]) const {
    Pack<T, Lanes> row;
    for (int c = 0; c < Lanes; ++c) row.x[c] = T(values[c]);
    *reinterpret_cast<Pack<T, Lanes>*>(rows + token * a.channels + channel) = row;
  }

  /// Fills the window with what is before `token`.
  GLADE_HOST_DEVICE void start(const Sequence& s, std::int64_t token) {
    for (int j = 1; j < MaxWidth; ++j) {
      const std::int64_t at = token - j;
      if (j < a.width && at >= s.begin) {
        const Pack<T, Lanes> row = load_row(a.x, a.x_row, at);
        for (int c = 0; c < Lanes; ++c) inputs[j][c] = C(row.x[c]);
      } else {
        const bool known = j < a.width && a.initial_state != nullptr;
        for (int c = 0; c < Lanes; ++c)
          inputs[j][c] = known ? C(a.initial_state[state_index(s.n, c, at - s.begin + a.width - 1)]) : C(0);
      }
    }
  }

  GLADE_HOST_DEVICE void push(const Pack<T, Lanes>& row) {
    for (int c = 0; c < Lanes; ++c) inputs[0][c] = C(row.x[c]);
  }

  /// The convolution at the current token, before silu. Products with taps beyond the width are left out rather than
  /// multiplied by 0, as old inputs may be infinite.
  GLADE_HOST_DEVICE void convolve(C (&z)[Lanes]) const {
    for (int c = 0; c < Lanes; ++c) z[c] = bias[c];
    for (int j = 0; j < MaxWidth; ++j)
      if (j < a.width)
        for (int c = 0; c < Lanes; ++c) z[c] += taps[j][c] * inputs[j][c];
  }
};

/// values[j] moves to j + 1: what was j tokens ago at one token is j + 1 ago at the next.
template <class C, int MaxWidth, int Lanes>
GLADE_HOST_DEVICE void shift(C (&values)[MaxWidth][Lanes], int width) {
  for (int j = MaxWidth - 1; j > 0; --j)
    if (j < width)
      for (int c = 0; c < Lanes; ++c) values[j][c] = values[j - 1][c];
}

/// y for tokens [begin, end), and the final state of the sequences that end there.
template <class T, int MaxWidth, int Lanes>
GLADE_HOST_DEVICE void forward(const Arguments<T>& a, std::int64_t begin, std::int64_t end, std::int64_t channel) {
  using W = Window<T, MaxWidth, Lanes>;
  using C = typename W::C;
  W window(a, channel);
  Sequence s = sequence_of_token(a, begin);
  window.start(s, begin);
  for (std::int64_t group = begin; group < end; group += W::kAhead) {
    Pack<T, Lanes> rows[W::kAhead]{};
    GLADE_UNROLL
    for (int i = 0; i < W::kAhead; ++i)
      if (group + i < end) rows[i] = window.load_row(a.x, a.x_row, group + i);
    GLADE_UNROLL
    for (int i = 0; i < W::kAhead; ++i) {
      const std::int64_t t = group + i;
      if (t >= end) break;
      if (t == s.end) {
        s = sequence_of_token(a, t);
        window.start(s, t);
      }
      window.push(rows[i]);
      C z[Lanes];
      window.convolve(z);
      if (a.silu)
        for (int c = 0; c < Lanes; ++c) z[c] = math::silu(z[c]);
      window.store_row(a.y, t, z);
      if (t + 1 == s.end)
        for (int j = 0; j < MaxWidth; ++j)
          if (j < a.width - 1)
            for (int c = 0; c < Lanes; ++c) a.final_state[window.state_index(s.n, c, a.width - 2 - j)] = T(window.inputs[j][c]);
      shift(window.inputs, a.width);
    }
  }
}

/// Gradients of the inputs at tokens [begin, end), and of the initial state of the sequences that begin there. Adds the
/// tokens' share of the gradients of the taps, [j] for j tokens ago, and of the bias to the sums.
template <class T, int MaxWidth, int Lanes>
struct Backward {
  using W = Window<T, MaxWidth, Lanes>;
  using C = typename W::C;

  const Arguments<T>& a;
  const std::int64_t begin, end;
  W window;
  Sequence s;
  C pending[MaxWidth][Lanes];  ///< gradient, so far, of the input j tokens ago
  C grad_taps[MaxWidth][Lanes], grad_bias[Lanes];

  GLADE_HOST_DEVICE Backward(const Arguments<T>& arguments, std::int64_t first, std::int64_t last, std::int64_t channel)
      : a(arguments), begin(first), end(last), window(arguments, channel), s{} {
    for (int j = 0; j < MaxWidth; ++j)
      for (int c = 0; c < Lanes; ++c) grad_taps[j][c] = 0;
    for (int c = 0; c < Lanes; ++c) grad_bias[c] = 0;
  }

  GLADE_HOST_DEVICE void start(std::int64_t token) {
    s = sequence_of_token(a, token);
    window.start(s, token);
    for (int j = 1; j < MaxWidth; ++j)
      if (j < a.width) open(j, token - j);
  }

  /// The gradient of the input at `token` starts with that of the final state, where it is part of it.
  GLADE_HOST_DEVICE void open(int j, std::int64_t token) {
    const std::int64_t at = token - s.end + a.width - 1;
    for (int c = 0; c < Lanes; ++c)
      pending[j][c] = a.grad_final != nullptr && at >= 0 ? C(a.grad_final[window.state_index(s.n, c, at)]) : C(0);
  }

  /// pending[j], the gradient of the input at `token`, is complete. Other calls write what is not in [begin, end).
  GLADE_HOST_DEVICE void close(int j, std::int64_t token) {
    if (token >= s.begin) {
      if (token >= begin && token < end) window.store_row(a.grad_x, token, pending[j]);
    } else if (s.begin >= begin && a.grad_initial != nullptr) {
      for (int c = 0; c < Lanes; ++c)
        a.grad_initial[window.state_index(s.n, c, token - s.begin + a.width - 1)] = T(pending[j][c]);
    }
  }

  GLADE_HOST_DEVICE void step(std::int64_t t, const Pack<T, Lanes>& row, const Pack<T, Lanes>& grad_row) {
    window.push(row);
    open(0, t);
    C dz[Lanes];
    for (int c = 0; c < Lanes; ++c) dz[c] = C(grad_row.x[c]);
    if (a.silu) {
      C z[Lanes];
      window.convolve(z);
      for (int c = 0; c < Lanes; ++c) dz[c] *= math::silu_derivative(z[c]);
    }
    const bool own = t < end;
    for (int c = 0; c < Lanes; ++c) grad_bias[c] += own ? dz[c] : C(0);
    for (int j = 0; j < MaxWidth; ++j) {
      if (j < a.width) {
        for (int c = 0; c < Lanes; ++c) pending[j][c] += window.taps[j][c] * dz[c];
        if (own)
          for (int c = 0; c < Lanes; ++c) grad_taps[j][c] += window.inputs[j][c] * dz[c];
        if (j == a.width - 1) close(j, t - j);
      }
    }
    shift(window.inputs, a.width);
    shift(pending, a.width);
  }

  /// Goes on past `end` while outputs there depend on inputs before it.
  GLADE_HOST_DEVICE void run() {
    const std::int64_t last = end + a.width - 1;
    start(begin);
    for (std::int64_t group = begin;; group += W::kAhead) {
      Pack<T, Lanes> rows[W::kAhead]{}, grad_rows[W::kAhead]{};
      GLADE_UNROLL
      for (int i = 0; i < W::kAhead; ++i)
        if (group + i < last && group + i < a.tokens) {
          rows[i] = window.load_row(a.x, a.x_row, group + i);
          grad_rows[i] = window.load_row(a.grad_y, a.channels, group + i);
        }
      GLADE_UNROLL
      for (int i = 0; i < W::kAhead; ++i) {
        const std::int64_t t = group + i;
        if (t == s.end) {
          for (int j = 1; j < MaxWidth; ++j)
            if (j < a.width) close(j, t - j);
          if (t >= end) return;
          start(t);
        }
        if (t == last) return;
        step(t, rows[i], grad_rows[i]);
      }
    }
  }
};

}  // namespace glade::convolution
