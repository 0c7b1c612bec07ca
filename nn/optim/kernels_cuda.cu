// Optimiser kernels over lists of tensors: one launch serves up to kListSize of them, because a model has many small ones and a
// launch costs more than their arithmetic. The list is the kernel's parameter, which may have 32764 bytes.
#include <algorithm>
#include <array>
#include <limits>

#include <glade/core/cuda/loops.cuh>
#include <glade/nn/optim/kernels.h>

namespace glade::cuda {
namespace {

using detail::Vector;

constexpr int kListSize = 512;
constexpr int kThreads = 256;
constexpr int kSumChunk = 8192;  // elements of a block that adds up: each leaves a part of the sum

/// Elements that a thread takes at a time: 16 bytes.
template <class T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
/// Elements of a block that adds nothing up: with two vectors a thread memory is busiest.
template <class T>
constexpr int kMapChunk = 2 * kThreads * kWidth<T>;

/// N arrays for each of `count` tensors, whose chunks the blocks of the grid take in order.
template <int N>
struct TensorList {
  void* data[N][kListSize];
  std::int64_t numel[kListSize];
  unsigned first_block[kListSize + 1];
  int group[kListSize];
  int count;
  int chunk;  ///< elements of a block

  /// The elements of this block.
  struct Part {
    int tensor;
    std::int64_t begin, end;
  };
  __device__ Part part() const {
    int low = 0, high = count;  // first_block[low] <= blockIdx.x < first_block[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= blockIdx.x ? low : high) = middle;
    }
    const std::int64_t begin = std::int64_t{blockIdx.x - first_block[low]} * chunk;
    return {low, begin, min(begin + chunk, numel[low])};
  }
};
static_assert(sizeof(TensorList<5>) <= 32000);

/// Calls f(list) for lists that cover the tensors of `dtype` in blocks of `chunk` elements. `arrays(i)` gives tensor i's arrays,
/// the first of which has the dtype and size that count; those that are undefined are null. `group(i)` is its group.
template <int N, class Arrays, class Group, class F>
void for_each_list(std::size_t count, DType dtype, int chunk, const Arrays& arrays, const Group& group, const F& f) {
  TensorList<N> list;
  list.count = 0;
  list.chunk = chunk;
  list.first_block[0] = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::array<const Tensor*, N> x = arrays(i);
    if (x[0]->dtype() == dtype && x[0]->numel() > 0) {
      const int at = list.count++;
      for (int n = 0; n < N; ++n) {
        const Tensor& array = *x[static_cast<std::size_t>(n)];
        list.data[n][at] = array.defined() ? array.raw_data() : nullptr;
      }
      list.numel[at] = x[0]->numel();
      list.group[at] = group(i);
      list.first_block[at + 1] = list.first_block[at] + blocks_for(x[0]->numel(), chunk);
    }
    if (list.count == kListSize || (list.count > 0 && i + 1 == count)) {
      f(list);
      list.count = 0;
    }
  }
}

/// Calls f for every floating dtype that occurs among the first arrays.
template <class F>
void for_each_dtype(const F& f) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64})
    visit_floating(dtype, [&](auto tag) { f(tag); });
}

/// f(i, number of elements from i on) over a part: in vectors of W where `aligned`, one by one at the end.
template <int W, class F>
__device__ void for_each_vector(std::int64_t begin, std::int64_t end, bool aligned, const F& f) {
  const std::int64_t vectors = aligned ? (end - begin) / W : 0;
  for (std::int64_t i = threadIdx.x; i < vectors; i += kThreads) f(begin + i * W, std::integral_constant<int, W>{});
  for (std::int64_t i = begin + vectors * W + threadIdx.x; i < end; i += kThreads) f(i, std::integral_constant<int, 1>{});
}

template <int W, class T>
__device__ bool is_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % (W * sizeof(T)) == 0;
}

template <int W, class T>
__device__ Vector<T, W> load(const T* from) {
  return *reinterpret_cast<const Vector<T, W>*>(from);
}

template <class T, class Copy>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ TensorList<5> list, const AdamWStep* settings, const double* factor, bool skip) {
  using C = compute_t<T>;
  if (skip && !isfinite(*factor)) return;
  const auto [tensor, begin, end] = list.part();
  const AdamWStep step = settings[list.group[tensor]];
  const C beta1(step.beta1), beta2(step.beta2), rest1(1 - step.beta1), rest2(1 - step.beta2), eps(step.eps), lr(step.lr),
      correction(step.inverse_sqrt_correction), decay(step.decay), l2(step.l2), scale(factor != nullptr ? *factor : 1);
  T* const p = static_cast<T*>(list.data[0][tensor]);
  const T* const g = static_cast<const T*>(list.data[1][tensor]);
  C* const m = static_cast<C*>(list.data[2][tensor]);
  C* const v = static_cast<C*>(list.data[3][tensor]);
  Copy* const copy = static_cast<Copy*>(list.data[4][tensor]);
  constexpr int kTogether = kWidth<T>;
  const bool aligned = is_aligned<kTogether>(p) && is_aligned<kTogether>(g) && is_aligned<kTogether>(m) &&
                       is_aligned<kTogether>(v) && is_aligned<kTogether>(copy);
  for_each_vector<kTogether>(begin, end, aligned, [&]<int W>(std::int64_t i, std::integral_constant<int, W>) {
    const auto gradients = load<W>(g + i);
    auto values = load<W>(p + i);
    auto means = load<W>(m + i), squares = load<W>(v + i);
    Vector<Copy, W> copied;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const C gradient = C(gradients.x[w]) * scale + l2 * C(values.x[w]);
      means.x[w] = beta1 * means.x[w] + rest1 * gradient;
      squares.x[w] = beta2 * squares.x[w] + rest2 * gradient * gradient;
      values.x[w] = T(C(values.x[w]) * decay - lr * means.x[w] / (sqrt(squares.x[w]) * correction + eps));
      copied.x[w] = Copy(static_cast<float>(values.x[w]));
    }
    detail::store(p + i, values);
    detail::store(m + i, means);
    detail::store(v + i, squares);
    if (copy != nullptr) detail::store(copy + i, copied);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) scale_kernel(const __grid_constant__ TensorList<1> list, const double* factor) {
  const compute_t<T> f(*factor);
  if (f == 1) return;
  const auto [tensor, begin, end] = list.part();
  T* const x = static_cast<T*>(list.data[0][tensor]);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) x[i] = T(compute_t<T>(x[i]) * f);
}

/// The sum of x over the block, in thread 0; always added in the same order.
__device__ double block_sum(double x) {
  __shared__ double sums[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_down_sync(~0u, x, distance);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0)
    for (const double sum : sums) total += sum;
  return total;
}

template <class T>
__global__ void __launch_bounds__(kThreads) partial_squares_kernel(const __grid_constant__ TensorList<1> list, double* partial) {
  using C = compute_t<T>;
  const auto [tensor, begin, end] = list.part();
  const T* const x = static_cast<const T*>(list.data[0][tensor]);
  C sum = 0;
  for_each_vector<kWidth<T>>(begin, end, is_aligned<kWidth<T>>(x), [&]<int W>(std::int64_t i, std::integral_constant<int, W>) {
    const auto values = load<W>(x + i);
#pragma unroll
    for (int w = 0; w < W; ++w) sum += C(values.x[w]) * C(values.x[w]);
  });
  const double total = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    norm_kernel(const double* partial, std::int64_t n, double max_norm, const float* scale, double* norm, double* factor) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const double inverse = scale != nullptr ? 1 / static_cast<double>(*scale) : 1, length = std::sqrt(sum) * inverse;
  const double clip = max_norm > 0 ? max_norm / (length + 1e-6) : 1;
  *norm = length;
  *factor = isfinite(length) ? (clip < 1 ? clip : 1) * inverse : std::numeric_limits<double>::quiet_NaN();
}

/// Few enough to be a kernel's parameter.
struct NumberList {
  double values[256];
};

__global__ void write_numbers_kernel(const __grid_constant__ NumberList numbers, double* out) {
  out[threadIdx.x] = numbers.values[threadIdx.x];
}

constexpr auto kNoGroup = [](std::size_t) { return 0; };

}  // namespace

void adamw(const std::vector<AdamWTensors>& tensors, const AdamWSettings& settings) {
  if (tensors.empty()) return;
  const Device device = settings.values.device();
  DeviceGuard guard(device);
  const auto* steps = reinterpret_cast<const AdamWStep*>(settings.values.data<double>());
  const double* factor = settings.factor.defined() ? settings.factor.data<double>() : nullptr;
  // Tensors whose copies have the other 16-bit dtype, or none, are a list of their own.
  for (const DType copies : {DType::bfloat16, DType::float16}) {
    std::vector<const AdamWTensors*> chosen;
    for (const AdamWTensors& x : tensors)
      if ((x.copy.defined() ? x.copy.dtype() : DType::bfloat16) == copies) chosen.push_back(&x);
    const auto arrays = [&](std::size_t i) {
      const AdamWTensors& x = *chosen[i];
      return std::array<const Tensor*, 5>{&x.parameter, &x.gradient, &x.exp_avg, &x.exp_avg_sq, &x.copy};
    };
    const auto chosen_group = [&](std::size_t i) { return static_cast<int>(chosen[i]->group); };
    for_each_dtype([&]<class T>(TypeTag<T>) {
      for_each_list<5>(chosen.size(), dtype_of<T>(), kMapChunk<T>, arrays, chosen_group, [&](const TensorList<5>& list) {
        const auto kernel = copies == DType::float16 ? adamw_kernel<T, float16> : adamw_kernel<T, bfloat16>;
        kernel<<<list.first_block[list.count], kThreads, 0, stream(device)>>>(list, steps, factor, settings.skip);
        GLADE_CUDA_LAUNCHED();
      });
    });
  }
}

void write_numbers(const Tensor& out, const std::vector<double>& values) {
  DeviceGuard guard(out.device());
  NumberList numbers{};
  for (std::size_t first = 0; first < values.size(); first += std::size(numbers.values)) {
    const std::size_t count = std::min(std::size(numbers.values), values.size() - first);
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(first), count, numbers.values);
    write_numbers_kernel<<<1, static_cast<unsigned>(count), 0, stream(out.device())>>>(numbers, out.data<double>() + first);
    GLADE_CUDA_LAUNCHED();
  }
}

void gradient_norm(const Tensors& gradients, const GradientNorm& result) {
  const Device device = result.norm.device();
  DeviceGuard guard(device);
  std::size_t blocks = 0;
  for (const Tensor& x : gradients) blocks += blocks_for(x.numel(), kSumChunk);
  const Scratch partial(blocks * sizeof(double), device);
  std::int64_t used = 0;
  for_each_dtype([&]<class T>(TypeTag<T>) {
    const auto array = [&](std::size_t i) { return std::array<const Tensor*, 1>{&gradients[i]}; };
    for_each_list<1>(gradients.size(), dtype_of<T>(), kSumChunk, array, kNoGroup, [&](const TensorList<1>& list) {
      const unsigned list_blocks = list.first_block[list.count];
      partial_squares_kernel<T><<<list_blocks, kThreads, 0, stream(device)>>>(list, partial.data<double>() + used);
      GLADE_CUDA_LAUNCHED();
      used += list_blocks;
    });
  });
  norm_kernel<<<1, kThreads, 0, stream(device)>>>(partial.data<double>(), used, result.max_norm,
                                                  result.scale.defined() ? result.scale.data<float>() : nullptr,
                                                  result.norm.data<double>(), result.factor.data<double>());
  GLADE_CUDA_LAUNCHED();
}

void scale(const Tensors& tensors, const Tensor& factor) {
  const Device device = factor.device();
  DeviceGuard guard(device);
  for_each_dtype([&]<class T>(TypeTag<T>) {
    const auto array = [&](std::size_t i) { return std::array<const Tensor*, 1>{&tensors[i]}; };
    for_each_list<1>(tensors.size(), dtype_of<T>(), kMapChunk<T>, array, kNoGroup, [&](const TensorList<1>& list) {
      scale_kernel<T><<<list.first_block[list.count], kThreads, 0, stream(device)>>>(list, factor.data<double>());
      GLADE_CUDA_LAUNCHED();
    });
  });
}

}  // namespace glade::cuda
