// The normalisations on the GPU where norm_group_cuda.cu has no kernel: a group of threads has a row and passes over it twice,
// and finds it in the cache the second time.
#include <glade/core/accumulate.h>
#include <glade/core/rounded_math.h>
#include <glade/ops/norm/norm.cuh>
#include <glade/ops/reduce/reduce_kernels.h>
#include <glade/ops/reduce/reducers.cuh>

namespace glade::cuda {

using namespace norms;

namespace {

constexpr std::size_t kSharedBytes = 48 * 1024;  // what a block may have without asking

constexpr int kBlocks = 4;  // of a multiprocessor, for backward

template <class T, class P, int W>
__global__ void __launch_bounds__(kRowThreads)
    norm_rows(Inputs<T, P> in, T* __restrict__ y, std::int64_t rows, std::int64_t d, int lanes) {
  using Acc = compute_t<T>;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t row = row_of_thread(lanes), offset = row * d, n = row < rows ? d : 0;
  Acc mean = 0, squares = 0;
  if (in.mean != nullptr) {
    auto state = Variance<T>::identity();
    if (row < rows) fold_run<Variance<T>>(state, in.x + offset, d, 0, lane, lanes);
    state = merge_lanes<Variance<T>>(state, lanes);
    mean = state.mean;
    squares = state.m2;
  } else {
    const auto add = [&](std::int64_t, const Numbers<Acc, W>& v) {
#pragma unroll
      for (const Acc& x : v.x) squares += x * x;
    };
    for_each_vector<W>(n, lane, lanes, add, in.x + offset);
    squares = merge_lanes<Sum<T>>(squares, lanes);
  }
  if (row >= rows) return;
  const Acc rstd = 1 / math::sqrt(squares / static_cast<Acc>(d) + in.eps);
  if (lane == 0) {
    in.rstd[row] = rstd;
    if (in.mean != nullptr) in.mean[row] = mean;
  }
  const auto write = [&](std::int64_t i, Numbers<Acc, W> v) {
#pragma unroll
    for (Acc& x : v.x) x = (x - mean) * rstd;
    scale_and_shift(in, i, v);
    if (in.gate != nullptr) {
      const auto gate = load_numbers<W>(in.gate + offset + i);
#pragma unroll
      for (int w = 0; w < W; ++w) v.x[w] *= math::rounded_silu<T>(gate.x[w]);
    }
    store_numbers<W>(y + offset + i, v);
  };
  for_each_vector<W>(n, lane, lanes, write, in.x + offset);
}

/// The two means that a row's gradient needs, as sums.
template <class Acc>
struct RowSums {
  struct State {
    Acc along, level;  ///< of g * weight * h, and of g * weight
  };
  __device__ static State merge(const State& a, const State& b) { return {a.along + b.along, a.level + b.level}; }
};

/// Every group of threads takes every so many rows and keeps sums for the parameters' gradients, each thread those of its
/// own columns: in shared memory [groups, W, d / W] (for weight, then for bias; this order keeps neighbours on different
/// banks), or in the parts themselves where that is too small. There is one group a block then.
template <class T, class P, int W>
__global__ void __launch_bounds__(kReduceThreads, kBlocks)
    norm_backward_rows(Inputs<T, P> in, const T* __restrict__ grad, Outputs<T> out, std::int64_t rows, std::int64_t d, int lanes,
                       bool shared) {
  using Acc = compute_t<T>;
  using Sums = RowSums<Acc>;
  extern __shared__ __align__(16) unsigned char memory[];
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), group = static_cast<int>(threadIdx.x) / lanes;
  const int groups = kReduceThreads / lanes;
  const bool wants_weight = out.weight_parts != nullptr, wants_bias = out.bias_parts != nullptr;
  Acc* const part_w = out.weight_parts + blockIdx.x * d;
  Acc* const part_b = out.bias_parts + blockIdx.x * d;
  Acc* const shared_w = reinterpret_cast<Acc*>(memory);
  Acc* const shared_b = shared_w + (wants_weight ? groups * d : 0);
  Acc* const dw = shared ? shared_w + group * d : part_w;
  Acc* const db = shared ? shared_b + group * d : part_b;
  const std::int64_t vector_stride = shared ? 1 : W, element_stride = shared ? d / W : 1;
  for (std::int64_t i = lane; i < d; i += lanes) {
    if (wants_weight) dw[i] = 0;
    if (wants_bias) db[i] = 0;
  }
  __syncthreads();

  const std::int64_t stride = std::int64_t{gridDim.x} * groups;
  for (std::int64_t first = std::int64_t{blockIdx.x} * groups; first < rows; first += stride) {
    const std::int64_t row = first + group, offset = row * d;
    const bool inside = row < rows;
    const Acc mean = inside && in.mean != nullptr ? in.mean[row] : Acc(0), rstd = inside ? in.rstd[row] : Acc(0);
    // From x and the gradient of y to h and the gradient of h * weight + bias.
    const auto prepare = [&](std::int64_t i, Numbers<Acc, W>& h, Numbers<Acc, W>& g) {
#pragma unroll
      for (Acc& x : h.x) x = (x - mean) * rstd;
      if (in.gate == nullptr) return;
      const auto gate = load_numbers<W>(in.gate + offset + i);
#pragma unroll
      for (int w = 0; w < W; ++w) g.x[w] *= math::silu(gate.x[w]);
    };
    const auto times_weight = [&](std::int64_t i, Numbers<Acc, W> g) {
      if (in.weight == nullptr) return g;
      const auto weight = load_numbers<W>(in.weight + i);
#pragma unroll
      for (int w = 0; w < W; ++w) g.x[w] *= static_cast<Acc>(weight.x[w]);
      return g;
    };
    typename Sums::State sums{0, 0};
    const auto add = [&](std::int64_t i, Numbers<Acc, W> h, Numbers<Acc, W> g) {
      prepare(i, h, g);
      g = times_weight(i, g);
#pragma unroll
      for (int w = 0; w < W; ++w) {
        sums.along += g.x[w] * h.x[w];
        sums.level += g.x[w];
      }
    };
    if (inside) for_each_vector<W>(d, lane, lanes, add, in.x + offset, grad + offset);
    sums = merge_lanes<Sums>(sums, lanes);
    if (!inside) continue;
    const Acc along = sums.along / static_cast<Acc>(d), level = in.mean != nullptr ? sums.level / static_cast<Acc>(d) : Acc(0);
    const auto write = [&](std::int64_t i, Numbers<Acc, W> h, Numbers<Acc, W> g) {
      const Numbers<Acc, W> of_y = g;
      prepare(i, h, g);
      if (out.gate != nullptr) {
        Numbers<Acc, W> dgate = h;
        scale_and_shift(in, i, dgate);
        const auto gate = load_numbers<W>(in.gate + offset + i);
#pragma unroll
        for (int w = 0; w < W; ++w) dgate.x[w] *= of_y.x[w] * math::silu_derivative(gate.x[w]);
        store_numbers<W>(out.gate + offset + i, dgate);
      }
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const std::int64_t at = i / W * vector_stride + w * element_stride;
        if (wants_weight) dw[at] += g.x[w] * h.x[w];
        if (wants_bias) db[at] += g.x[w];
      }
      g = times_weight(i, g);
#pragma unroll
      for (int w = 0; w < W; ++w) g.x[w] = rstd * (g.x[w] - level - h.x[w] * along);
      store_numbers<W>(out.x + offset + i, g);
    };
    for_each_vector<W>(d, lane, lanes, write, in.x + offset, grad + offset);
  }
  if (!shared) return;
  __syncthreads();
  const auto merge = [&](const Acc* of_groups, Acc* part) {
    for (std::int64_t i = threadIdx.x; i < d; i += kReduceThreads) {
      Acc sum = 0;
      for (int k = 0; k < groups; ++k) sum += of_groups[k * d + i / W + i % W * element_stride];
      part[i] = sum;
    }
  };
  if (wants_weight) merge(shared_w, part_w);
  if (wants_bias) merge(shared_b, part_b);
}

template <class T, class P>
void launch_backward(const Inputs<T, P>& in, const Tensor& grad, const NormGradients& gradients) {
  using Acc = compute_t<T>;
  const Device device = grad.device();
  const std::int64_t d = grad.shape().back(), rows = grad.numel() / d;
  Outputs<T> out{.x = gradients.x.data<T>(), .gate = pointer<T>(gradients.gate)};
  const bool vectors = in_vectors<kWidth<T>>(in, d, {grad.data<T>(), out.x, out.gate});
  const int lanes = lanes_for(ceil_div(d, vectors ? kWidth<T> : 1), kReduceThreads), groups = kReduceThreads / lanes;

  // Enough rows for a block that the parts are little beside them, but blocks for the whole GPU where there are rows.
  const std::int64_t fill = kBlocks * multiprocessor_count(device), most = ceil_div(rows, groups);
  const std::int64_t blocks = std::min({most, fill, std::max<std::int64_t>(ceil_div(most, 8), multiprocessor_count(device))});
  const int parameters = gradients.weight.defined() + gradients.bias.defined();
  const std::size_t bytes = static_cast<std::size_t>(parameters * groups * d) * sizeof(Acc);
  const bool shared = groups > 1 || bytes <= kSharedBytes;
  const Tensor parts = empty({2, blocks, d}, {dtype_of<Acc>(), device});
  const Tensor weight_parts = parts.as_strided({blocks, d}, {d, 1}, 0),
               bias_parts = parts.as_strided({blocks, d}, {d, 1}, blocks * d);
  if (gradients.weight.defined()) out.weight_parts = weight_parts.data<Acc>();
  if (gradients.bias.defined()) out.bias_parts = bias_parts.data<Acc>();
  const auto kernel = vectors ? norm_backward_rows<T, P, kWidth<T>> : norm_backward_rows<T, P, 1>;
  kernel<<<static_cast<unsigned>(blocks), kReduceThreads, shared ? bytes : 0, stream(device)>>>(in, grad.data<T>(), out, rows, d,
                                                                                                lanes, shared);
  GLADE_CUDA_LAUNCHED();
  const ReduceGeometry columns{1, blocks, d};
  if (gradients.weight.defined()) reduce(ReduceOp::sum, columns, weight_parts, gradients.weight);
  if (gradients.bias.defined()) reduce(ReduceOp::sum, columns, bias_parts, gradients.bias);
}

}  // namespace

void norm(const NormInputs& given, const NormStatistics& statistics, const Tensor& y, const Tensor& sum) {
  const Device device = y.device();
  DeviceGuard guard(device);
  if (forward_in_groups(given, statistics, y, sum)) return;
  NormInputs in = given;
  if (in.residual.defined()) {
    add_data(sum, in.x, in.residual);
    in.x = sum;
    in.residual = {};
  }
  const std::int64_t d = y.shape().back(), rows = y.numel() / d;
  visit_types(in, [&]<class T, class P>(TypeTag<T>, TypeTag<P>) {
    constexpr int W = kWidth<T>;
    const auto inputs = pointers<T, P>(in, statistics);
    const bool vectors = in_vectors<W>(inputs, d, {y.data<T>()});
    const RowGrid grid(rows, ceil_div(d, vectors ? W : 1));
    const auto kernel = vectors ? norm_rows<T, P, W> : norm_rows<T, P, 1>;
    kernel<<<grid.blocks, grid.threads, 0, stream(device)>>>(inputs, y.data<T>(), rows, d, grid.lanes);
  });
  GLADE_CUDA_LAUNCHED();
}

void norm_backward(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const Tensor& grad_sum,
                   const NormGradients& gradients) {
  DeviceGuard guard(grad.device());
  if (backward_in_groups(in, statistics, grad, grad_sum, gradients)) return;
  NormGradients rows = gradients;
  if (rows.gate.defined() && !rows.gate.is_contiguous()) rows.gate = empty_like(in.gate);
  visit_types(in, [&]<class T, class P>(TypeTag<T>, TypeTag<P>) { launch_backward(pointers<T, P>(in, statistics), grad, rows); });
  if (rows.gate.defined() && !rows.gate.is_same(gradients.gate)) copy_data(gradients.gate, rows.gate);
  if (grad_sum.defined()) add_data(gradients.x, gradients.x, grad_sum);
  if (gradients.y.defined()) norm(in, statistics, gradients.y, {});
}

}  // namespace glade::cuda
