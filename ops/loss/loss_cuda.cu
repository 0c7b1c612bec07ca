// cross_entropy and nll_loss on the GPU: a group of threads for each row, then one block that adds the rows up.
#include <cuda_pipeline.h>

#include <glade/core/cuda/instructions.cuh>
#include <glade/core/cuda/loops.cuh>
#include <glade/core/rounded_math.h>
#include <glade/ops/loss/loss_kernels.h>
#include <glade/ops/reduce/fold.cuh>
#include <glade/ops/reduce/reducers.cuh>

namespace glade::cuda {

namespace {

/// ClassLossOptions for kernels.
template <class Acc>
struct Smoothing {
  std::int64_t ignore_index;
  Acc own, spread;  ///< the share of the target and of each class

  Smoothing(const ClassLossOptions& options, std::int64_t classes)
      : ignore_index(options.ignore_index),
        own(static_cast<Acc>(1 - options.label_smoothing)),
        spread(static_cast<Acc>(options.label_smoothing / static_cast<double>(classes))) {}

  /// The target's logit in a row, NaN where it is out of range.
  template <class T>
  __device__ Acc target_logit(const T* row, std::int64_t target, std::int64_t classes) const {
    return target >= 0 && target < classes ? static_cast<Acc>(row[target]) : std::numeric_limits<Acc>::quiet_NaN();
  }
  /// What a row loses by its target: 0 where that is ignored.
  template <class T>
  __device__ Acc target_loss(const T* row, std::int64_t target, std::int64_t classes) const {
    return target == ignore_index ? Acc(0) : -own * target_logit(row, target, classes);
  }
  /// What a row of logits loses: `state` is that of its LogSumExp, and `sum` its sum where that counts.
  template <class State>
  __device__ Acc loss(const State& state, Acc logit, Acc sum, std::int64_t classes) const {
    const Acc shift = state.shift();  // taken from what is as large, before the logarithm is added
    const Acc of_all = spread > 0 ? spread * (static_cast<Acc>(classes) * shift - sum) : Acc(0);
    return own * (shift - logit) + log(state.sum) + of_all;
  }
};

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_rows(Smoothing<compute_t<T>> smoothing, const T* __restrict__ x, const std::int64_t* __restrict__ targets,
                       std::int64_t rows, std::int64_t n, int lanes, compute_t<T>* __restrict__ softmax,
                       compute_t<T>* __restrict__ losses) {
  using Acc = compute_t<T>;
  using R = LogSumExp<T>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = row_of_thread(lanes);
  const bool counts = row < rows && targets[row] != smoothing.ignore_index;
  auto state = R::identity();
  Acc sum = 0;
  if (counts) {
    fold_run<R>(state, x + row * n, n, 0, lane, lanes);
    if (smoothing.spread > 0) fold_run<Sum<T>>(sum, x + row * n, n, 0, lane, lanes);
  }
  state = merge_lanes<R>(state, lanes);
  if (smoothing.spread > 0) sum = merge_lanes<Sum<T>>(sum, lanes);
  if (row >= rows || lane != 0) return;
  const Acc logit = counts ? smoothing.target_logit(x + row * n, targets[row], n) : Acc(0);
  losses[row] = counts ? smoothing.loss(state, logit, sum, n) : Acc(0);
  softmax[2 * row] = state.shift();
  softmax[2 * row + 1] = logit == logit ? 1 / state.sum : logit;  // NaN makes the row's gradient NaN
}

template <class T>
__global__ void __launch_bounds__(kReduceThreads)
    nll_rows(Smoothing<compute_t<T>> smoothing, const T* x, const std::int64_t* targets, std::int64_t rows, std::int64_t n,
             compute_t<T>* losses) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  if (row < rows) losses[row] = smoothing.target_loss(x + row * n, targets[row], n);
}

struct Totals {
  struct State {
    double loss, count;
  };
  __device__ static State merge(const State& a, const State& b) { return {a.loss + b.loss, a.count + b.count}; }
};

/// One block: the loss, and what a row counts in it.
template <class Acc>
__global__ void __launch_bounds__(1024) add_rows(const Acc* losses, const std::int64_t* targets, std::int64_t rows,
                                                 std::int64_t ignore_index, bool mean, Acc* loss, Acc* scale) {
  Totals::State totals{0, 0};
#pragma unroll 4
  for (std::int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    totals.loss += losses[row];
    totals.count += targets[row] != ignore_index ? 1 : 0;
  }
  totals = merge_lanes<Totals>(totals, 1024);
  if (threadIdx.x != 0) return;
  *loss = static_cast<Acc>(mean ? totals.loss / totals.count : totals.loss);
  *scale = static_cast<Acc>(mean ? 1 / totals.count : 1);
}

template <class T, int W>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_backward_rows(Smoothing<compute_t<T>> smoothing, const T* x, const std::int64_t* __restrict__ targets,
                                std::int64_t rows, std::int64_t n, int lanes, const compute_t<T>* softmax,
                                const compute_t<T>* scale, const compute_t<T>* grad, T* dx) {
  using Acc = compute_t<T>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = row_of_thread(lanes);
  if (row >= rows) return;
  const std::int64_t target = targets[row];
  const bool ignored = target == smoothing.ignore_index;
  const Acc factor = ignored ? Acc(0) : *grad * *scale, shift = softmax[2 * row], share = softmax[2 * row + 1];
  const auto write = [&](std::int64_t i, Numbers<Acc, W> v) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const Acc wanted = smoothing.spread + (i + w == target ? smoothing.own : Acc(0));
      v.x[w] = ignored ? Acc(0) : factor * (math::exp(v.x[w] - shift) * share - wanted);
    }
    store_numbers<W>(dx + row * n + i, v);
  };
  for_each_vector<W>(n, lane, lanes, write, x + row * n);
}

/// The losses of rows and, where factor is not null, their gradients times it in x's place; a row is in the cache when it is read
/// for the second time.
template <class T, int W>
__global__ void __launch_bounds__(kRowThreads, 1)
    cross_entropy_both_rows(Smoothing<compute_t<T>> smoothing, T* x, const std::int64_t* __restrict__ targets, std::int64_t rows,
                            std::int64_t n, int lanes, const compute_t<T>* factor, compute_t<T>* __restrict__ losses) {
  using Acc = compute_t<T>;
  using R = LogSumExp<T>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = row_of_thread(lanes);
  T* const of_row = x + row * n;
  const bool inside = row < rows, counts = inside && targets[row] != smoothing.ignore_index;
  auto state = R::identity();
  Acc sum = 0, logit = 0;
  if (counts) {
    fold_run<R>(state, of_row, n, 0, lane, lanes);
    if (smoothing.spread > 0) fold_run<Sum<T>>(sum, of_row, n, 0, lane, lanes);
    logit = smoothing.target_logit(of_row, targets[row], n);
  }
  __syncwarp();  // nobody writes before this was read
  state = merge_lanes<R>(state, lanes);
  if (smoothing.spread > 0) sum = merge_lanes<Sum<T>>(sum, lanes);
  if (!inside) return;
  if (lane == 0) losses[row] = counts ? smoothing.loss(state, logit, sum, n) : Acc(0);
  if (factor == nullptr) return;
  const Acc scale = *factor, shift = state.shift();
  const Acc share = logit == logit ? 1 / state.sum : logit;  // NaN makes the row's gradient NaN
  const std::int64_t target = targets[row];
  const auto write = [&](std::int64_t i, Numbers<Acc, W> v) {
    const std::int64_t at = target - i;  // in few vectors of a row
    const bool has_target = at >= 0 && at < W;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      v.x[w] = math::rounded_exp<T>(v.x[w], shift) * share - smoothing.spread;
      if (has_target && at == w) v.x[w] -= smoothing.own;
      v.x[w] = counts ? scale * v.x[w] : Acc(0);
    }
    store_numbers<W>(of_row + i, v);
  };
  for_each_vector<W>(n, lane, lanes, write, static_cast<const T*>(of_row));
}

constexpr int kBlocksAtOnce = 3;  // of a multiprocessor

/// The same for rows of at most `vectors` vectors a thread, which are in shared memory. A block has rows of its own; the next one
/// comes into the place of what is done while the gradient is written.
template <class T, int vectors>
__global__ void __launch_bounds__(kRowThreads, kBlocksAtOnce)
    cross_entropy_held_rows(Smoothing<float> smoothing, T* x, const std::int64_t* __restrict__ targets, std::int64_t rows, int n,
                            const float* factor, float* __restrict__ losses) {
  constexpr int W = kWidth<T>, kStep = kRowThreads * W;
  using Loaded = detail::Vector<T, W>;
  extern __shared__ __align__(16) unsigned char memory[];
  Loaded* const held = reinterpret_cast<Loaded*>(memory) + threadIdx.x;  // kRowThreads apart: used by this thread alone
  const int first = static_cast<int>(threadIdx.x) * W;
  const auto fetch = [&](std::int64_t row, int u) {
    if (row < rows && first + u * kStep < n)
      __pipeline_memcpy_async(held + u * kRowThreads, x + row * n + first + u * kStep, sizeof(Loaded));
  };
  // f(x) for all elements; beyond the row they are -inf.
  const auto for_each = [&](const auto& f) {
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      const auto numbers = as_numbers<W>(held[u * kRowThreads]);
#pragma unroll
      for (const float v : numbers.x) f(v);
    }
  };
  Loaded beyond;
#pragma unroll
  for (T& v : beyond.x) v = T(lowest<float>());
#pragma unroll
  for (int u = 0; u < vectors; ++u) {
    held[u * kRowThreads] = beyond;
    fetch(blockIdx.x, u);
  }
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t target = targets[row];
    const bool counts = target != smoothing.ignore_index;
    const float logit = counts ? smoothing.target_logit(x + row * n, target, n) : 0;
    __pipeline_commit();
    __pipeline_wait_prior(0);
    float largest = lowest<float>(), exponentials = 0, sum = 0;
    for_each([&](float v) { largest = at_least(v, largest); });
    typename LogSumExp<T>::State state{merge_lanes<Extremum<T, true>>(largest, kRowThreads), 0};
    for_each([&, shift = state.shift()](float v) { exponentials += math::rounded_exp<T>(v, shift); });
    state.sum = merge_lanes<Sum<T>>(exponentials, kRowThreads);
    if (smoothing.spread > 0) {
      for (int i = first; i < n; i += kStep)
        for (const float v : as_numbers<W>(held[i / W - threadIdx.x]).x) sum += v;
      sum = merge_lanes<Sum<T>>(sum, kRowThreads);
    }
    if (threadIdx.x == 0) losses[row] = counts ? smoothing.loss(state, logit, sum, n) : 0;
    const float scale = counts && factor != nullptr ? *factor : 0, shift = counts ? state.shift() : -lowest<float>();
    const float share = !counts ? 0 : logit == logit ? scale / state.sum : logit;  // NaN makes the row's gradient NaN
    const float spread = scale * smoothing.spread;
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      auto v = as_numbers<W>(held[u * kRowThreads]);
      fetch(row + gridDim.x, u);
      if (factor == nullptr || first + u * kStep >= n) continue;
#pragma unroll
      for (float& x : v.x) x = share * math::rounded_exp<T>(x, shift) - spread;
      store_numbers<W>(x + row * n + first + u * kStep, v);
    }
    if (factor != nullptr && counts && logit == logit && target / W % kRowThreads == threadIdx.x)
      x[row * n + target] = T(share * math::rounded_exp<T>(logit, shift) - scale * smoothing.own - spread);
  }
}

/// -grad * scale at the target, 0 elsewhere.
template <class T>
__global__ void __launch_bounds__(kReduceThreads)
    nll_backward(std::int64_t ignore_index, const std::int64_t* targets, std::int64_t size, std::int64_t n,
                 const compute_t<T>* scale, const compute_t<T>* grad, T* dx) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  if (i >= size) return;
  const std::int64_t row = quotient(i, n), target = targets[row];
  const bool out_of_range = target != ignore_index && (target < 0 || target >= n);
  const compute_t<T> value = out_of_range ? std::numeric_limits<compute_t<T>>::quiet_NaN() : -*grad * *scale;
  dx[i] = T(out_of_range || (i - row * n == target && target != ignore_index) ? value : 0);
}

}  // namespace

void class_loss(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const ClassLoss& out) {
  const Device device = x.device();
  DeviceGuard guard(device);
  const std::int64_t n = x.shape().back(), rows = targets.numel(), *target = targets.data<std::int64_t>();
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Acc = compute_t<T>;
    const Smoothing<Acc> smoothing(options, n);
    const Scratch losses(static_cast<std::size_t>(rows) * sizeof(Acc), device);
    if (rows > 0 && options.normalized) {
      nll_rows<<<blocks_for(rows, kReduceThreads), kReduceThreads, 0, stream(device)>>>(smoothing, x.data<T>(), target, rows, n,
                                                                                        losses.data<Acc>());
      GLADE_CUDA_LAUNCHED();
    } else if (rows > 0) {
      const RowGrid grid(rows, ceil_div(n, kWidth<T>));
      cross_entropy_rows<<<grid.blocks, grid.threads, 0, stream(device)>>>(smoothing, x.data<T>(), target, rows, n, grid.lanes,
                                                                           out.softmax.data<Acc>(), losses.data<Acc>());
      GLADE_CUDA_LAUNCHED();
    }
    add_rows<<<1, 1024, 0, stream(device)>>>(losses.data<const Acc>(), target, rows, options.ignore_index, options.mean,
                                             out.loss.data<Acc>(), out.scale.data<Acc>());
    GLADE_CUDA_LAUNCHED();
  });
}

void class_loss_backward(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const ClassLoss& saved,
                         const Tensor& grad, const Tensor& dx) {
  const Device device = x.device();
  DeviceGuard guard(device);
  const std::int64_t n = x.shape().back(), rows = targets.numel(), *target = targets.data<std::int64_t>();
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Acc = compute_t<T>;
    const Acc *scale = saved.scale.data<Acc>(), *g = grad.data<Acc>();
    if (options.normalized) {
      nll_backward<<<blocks_for(rows * n, kReduceThreads), kReduceThreads, 0, stream(device)>>>(
          options.ignore_index, target, rows * n, n, scale, g, dx.data<T>());
    } else {
      const bool vectors = in_vectors<kWidth<T>>(n, x.data<T>()) && in_vectors<kWidth<T>>(n, dx.data<T>());
      const RowGrid grid(rows, ceil_div(n, vectors ? kWidth<T> : 1));
      const auto kernel = vectors ? cross_entropy_backward_rows<T, kWidth<T>> : cross_entropy_backward_rows<T, 1>;
      kernel<<<grid.blocks, grid.threads, 0, stream(device)>>>(Smoothing<Acc>(options, n), x.data<T>(), target, rows, n,
                                                               grid.lanes, saved.softmax.data<Acc>(), scale, g, dx.data<T>());
    }
  });
  GLADE_CUDA_LAUNCHED();
}

void class_losses(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const Tensor& losses,
                  const Tensor& factor) {
  const std::int64_t n = x.shape().back(), rows = targets.numel();
  if (rows == 0) return;
  DeviceGuard guard(x.device());
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Acc = compute_t<T>;
    const Smoothing<Acc> smoothing(options, n);
    const std::int64_t* const target = targets.data<std::int64_t>();
    const Acc* const scale = factor.defined() ? factor.data<Acc>() : nullptr;
    const bool vectors = in_vectors<kWidth<T>>(n, x.data<T>());
    const RowGrid grid(rows, ceil_div(n, kWidth<T>));
    if constexpr (sizeof(T) == 2) {
      constexpr std::int64_t each = kRowThreads * kWidth<T>;  // elements of a row for a vector of each thread
      const auto run_held = [&]<int vectors_each>(std::integral_constant<int, vectors_each>) {
        constexpr int kBytes = vectors_each * each * sizeof(T);
        const auto kernel = cross_entropy_held_rows<T, vectors_each>;
        const auto blocks = std::min<std::int64_t>(rows, kBlocksAtOnce * multiprocessor_count(x.device()));
        GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
        kernel<<<static_cast<unsigned>(blocks), kRowThreads, kBytes, stream(x.device())>>>(
            smoothing, x.data<T>(), target, rows, static_cast<int>(n), scale, losses.data<Acc>());
        GLADE_CUDA_LAUNCHED();
      };
      if (vectors && n > each && n <= 8 * each) {
        return n <= 2 * each   ? run_held(std::integral_constant<int, 2>())
               : n <= 4 * each ? run_held(std::integral_constant<int, 4>())
                               : run_held(std::integral_constant<int, 8>());
      }
    }
    const auto kernel = vectors ? cross_entropy_both_rows<T, kWidth<T>> : cross_entropy_both_rows<T, 1>;
    kernel<<<grid.blocks, grid.threads, 0, stream(x.device())>>>(smoothing, x.data<T>(), target, rows, n, grid.lanes, scale,
                                                                 losses.data<Acc>());
    GLADE_CUDA_LAUNCHED();
  });
}

}  // namespace glade::cuda
