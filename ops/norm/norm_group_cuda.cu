// The RMS norms where a group of threads has a vector of a row each: everything is read once, the next row while this one is
// computed, and the weight's gradient is gathered in registers over all rows that a group has.
#include <glade/autograd/running_pass.h>
#include <glade/core/loops.h>
#include <glade/core/rounded_math.h>
#include <glade/ops/norm/norm.cuh>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade::cuda::norms {

namespace {

constexpr int kWarps = kReduceThreads / 32;
constexpr std::int64_t kMostRows = std::int64_t{1} << 31;  // of a gate: see FastDivisor

/// The threads of a group, and what they have of a row of d elements, `width` each.
struct Group {
  int lanes, number, count;  ///< of threads; which of the block's `count` groups
  int lane, column;
  bool inside;  ///< whether the row reaches to this thread

  __device__ Group(int threads, int d, int width) : lanes(threads) {
    const int shift = __ffs(lanes) - 1;
    number = static_cast<int>(threadIdx.x) >> shift;
    count = kReduceThreads >> shift;
    lane = static_cast<int>(threadIdx.x) & (lanes - 1);
    column = lane * width;
    inside = column < d;
  }

  /// The sum over the group, the same bits in all of its threads. All threads of the block call it, with turns 0, 1, 2, ...
  template <class Acc>
  __device__ Acc sum(Acc x, int turn) const {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    if (lanes == 32) return x;
    __shared__ Acc of_warps[2][kWarps];  // in turns: the last sums may still be read
    Acc* const sums = of_warps[turn & 1];
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = lanes / 32, first = warp & -warps;
    if (threadIdx.x % 32 == 0) sums[warp] = x;
    __syncthreads();
    x = sums[first];
#pragma unroll
    for (int i = 1; i < kWarps; ++i)
      if (i < warps) x += sums[first + i];
    return x;
  }
};

template <int W, class P>
__device__ Numbers<compute_t<P>, W> load_weight(const P* weight, const Group& group) {
  if (weight != nullptr && group.inside) return load_numbers<W>(weight + group.column);
  Numbers<compute_t<P>, W> ones;
#pragma unroll
  for (auto& x : ones.x) x = 1;
  return ones;
}

/// A thread's part of a row, zeros where it has none.
template <class T>
__device__ uint4 load(const T* from, bool has) {
  return has ? *reinterpret_cast<const uint4*>(from) : uint4{};
}

template <class T, class P>
__global__ void __launch_bounds__(kReduceThreads, 4)
    gated_rows(Inputs<T, P> in, T* __restrict__ y, std::int64_t rows, int d, int lanes) {
  using Acc = compute_t<T>;
  constexpr int W = kWidth<T>;
  const Group group(lanes, d, W);
  const auto weight = load_weight<W>(in.weight, group);
  uint4 next_x, next_gate;
  const auto fetch = [&](std::int64_t row) {
    const bool has = row < rows && group.inside;
    next_x = load(in.x + row * d + group.column, has);
    next_gate = load(in.gate + row * d + group.column, has);
  };
  const std::int64_t step = std::int64_t{gridDim.x} * group.count;
  std::int64_t row = std::int64_t{blockIdx.x} * group.count + group.number;
  fetch(row);
  for (int turn = 0; row - group.number < rows; row += step, ++turn) {
    auto v = as_numbers<T>(next_x);
    const auto gate = as_numbers<T>(next_gate);
    fetch(row + step);
    Acc squares = 0;
#pragma unroll
    for (const Acc x : v.x) squares += x * x;
    const Acc rstd = 1 / math::sqrt(group.sum(squares, turn) / static_cast<Acc>(d) + in.eps);
    if (row >= rows || !group.inside) continue;
    if (group.lane == 0) in.rstd[row] = rstd;
#pragma unroll
    for (int w = 0; w < W; ++w) v.x[w] = v.x[w] * rstd * weight.x[w] * math::rounded_silu<T>(gate.x[w]);
    store_numbers<W>(y + row * d + group.column, v);
  }
}

/// a + b, never as part of a multiplication: as by an operation of its own.
template <class Acc>
__device__ Acc add_alone(Acc a, Acc b) {
  if constexpr (sizeof(Acc) == 4) return __fadd_rn(a, b);
  else return a + b;
}

template <class T, class P, bool gated>
__global__ void __launch_bounds__(kReduceThreads, gated ? 2 : 3)
    backward_rows(Inputs<T, P> in, const T* grad, Outputs<T> out, std::int64_t rows, int d, int lanes) {
  using Acc = compute_t<T>;
  constexpr int W = kWidth<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  Acc* const sums = reinterpret_cast<Acc*>(memory);  // [d]
  const Group group(lanes, d, W);
  const auto weight = load_weight<W>(in.weight, group);
  const T* const more = gated ? in.gate : out.grad_sum;
  uint4 next_x, next_grad, next_more;
  Acc next_rstd;
  const auto fetch = [&](std::int64_t row) {
    const bool has = row < rows && group.inside;
    const std::int64_t at = row * d + group.column;
    next_x = load(in.x + at, has);
    next_grad = load(grad + at, has);
    next_more = load(more + at, has && more != nullptr);
    next_rstd = has ? in.rstd[row] : Acc(0);
  };
  Numbers<Acc, W> dw = {};
  const std::int64_t step = std::int64_t{gridDim.x} * group.count;
  std::int64_t row = std::int64_t{blockIdx.x} * group.count + group.number;
  fetch(row);
  for (int turn = 0; row - group.number < rows; row += step, ++turn) {
    auto h = as_numbers<T>(next_x);
    const auto of_y = as_numbers<T>(next_grad), z = as_numbers<T>(next_more);
    const Acc rstd = next_rstd;
    fetch(row + step);
    Numbers<Acc, W> inner, s;  // the gradient of h * weight; sigmoid(z)
    Acc along = 0;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      h.x[w] *= rstd;
      inner.x[w] = of_y.x[w];
      if constexpr (gated) {
        s.x[w] = math::rounded_sigmoid<T>(z.x[w]);
        inner.x[w] *= z.x[w] * s.x[w];
      }
      dw.x[w] += inner.x[w] * h.x[w];
      inner.x[w] *= weight.x[w];
      along += inner.x[w] * h.x[w];
    }
    along = group.sum(along, turn) / static_cast<Acc>(d);
    if (row >= rows || !group.inside) continue;
    const std::int64_t at = row * d + group.column;
    Numbers<Acc, W> dx, dz, y;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      dx.x[w] = rstd * (inner.x[w] - h.x[w] * along);
      y.x[w] = h.x[w] * weight.x[w];
      if constexpr (gated) {
        dz.x[w] = of_y.x[w] * y.x[w] * s.x[w] * (1 + z.x[w] * (1 - s.x[w]));
        y.x[w] *= z.x[w] * s.x[w];
      } else if (more != nullptr) {
        dx.x[w] = add_alone(math::rounded<T>(dx.x[w]), z.x[w]);
      }
    }
    store_numbers<W>(out.x + at, dx);
    if constexpr (gated) store_numbers<W>(out.gate_row(row, d) + group.column, dz);
    if (out.y != nullptr) store_numbers<W>(out.y + at, y);
  }
  if (out.weight_parts == nullptr) return;
  // The block's groups one after the other, so that the sum's order is always the same.
  for (int turn = 0; turn < group.count; ++turn) {
    if (turn == group.number && group.inside) {
#pragma unroll
      for (int w = 0; w < W; ++w) sums[group.column + w] = turn == 0 ? dw.x[w] : sums[group.column + w] + dw.x[w];
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < d; i += kReduceThreads)
    out.weight_parts[blockIdx.x * std::int64_t{d} + i] = sums[i];
}

/// As many blocks as run at once, but no more than there are rows for.
template <class Kernel>
unsigned blocks_at_once(Kernel kernel, std::size_t shared_bytes, std::int64_t rows, int lanes, Device device) {
  int blocks_each = 1;  // of a multiprocessor
  GLADE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_each, kernel, kReduceThreads, shared_bytes));
  return static_cast<unsigned>(
      std::min<std::int64_t>(ceil_div(rows * lanes, kReduceThreads), blocks_each * multiprocessor_count(device)));
}

/// The threads that share a row of d elements.
template <class T>
int lanes_of(std::int64_t d) {
  return std::max(32, lanes_for(d / kWidth<T>, kReduceThreads));
}

/// Whether groups can have rows of d elements of all that is defined.
template <class T, class P>
bool fits(const Inputs<T, P>& in, std::int64_t d, std::initializer_list<const T*> others) {
  return sizeof(T) <= 4 && d <= kWidth<T> * kReduceThreads && in_vectors<kWidth<T>>(in, d, others);
}

}  // namespace

bool gated_in_groups(const NormInputs& in, const NormStatistics& statistics, const Tensor& y) {
  if (!in.gate.defined() || in.centered || in.bias.defined() || in.residual.defined()) return false;
  const std::int64_t d = y.shape().back(), rows = y.numel() / d;
  bool taken = false;
  visit_types(in, [&]<class T, class P>(TypeTag<T>, TypeTag<P>) {
    const auto inputs = pointers<T, P>(in, statistics);
    taken = fits(inputs, d, {y.data<T>()});
    if (!taken) return;
    const int lanes = lanes_of<T>(d);
    const auto kernel = gated_rows<T, P>;
    kernel<<<blocks_at_once(kernel, 0, rows, lanes, y.device()), kReduceThreads, 0, stream(y.device())>>>(
        inputs, y.data<T>(), rows, static_cast<int>(d), lanes);
    GLADE_CUDA_LAUNCHED();
  });
  return taken;
}

bool backward_in_groups(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const Tensor& grad_sum,
                        const NormGradients& gradients) {
  if (in.centered || in.bias.defined() || (in.gate.defined() && grad_sum.defined())) return false;
  const Device device = grad.device();
  const std::int64_t d = grad.shape().back(), rows = grad.numel() / d;
  bool taken = false;
  visit_types(in, [&]<class T, class P>(TypeTag<T>, TypeTag<P>) {
    using Acc = compute_t<T>;
    const auto inputs = pointers<T, P>(in, statistics);
    Outputs<T> out{.x = gradients.x.data<T>(),
                   .gate = pointer<T>(gradients.gate),
                   .grad_sum = pointer<T>(grad_sum),
                   .y = pointer<T>(gradients.y),
                   .gate_step = d};
    if (gradients.gate.defined() && rows > kMostRows) return;
    if (gradients.gate.defined() && !gradients.gate.is_contiguous()) {
      const LoopPlan<1> plan = plan_loop(gradients.gate.shape(), gradients.gate);
      if (plan.ndim != 2 || plan.strides[0][0] != 1 || plan.strides[0][1] % kWidth<T> != 0) return;
      out.gate_rows = detail::FastDivisor(static_cast<std::uint32_t>(plan.shape[0] / d));
      out.gate_step = plan.strides[0][1];
    }
    taken = fits(inputs, d, {grad.data<T>(), out.x, out.gate, out.grad_sum, out.y});
    if (!taken) return;
    const int lanes = lanes_of<T>(d);
    const std::size_t bytes = static_cast<std::size_t>(d) * sizeof(Acc);
    const auto kernel = in.gate.defined() ? backward_rows<T, P, true> : backward_rows<T, P, false>;
    const unsigned blocks = blocks_at_once(kernel, bytes, rows, lanes, device);
    const Tensor parts = gradients.weight.defined() ? empty({blocks, d}, {dtype_of<Acc>(), device}) : Tensor();
    out.weight_parts = pointer<Acc>(parts);
    kernel<<<blocks, kReduceThreads, bytes, stream(device)>>>(inputs, grad.data<T>(), out, rows, static_cast<int>(d), lanes);
    GLADE_CUDA_LAUNCHED();
    if (!parts.defined()) return;
    const auto add_up = [blocks, d, parts](const Tensor& sums) { reduce(ReduceOp::sum, {1, blocks, d}, parts, sums); };
    gradients.defer_weight ? autograd::defer(gradients.weight, add_up) : add_up(gradients.weight);
  });
  return taken;
}

}  // namespace glade::cuda::norms
