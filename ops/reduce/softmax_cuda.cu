// softmax and log_softmax on the GPU: a group of threads passes over its row twice, first for the sum, then to write. Rows that
// its registers hold are read once.
#include <glade/ops/reduce/fold.cuh>
#include <glade/ops/reduce/reducers.cuh>
#include <glade/ops/reduce/softmax_kernels.h>

namespace glade::cuda {

namespace {

template <class T, int W, bool kHeld>
__global__ void __launch_bounds__(kRowThreads)
    softmax_rows(SoftmaxForm form, const T* __restrict__ x, T* __restrict__ y, std::int64_t rows, std::int64_t n, int lanes) {
  using Acc = compute_t<T>;
  using R = LogSumExp<T>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / lanes;
  const Row<W, T, kHeld> elements(x + row * n, row < rows ? n : 0, lane, lanes);
  typename R::State state = R::identity();
  elements.template fold<R>(state);
  state = merge_lanes<R>(state, lanes);
  if (row >= rows) return;
  const bool is_log = form == SoftmaxForm::log;
  const Acc shift = is_log ? state.log_sum() : state.shift(), scale = 1 / state.sum;
  const auto write = [&](std::int64_t i, Numbers<Acc, W> v) {
#pragma unroll
    for (Acc& element : v.x) element = is_log ? element - shift : exp(element - shift) * scale;
    store_numbers<W>(y + row * n + i, v);
  };
  elements.for_each_vector(write);
}

template <class T, int W, bool kHeld>
__global__ void __launch_bounds__(kRowThreads)
    softmax_backward_rows(SoftmaxForm form, const T* __restrict__ grad, const T* __restrict__ y, T* __restrict__ dx,
                          std::int64_t rows, std::int64_t n, int lanes) {
  using Acc = compute_t<T>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / lanes, offset = row * n;
  const bool is_log = form == SoftmaxForm::log;
  Acc sum = 0;
  const auto add = [&](std::int64_t, const Numbers<Acc, W>& g, const Numbers<Acc, W>& p) {
#pragma unroll
    for (int w = 0; w < W; ++w) sum += is_log ? g.x[w] : g.x[w] * p.x[w];
  };
  const std::int64_t size = row < rows ? n : 0;
  const Row<W, T, kHeld> grads(grad + offset, size, lane, lanes), results(y + offset, size, lane, lanes);
  grads.for_each_vector(add, results);
  sum = merge_lanes<Sum<T>>(sum, lanes);
  if (row >= rows) return;
  const auto write = [&](std::int64_t i, Numbers<Acc, W> g, const Numbers<Acc, W>& p) {
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
    const RowGrid grid(rows, ceil_div(n, vectors ? W : 1));
    const auto kernel = !vectors ? softmax_rows<T, 1, false> : grid.held ? softmax_rows<T, W, true> : softmax_rows<T, W, false>;
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
    const RowGrid grid(rows, ceil_div(n, vectors ? W : 1));
    const auto kernel = !vectors    ? softmax_backward_rows<T, 1, false>
                        : grid.held ? softmax_backward_rows<T, W, true>
                                    : softmax_backward_rows<T, W, false>;
    kernel<<<grid.blocks, grid.threads, 0, stream(device)>>>(form, grad.data<T>(), y.data<T>(), dx.data<T>(), rows, n,
                                                             grid.lanes);
  });
  GLADE_CUDA_LAUNCHED();
}

}  // namespace glade::cuda
