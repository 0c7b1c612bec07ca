// softmax and log_softmax on the GPU: a group of threads passes over its row twice, first for the sum, then to write. Rows that
// its registers hold are read once.
#include <glade/ops/reduce/fold.cuh>
#include <glade/ops/reduce/reducers.cuh>
#include <glade/ops/reduce/softmax_kernels.h>

namespace glade::cuda {

namespace {

template <class T>
struct Largest {
  using State = compute_t<T>;
  __device__ static State merge(State a, State b) { return fmax(a, b); }
};

template <class T, int W, bool held>
__global__ void __launch_bounds__(kRowThreads)
    softmax_rows(SoftmaxForm form, const T* __restrict__ x, T* __restrict__ y, std::int64_t rows, std::int64_t n, int lanes) {
  using Acc = compute_t<T>;
  using R = LogSumExp<T>;
  using Vector = Numbers<Acc, W>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = row_of_thread(lanes);
  const bool is_log = form == SoftmaxForm::log;
  Row<held, W, T> elements(x + row * n, row < rows ? n : 0, lane, lanes);
  typename R::State state = R::identity();
  if constexpr (held) {  // one exponential an element, which stays in its place
    elements.for_each_vector([&](std::int64_t, const Vector& v) {
#pragma unroll
      for (const Acc element : v.x) state.largest = fmax(state.largest, element);  // NaN comes back in the sum
    });
    state.largest = merge_lanes<Largest<T>>(state.largest, lanes);
    const Acc shift = state.shift();
    elements.for_each_vector([&](std::int64_t, Vector& v) {
#pragma unroll
      for (Acc& element : v.x) {
        const Acc power = exp(element - shift);
        state.sum += power;
        if (!is_log) element = power;
      }
    });
    state.sum = merge_lanes<Sum<T>>(state.sum, lanes);
  } else {
    if (row < rows) fold_run<R>(state, x + row * n, n, 0, lane, lanes);
    state = merge_lanes<R>(state, lanes);
  }
  if (row >= rows) return;
  const Acc shift = state.shift(), scale = 1 / state.sum;
  const Acc log_sum = is_log ? log(state.sum) : Acc(0);  // apart from the shift, beside which it may be small
  elements.for_each_vector([&](std::int64_t i, Vector v) {
#pragma unroll
    for (Acc& element : v.x) element = is_log ? element - shift - log_sum : (held ? element : exp(element - shift)) * scale;
    store_numbers<W>(y + row * n + i, v);
  });
}

template <class T, int W, bool held>
__global__ void __launch_bounds__(kRowThreads)
    softmax_backward_rows(SoftmaxForm form, const T* __restrict__ grad, const T* __restrict__ y, T* __restrict__ dx,
                          std::int64_t rows, std::int64_t n, int lanes) {
  using Acc = compute_t<T>;
  using Vector = Numbers<Acc, W>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = row_of_thread(lanes), offset = row * n;
  const bool is_log = form == SoftmaxForm::log;
  Row<held, W, T> grads(grad + offset, row < rows ? n : 0, lane, lanes), results(y + offset, row < rows ? n : 0, lane, lanes);
  Acc sum = 0;
  const auto add = [&](std::int64_t, const Vector& g, const Vector& p) {
#pragma unroll
    for (int w = 0; w < W; ++w) sum += is_log ? g.x[w] : g.x[w] * p.x[w];
  };
  grads.for_each_vector(add, results);
  sum = merge_lanes<Sum<T>>(sum, lanes);
  const auto write = [&](std::int64_t i, Vector g, const Vector& p) {
#pragma unroll
    for (int w = 0; w < W; ++w) g.x[w] = is_log ? g.x[w] - exp(p.x[w]) * sum : p.x[w] * (g.x[w] - sum);
    store_numbers<W>(dx + offset + i, g);
  };
  grads.for_each_vector(write, results);
}

}  // namespace

void softmax(SoftmaxForm form, const Tensor& x, const Tensor& y) {
  const Device device = x.device();
  DeviceGuard guard(device);
  const std::int64_t n = x.shape().back(), rows = x.numel() / n;
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    constexpr int W = kWidth<T>;
    const bool vectors = in_vectors<W>(n, x.data<T>()) && in_vectors<W>(n, y.data<T>());
    const bool held = vectors && RowGrid::holds(n / W);
    const RowGrid grid(rows, ceil_div(n, vectors ? W : 1));
    const auto kernel = !vectors ? softmax_rows<T, 1, false> : held ? softmax_rows<T, W, true> : softmax_rows<T, W, false>;
    kernel<<<grid.blocks, grid.threads, 0, stream(device)>>>(form, x.data<T>(), y.data<T>(), rows, n, grid.lanes);
  });
  GLADE_CUDA_LAUNCHED();
}

void softmax_backward(SoftmaxForm form, const Tensor& grad, const Tensor& y, const Tensor& dx) {
  const Device device = y.device();
  DeviceGuard guard(device);
  const std::int64_t n = y.shape().back(), rows = y.numel() / n;
  visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
    constexpr int W = kWidth<T>;
    const bool vectors = in_vectors<W>(n, grad.data<T>()) && in_vectors<W>(n, y.data<T>()) && in_vectors<W>(n, dx.data<T>());
    const bool held = vectors && RowGrid::holds(n / W);
    const RowGrid grid(rows, ceil_div(n, vectors ? W : 1));
    const auto kernel = !vectors ? softmax_backward_rows<T, 1, false>
                        : held   ? softmax_backward_rows<T, W, true>
                                 : softmax_backward_rows<T, W, false>;
    kernel<<<grid.blocks, grid.threads, 0, stream(device)>>>(form, grad.data<T>(), y.data<T>(), dx.data<T>(), rows, n,
                                                             grid.lanes);
  });
  GLADE_CUDA_LAUNCHED();
}

}  // namespace glade::cuda
