#pragma once
// Elementwise loops on the GPU: the twin of core/cpu_loops.h.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/instructions.cuh>
#include <glade/core/loops.h>

namespace glade::cuda {

namespace detail {

/// Division by a run-time constant as multiply and shift, right for dividends below 2^31.
struct FastDivisor {
  std::uint32_t divisor = 1, magic = 0, shift = 0;
  FastDivisor() = default;
  explicit FastDivisor(std::uint32_t d) : divisor(d) {
    while ((1u << shift) < d && shift < 31) ++shift;
    magic = static_cast<std::uint32_t>(((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - d)) / d + 1);
  }
  __device__ std::uint32_t divide(std::uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

template <int N>
struct Offsets {
  int ndim;
  FastDivisor shape[kMaxDims];
  std::int64_t strides[N][kMaxDims];

  /// Of the elements first, first + step, ...
  template <int count>
  __device__ void at(std::uint32_t first, std::uint32_t step, std::int64_t (&offset)[count][N]) const {
    std::uint32_t left[count];
#pragma unroll
    for (int u = 0; u < count; ++u) {
      left[u] = first + u * step;
#pragma unroll
      for (int i = 0; i < N; ++i) offset[u][i] = 0;
    }
#pragma unroll
    for (int d = 0; d < kMaxDims; ++d) {
      if (d == ndim) break;
#pragma unroll
      for (int u = 0; u < count; ++u) {
        const std::uint32_t quotient = shape[d].divide(left[u]), index = left[u] - quotient * shape[d].divisor;
        left[u] = quotient;
#pragma unroll
        for (int i = 0; i < N; ++i) offset[u][i] += index * strides[i][d];
      }
    }
  }
};

template <class T, int Width>
struct alignas(sizeof(T) * Width) Vector {
  T x[Width];
};

/// In one access.
template <class T, int Width>
__device__ void store(T* to, const Vector<T, Width>& values) {
  if constexpr (sizeof(values) == 16) {
    uint4 bytes;
    memcpy(&bytes, &values, 16);
    store_global(to, bytes);
  } else {
    *reinterpret_cast<Vector<T, Width>*>(to) = values;
  }
}

constexpr int kThreads = 256;
constexpr int kDenseThreads = 128;  // small blocks leave little to wait for at the end

template <std::size_t size>
using bytes_t = std::conditional_t<
    size == 16, uint4,
    std::conditional_t<size == 8, uint2,
                       std::conditional_t<size == 4, std::uint32_t, std::conditional_t<size == 2, std::uint16_t, std::uint8_t>>>>;

/// `Unroll` vectors of an input, under way together. As bytes: elements of 8 or 16 bits the compiler would sort, and so wait for,
/// where they are loaded.
template <int Width, int Unroll, class T>
struct Loads {
  bytes_t<Width * sizeof(T)> bytes[Unroll];

  /// Vector u from x on, or of *x alone where it is `repeated`.
  __device__ void load(int u, const T* x, bool repeated) {
    if (!repeated) {
      bytes[u] = *reinterpret_cast<const bytes_t<Width * sizeof(T)>*>(x);
    } else {
      Vector<T, Width> values;
#pragma unroll
      for (T& value : values.x) value = *x;
      memcpy(&bytes[u], &values, sizeof(values));
    }
  }
  __device__ Vector<T, Width> vector(int u) const {
    Vector<T, Width> values;
    if constexpr (sizeof(T) == 2 && Width % 2 == 0) {  // out of words by shifts: the compiler would copy each half first
      std::uint32_t words[Width / 2];
      memcpy(words, &bytes[u], sizeof(words));
#pragma unroll
      for (int j = 0; j < Width; ++j)
        values.x[j] = __builtin_bit_cast(T, static_cast<std::uint16_t>(words[j / 2] >> 16 * (j % 2)));
    } else {
      memcpy(&values, &bytes[u], sizeof(values));
    }
    return values;
  }
};

/// The vectors from x + at(u) on, for every u that `exists`.
template <int Width, int Unroll, class T, class Exists, class At>
__device__ Loads<Width, Unroll, T> load_all(const T* x, bool repeated, const Exists& exists, const At& at) {
  Loads<Width, Unroll, T> loads;
#pragma unroll
  for (int u = 0; u < Unroll; ++u)
    if (exists(u)) loads.load(u, x + at(u), repeated);
  return loads;
}

/// out[at(u) ...] = f(loads...) for every u that `exists`. An F of bools may have of_words(), which takes four bytes of each.
template <int Width, int Unroll, class Out, class F, class Exists, class At, class... In>
__device__ void store_all(Out* out, const F& f, const Exists& exists, const At& at,
                          const Loads<Width, Unroll, In>&... loads [[maybe_unused]]) {
  const auto map = [&](const Vector<In, Width>&... in) {
    Vector<Out, Width> result;
    if constexpr (Width % 4 == 0 && requires { F::of_words(std::uint32_t{sizeof(In)}...); }) {
      using Words = Vector<std::uint32_t, Width / 4>;
      Words words;
#pragma unroll
      for (int j = 0; j < Width / 4; ++j) words.x[j] = F::of_words(reinterpret_cast<const Words&>(in).x[j]...);
      memcpy(&result, &words, sizeof(result));
    } else {
#pragma unroll
      for (int j = 0; j < Width; ++j) result.x[j] = Out(f(in.x[j]...));
    }
    return result;
  };
#pragma unroll
  for (int u = 0; u < Unroll; ++u)
    if (exists(u)) store(out + at(u), map(loads.vector(u)...));
}

/// Whether an input may be one element beside others that are many.
template <class... In>
constexpr bool kMayRepeat = sizeof...(In) > 1;
/// Whether rows that inputs share, or of which each has one element, are worth a kernel of their own for the functor F.
template <class F, class... In>
constexpr bool kHasRows = sizeof...(In) > 1;

// Each thread handles `Unroll` vectors, loaded before the first is used, and the first threads the elements that are left. Of the
// inputs whose bits are set in `repeated` there is one element.
template <int Width, int Unroll, class F, class Out, class... In>
__global__ void __launch_bounds__(kDenseThreads)
    contiguous_kernel(std::uint32_t vectors, std::uint32_t left, std::uint32_t repeated, F f, Out* out, const In*... in) {
  const std::uint32_t first = blockIdx.x * (kDenseThreads * Unroll) + threadIdx.x;
  const auto exists = [&](int u) { return first + u * kDenseThreads < vectors; };
  const auto at = [&](int u) { return std::size_t{first + u * kDenseThreads} * Width; };
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto is_repeated = [&](std::size_t i) { return kMayRepeat<In...> && (repeated >> i & 1) != 0; };
    store_all<Width, Unroll>(out, f, exists, at, load_all<Width, Unroll>(in, is_repeated(I), exists, [&](int u) {
                               return is_repeated(I) ? 0 : at(u);
                             })...);
    if (first < left) {
      const std::size_t i = std::size_t{vectors} * Width + first;
      out[i] = Out(f(in[is_repeated(I) ? 0 : i]...));
    }
  }(std::index_sequence_for<In...>{});
}

// The same for n vectors along dimension 0 of operands with other dimensions, in any order in memory.
template <int Width, int Unroll, class F, class Out, class... In>
__global__ void __launch_bounds__(kThreads)
    strided_kernel(std::uint32_t n, std::uint32_t repeated, Offsets<1 + sizeof...(In)> offsets, F f, Out* out, const In*... in) {
  const std::uint32_t first = blockIdx.x * (kThreads * Unroll) + threadIdx.x;
  const auto exists = [&](int u) { return first + u * kThreads < n; };
  std::int64_t at[Unroll][1 + sizeof...(In)];
  offsets.at(first, kThreads, at);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    store_all<Width, Unroll>(
        out, f, exists, [&](int u) { return at[u][0]; },
        load_all<Width, Unroll>(in, Width > 1 && (repeated >> I & 1) != 0, exists, [&](int u) { return at[u][I + 1]; })...);
  }(std::index_sequence_for<In...>{});
}

/// Whether rows along dimension 0 can be read and written in vectors of Width: the inputs are dense along it, or have one element
/// (their bits are set in `repeated`), and all rows begin at whole vectors.
template <int Width, class Out, class... In>
bool has_rows_of_vectors(const LoopPlan<1 + sizeof...(In)>& plan, std::uint32_t& repeated, const Out* out, const In*... in) {
  repeated = 0;
  if (plan.strides[0][0] != 1 || plan.shape[0] % Width != 0) return false;
  const auto is_aligned = [&]<class T>(int operand, const T* x) {
    for (int d = 1; d < plan.ndim; ++d)
      if (plan.strides[operand][d] % Width != 0) return false;
    return reinterpret_cast<std::uintptr_t>(x) % (Width * sizeof(T)) == 0;
  };
  const auto fits = [&](int operand, const auto* x) {
    if (plan.strides[operand][0] != 0) return plan.strides[operand][0] == 1 && is_aligned(operand, x);
    repeated |= 1u << (operand - 1);
    return true;
  };
  int operand = 0;
  return is_aligned(0, out) && (fits(++operand, in) && ...);
}

}  // namespace detail

/// out = f(in...) over the plan, whose operand 0 is `out`, on the device's current stream. F is a functor with a
/// __device__ operator(). Reads may overlap the write only element on element.
template <class F, class Out, class... In>
void elementwise(Device device, const LoopPlan<1 + sizeof...(In)>& plan, F f, Out* out, const In*... in) {
  using namespace detail;
  if (plan.numel == 0) return;
  DeviceGuard guard(device);
  constexpr int N = 1 + static_cast<int>(sizeof...(In));
  constexpr int widest = static_cast<int>(std::max({sizeof(Out), sizeof(In)...})), width = std::max(1, 16 / widest);
  bool dense = plan.ndim == 1 && plan.strides[0][0] == 1;
  std::uint32_t repeated = 0;  // inputs of one element
  for (int i = 1; i < N; ++i) {
    if (kMayRepeat<In...> && plan.strides[i][0] == 0) repeated |= 1u << (i - 1);
    else dense = dense && plan.strides[i][0] == 1;
  }
  if (const std::int64_t vectors = plan.numel / width; dense && vectors < std::int64_t{1} << 31) {  // indices have 32 bits
    // One load of 16 bytes by each thread keeps memory busy. Smaller loads go out in twos, and so do those of several inputs and
    // of 16-bit numbers, which take longer to compute with. What only writes has nothing to wait for.
    constexpr std::size_t bytes_read = (std::size_t{0} + ... + sizeof(In)) * width;
    constexpr int unroll = bytes_read == 0 ? 4 : bytes_read == 16 && width <= 4 ? 1 : 2;
    const auto is_aligned = []<class T>(const T* x) { return reinterpret_cast<std::uintptr_t>(x) % (width * sizeof(T)) == 0; };
    const bool aligned = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return (is_aligned(out) && ... && ((repeated >> I & 1) || is_aligned(in)));
    }(std::index_sequence_for<In...>{});
    if (aligned) {
      const unsigned blocks = std::max(1u, blocks_for(vectors, kDenseThreads * unroll));
      return launch_kernel<std::uint32_t, std::uint32_t, std::uint32_t, F, Out*, const In*...>(
          contiguous_kernel<width, unroll>, blocks, kDenseThreads, device, static_cast<std::uint32_t>(vectors),
          static_cast<std::uint32_t>(plan.numel % width), repeated, f, out, in...);
    }
  }
  constexpr std::int64_t limit = std::int64_t{1} << 30;
  if (plan.numel > limit) {
    // Split along the outermost dimension that can be, so that the kernel's indices stay in 32 bits.
    LoopPlan<N> half = plan;
    int d = plan.ndim - 1;
    while (plan.shape[d] == 1) --d;
    half.shape[d] = plan.shape[d] / 2;
    half.numel = plan.numel / plan.shape[d] * half.shape[d];
    const std::int64_t at = half.shape[d];
    elementwise(device, half, f, out, in...);
    half.shape[d] = plan.shape[d] - at;
    half.numel = plan.numel / plan.shape[d] * half.shape[d];
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      elementwise(device, half, f, out + at * plan.strides[0][d], (in + at * plan.strides[I + 1][d])...);
    }(std::index_sequence_for<In...>{});
    return;
  }
  Offsets<N> offsets{plan.ndim, {}, {}};
  const auto set_dimension = [&](int d, std::int64_t vector) {
    offsets.shape[d] = FastDivisor(static_cast<std::uint32_t>(plan.shape[d] / vector));
    for (int i = 0; i < N; ++i) offsets.strides[i][d] = plan.strides[i][d] * vector;
  };
  for (int d = 0; d < plan.ndim; ++d) set_dimension(d, 1);
  const auto launch = [&]<int Width, int Unroll>(std::integral_constant<int, Width>, std::integral_constant<int, Unroll>,
                                                 std::uint32_t repeated_in_rows) {
    const std::int64_t vectors = plan.numel / Width;
    launch_kernel<std::uint32_t, std::uint32_t, Offsets<N>, F, Out*, const In*...>(
        strided_kernel<Width, Unroll>, blocks_for(vectors, detail::kThreads * Unroll), detail::kThreads, device,
        static_cast<std::uint32_t>(vectors), repeated_in_rows, offsets, f, out, in...);
  };
  if constexpr (kHasRows<F, In...> && width > 1) {
    if (std::uint32_t repeated_in_rows = 0; has_rows_of_vectors<width>(plan, repeated_in_rows, out, in...)) {
      set_dimension(0, width);
      return launch(std::integral_constant<int, width>{}, std::integral_constant<int, 2>{}, repeated_in_rows);
    }
  }
  launch(std::integral_constant<int, 1>{}, std::integral_constant<int, 4>{}, 0);
}
/// The same where bools are among the inputs.
template <class F, class Out, class... In>
  requires(std::is_same_v<In, bool> || ...)
void elementwise(Device device, const LoopPlan<1 + sizeof...(In)>& plan, F f, Out* out, const In*... in) {
  elementwise(device, plan, f, out, stored(in)...);
}

}  // namespace glade::cuda
