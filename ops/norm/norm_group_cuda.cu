// The RMS norms where a group of threads has a vector of a row each: everything is read once, the next row while this one is
// computed, and the weight's gradient is gathered in registers over all rows that a group has.
#include <glade/autograd/aside.h>
#include <glade/core/loops.h>
#include <glade/core/rounded_math.h>
#include <glade/ops/norm/norm.cuh>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade::cuda::norms {

namespace {

constexpr int kWarps = kReduceThreads / 32;
constexpr std::int64_t kMostRows = std::int64_t{1} << 32;

/// The threads of a group, and what they have of a row.
template <int W>
struct Group {
  int lanes, number, count;  ///< of threads; which of the block's `count` groups
  int lane, column;
  bool inside;  ///< whether the row reaches to this thread

  __device__ Group(int threads, int d) : lanes(threads) {
    const int shift = __ffs(lanes) - 1;
    number = static_cast<int>(threadIdx.x) >> shift;
    count = kReduceThreads >> shift;
    lane = static_cast<int>(threadIdx.x) & (lanes - 1);
    column = lane * W;
    inside = column < d;
  }

  /// The sum over the group, the same bits in all of its threads. All threads of the block call it, with turns 0, 1, 2, ...
  template <class Acc>
  __device__ Acc sum(Acc x, int turn) const {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    if (lanes == 32) return x;
    __shared__ Acc of_warp[2][kWarps];  // in turns: the last sums may still be read
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = lanes / 32, first = warp / warps * warps;
    if (threadIdx.x % 32 == 0) of_warp[turn & 1][warp] = x;
    __syncthreads();
    x = of_warp[turn & 1][first];
    for (int i = 1; i < warps; ++i) x += of_warp[turn & 1][first + i];
    return x;
  }
};

template <int W, class P>
__device__ Numbers<compute_t<P>, W> load_weight(const P* weight, const Group<W>& group) {
  if (weight != nullptr && group.inside) return load_numbers<W>(weight + group.column);
  Numbers<compute_t<P>, W> ones;
#pragma unroll
  for (auto& x : ones.x) x = 1;
  return ones;
}

template <class T, class P, int W>
__global__ void __launch_bounds__(kReduceThreads)
    gated_rows(Inputs<T, P> in, T* __restrict__ y, std::int64_t rows, int d, int lanes) {
  using Acc = compute_t<T>;
  using Loaded = detail::Vector<T, W>;
  const Group<W> group(lanes, d);
  const auto weight = load_weight<W>(in.weight, group);
  Loaded next_x = {}, next_gate = {};
  const auto fetch = [&](std::int64_t row) {
    if (row >= rows || !group.inside) return;
    next_x = *reinterpret_cast<const Loaded*>(in.x + row * d + group.column);
    next_gate = *reinterpret_cast<const Loaded*>(in.gate + row * d + group.column);
  };
  const std::int64_t step = std::int64_t{gridDim.x} * group.count;
  std::int64_t row = std::int64_t{blockIdx.x} * group.count + group.number;
  fetch(row);
  for (int turn = 0; row - group.number < rows; row += step, ++turn) {
    auto v = as_numbers<W>(next_x);
    const auto gate = as_numbers<W>(next_gate);
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

template <class T, class P, int W, bool gated>
__global__ void __launch_bounds__(kReduceThreads, gated ? 2 : 3)
    backward_rows(Inputs<T, P> in, const T* grad, Outputs<T> out, std::int64_t rows, int d, int lanes) {
  using Acc = compute_t<T>;
  using Loaded = detail::Vector<T, W>;
  extern __shared__ __align__(16) unsigned char memory[];
  Acc* const sums = reinterpret_cast<Acc*>(memory);  // [d]
  const Group<W> group(lanes, d);
  const T* const more = gated ? in.gate : out.grad_sum;
  Loaded next_x = {}, next_grad = {}, next_more = {};
  Acc next_rstd = 0;
  const auto fetch = [&](std::int64_t row) {
    if (row >= rows || !group.inside) return;
    const std::int64_t at = row * d + group.column;
    next_x = *reinterpret_cast<const Loaded*>(in.x + at);
    next_grad = *reinterpret_cast<const Loaded*>(grad + at);
    if (more != nullptr) next_more = *reinterpret_cast<const Loaded*>(more + at);
    next_rstd = in.rstd[row];
  };
  Numbers<Acc, W> dw = {};
  const std::int64_t step = std::int64_t{gridDim.x} * group.count;
  std::int64_t row = std::int64_t{blockIdx.x} * group.count + group.number;
  fetch(row);
  for (int turn = 0; row - group.number < rows; row += step, ++turn) {
    auto h = as_numbers<W>(next_x);
    const Loaded of_y = next_grad, z = next_more;
    const Acc rstd = next_rstd;
    const bool writes = row < rows && group.inside;
    if (!writes) h = {};
    fetch(row + step);
    Numbers<Acc, W> inner, s;  // the gradient of h * weight; sigmoid(z)
    Acc along = 0;
    {
      const auto weight = load_weight<W>(in.weight, group);  // again and again: registers are dearer than the cache
#pragma unroll
      for (int w = 0; w < W; ++w) {
        h.x[w] *= rstd;
        inner.x[w] = Acc(of_y.x[w]);
        if constexpr (gated) {
          s.x[w] = math::rounded_sigmoid<T>(Acc(z.x[w]));
          inner.x[w] *= Acc(z.x[w]) * s.x[w];
        }
        dw.x[w] += inner.x[w] * h.x[w];
        along += inner.x[w] * weight.x[w] * h.x[w];
      }
    }
    along = group.sum(along, turn) / static_cast<Acc>(d);
    if (!writes) continue;
    const std::int64_t at = row * d + group.column;
    const auto weight = load_weight<W>(in.weight, group);
    Loaded dx, dz, y;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const Acc of_x = rstd * (inner.x[w] * weight.x[w] - h.x[w] * along), scaled = h.x[w] * weight.x[w];
      if constexpr (gated) {
        const Acc gate = Acc(z.x[w]);
        dx.x[w] = T(of_x);
        dz.x[w] = T(Acc(of_y.x[w]) * scaled * s.x[w] * (1 + gate * (1 - s.x[w])));
        y.x[w] = T(scaled * (gate * s.x[w]));
      } else {
        dx.x[w] = more != nullptr ? T(add_alone(Acc(T(of_x)), Acc(z.x[w]))) : T(of_x);
        y.x[w] = T(scaled);
      }
    }
    detail::store(out.x + at, dx);
    if constexpr (gated) detail::store(out.gate_row(row, d) + group.column, dz);
    if (out.y != nullptr) detail::store(out.y + at, y);
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
template <int W>
int lanes_of(std::int64_t d) {
  return std::max(32, lanes_for(d / W, kReduceThreads));
}

/// Whether groups can have rows of d elements of all that is defined.
template <int W, class T, class P>
bool fits(const Inputs<T, P>& in, std::int64_t d, std::initializer_list<const T*> others) {
  return sizeof(T) <= 4 && d <= W * kReduceThreads && in_vectors<W>(in, d, others);
}

}  // namespace

bool gated_in_groups(const NormInputs& in, const NormStatistics& statistics, const Tensor& y) {
  if (!in.gate.defined() || in.centered || in.bias.defined() || in.residual.defined()) return false;
  const std::int64_t d = y.shape().back(), rows = y.numel() / d;
  bool taken = false;
  visit_types(in, [&]<class T, class P>(TypeTag<T>, TypeTag<P>) {
    constexpr int W = kWidth<T>;
    const auto inputs = pointers<T, P>(in, statistics);
    taken = fits<W>(inputs, d, {y.data<T>()});
    if (!taken) return;
    const int lanes = lanes_of<W>(d);
    const auto kernel = gated_rows<T, P, W>;
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
    constexpr int W = kWidth<T>;
    const auto inputs = pointers<T, P>(in, statistics);
    Outputs<T> out{.x = gradients.x.data<T>(),
                   .gate = pointer<T>(gradients.gate),
                   .grad_sum = pointer<T>(grad_sum),
                   .y = pointer<T>(gradients.y)};
    if (gradients.gate.defined() && !gradients.gate.is_contiguous()) {
      const LoopPlan<1> plan = plan_loop(gradients.gate.shape(), gradients.gate);
      if (plan.ndim != 2 || plan.strides[0][0] != 1 || plan.strides[0][1] % W != 0 || rows > kMostRows) return;
      out.gate_rows = static_cast<unsigned>(plan.shape[0] / d);
      out.gate_step = plan.strides[0][1];
    }
    taken = fits<W>(inputs, d, {grad.data<T>(), out.x, out.gate, out.grad_sum, out.y});
    if (!taken) return;
    const int lanes = lanes_of<W>(d);
    const std::size_t bytes = static_cast<std::size_t>(d) * sizeof(Acc);
    const auto kernel = in.gate.defined() ? backward_rows<T, P, W, true> : backward_rows<T, P, W, false>;
    const unsigned blocks = blocks_at_once(kernel, bytes, rows, lanes, device);
    const Tensor parts = gradients.weight.defined() ? empty({blocks, d}, {dtype_of<Acc>(), device}) : Tensor();
    out.weight_parts = pointer<Acc>(parts);
    kernel<<<blocks, kReduceThreads, bytes, stream(device)>>>(inputs, grad.data<T>(), out, rows, static_cast<int>(d), lanes);
    GLADE_CUDA_LAUNCHED();
    if (!parts.defined()) return;
    const auto add_up = [blocks, d, parts, weight = gradients.weight] { reduce(ReduceOp::sum, {1, blocks, d}, parts, weight); };
    gradients.aside ? autograd::run_aside(device, add_up) : add_up();
  });
  return taken;
}

}  // namespace glade::cuda::norms
