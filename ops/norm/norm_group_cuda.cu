// The norms where a group of threads holds a row in registers: everything is read once, the next row while this one is computed,
// and the weight's gradient is gathered in registers over all rows that a group has.
#include <glade/autograd/running_pass.h>
#include <glade/core/loops.h>
#include <glade/core/rounded_math.h>
#include <glade/ops/norm/norm.cuh>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade::cuda::norms {

namespace {

constexpr int kWarps = kReduceThreads / 32;
constexpr std::int64_t kMostRows = std::int64_t{1} << 31;  // of a gate: see FastDivisor

/// The threads of a group, and what they have of a row of d elements: every `lanes`th vector of `width`, of up to V.
struct Group {
  int lanes, number, count;  ///< of threads; which of the block's `count` groups
  int lane, d, width;

  __device__ Group(int threads, int row, int elements) : lanes(threads), d(row), width(elements) {
    const int shift = __ffs(lanes) - 1;
    number = static_cast<int>(threadIdx.x) >> shift;
    count = kReduceThreads >> shift;
    lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  }
  __device__ int column(int u) const { return (lane + u * lanes) * width; }
  __device__ bool inside(int u) const { return column(u) < d; }

  /// The sum over the group, the same bits in all of its threads. All threads of the block call it, with turns 0, 1, 2, ...
  template <class Acc>
  __device__ Acc sum(Acc x, int turn) const {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
      if (offset < lanes) x += __shfl_xor_sync(~0u, x, offset);
    if (lanes <= 32) return x;
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

/// Vectors of a row's parameter: of one vector a thread in registers, else read (from the L1 cache) for every row.
template <class T, class P, int V>
class Parameter {
 public:
  using Values = Numbers<compute_t<T>, kWidth<T>>;

  __device__ Parameter(const P* from, compute_t<T> otherwise, const Group& group)
      : from_(from), otherwise_(otherwise), group_(group) {
    if constexpr (V == 1) held_ = read(0);
  }
  __device__ Values operator()(int u) const {
    if constexpr (V == 1) return held_;
    else return read(u);
  }

 private:
  __device__ Values read(int u) const {
    if (from_ != nullptr && group_.inside(u)) return load_numbers<kWidth<T>>(from_ + group_.column(u));
    Values values;
#pragma unroll
    for (auto& x : values.x) x = otherwise_;
    return values;
  }

  const P* from_;
  compute_t<T> otherwise_;
  const Group& group_;
  Values held_;
};

/// A thread's vectors of a row; zeros where it has none.
template <int V>
struct Vectors {
  uint4 bytes[V];

  template <class T>
  __device__ void load(const T* row, bool has, const Group& group) {
#pragma unroll
    for (int u = 0; u < V; ++u)
      bytes[u] = has && group.inside(u) ? *reinterpret_cast<const uint4*>(row + group.column(u)) : uint4{};
  }
};

enum class Kind { rms, gated, layer };

/// `more` is the gate or, else, the residual, whose sum with x goes to `sum`.
template <class T, class P, Kind kind, int V>
__global__ void __launch_bounds__(kReduceThreads, V == 1 ? 4 : 2)
    forward_rows(Inputs<T, P> in, const T* __restrict__ more, T* __restrict__ sum, T* __restrict__ y, std::int64_t rows, int d,
                 int lanes) {
  using Acc = compute_t<T>;
  constexpr int W = kWidth<T>;
  const Group group(lanes, d, W);
  const Parameter<T, P, V> weight(in.weight, 1, group), bias(kind == Kind::layer ? in.bias : nullptr, 0, group);
  Vectors<V> next_x, next_more;
  const auto fetch = [&](std::int64_t row) {
    next_x.load(in.x + row * d, row < rows, group);
    if (kind == Kind::gated || more != nullptr) next_more.load(more + row * d, row < rows, group);
  };
  const std::int64_t step = std::int64_t{gridDim.x} * group.count;
  std::int64_t row = std::int64_t{blockIdx.x} * group.count + group.number;
  fetch(row);
  for (int turn = 0; row - group.number < rows; row += step) {
    Numbers<Acc, W> v[V];
#pragma unroll
    for (int u = 0; u < V; ++u) v[u] = as_numbers<T>(next_x.bytes[u]);
    const Vectors<V> z = next_more;
    fetch(row + step);
    const auto for_each = [&](const auto& f) {
#pragma unroll
      for (int u = 0; u < V; ++u)
        if (group.inside(u)) f(u, v[u]);
    };
    if (kind != Kind::gated && more != nullptr)
      for_each([&](int u, Numbers<Acc, W>& x) {
        const auto added = as_numbers<T>(z.bytes[u]);
#pragma unroll
        for (int w = 0; w < W; ++w) x.x[w] = math::rounded<T>(x.x[w] + added.x[w]);
        if (row < rows) store_numbers<W>(sum + row * d + group.column(u), x);
      });
    Acc mean = 0, squares = 0;
    if constexpr (kind == Kind::layer) {
      for_each([&](int, const Numbers<Acc, W>& x) {
#pragma unroll
        for (const Acc value : x.x) mean += value;
      });
      mean = group.sum(mean, turn++) / static_cast<Acc>(d);
    }
    for_each([&](int, Numbers<Acc, W>& x) {
#pragma unroll
      for (Acc& value : x.x) {
        value -= mean;
        squares += value * value;
      }
    });
    const Acc rstd = 1 / math::sqrt(group.sum(squares, turn++) / static_cast<Acc>(d) + in.eps);
    if (row >= rows) continue;
    if (group.lane == 0) {
      in.rstd[row] = rstd;
      if constexpr (kind == Kind::layer) in.mean[row] = mean;
    }
    for_each([&](int u, Numbers<Acc, W>& x) {
      const auto scale = weight(u), shift = bias(u), gate = as_numbers<T>(z.bytes[u]);
#pragma unroll
      for (int w = 0; w < W; ++w) {
        x.x[w] = x.x[w] * rstd * scale.x[w];
        if constexpr (kind == Kind::layer) x.x[w] += shift.x[w];
        if constexpr (kind == Kind::gated) x.x[w] *= math::rounded_silu<T>(gate.x[w]);
      }
      store_numbers<W>(y + row * d + group.column(u), x);
    });
  }
}

/// a + b, never as part of a multiplication: as by an operation of its own.
template <class Acc>
__device__ Acc add_alone(Acc a, Acc b) {
  if constexpr (sizeof(Acc) == 4) return __fadd_rn(a, b);
  else return a + b;
}

template <class T, class P, bool gated, int V>
__global__ void __launch_bounds__(kReduceThreads, gated || V > 1 ? 2 : 3)
    backward_rows(Inputs<T, P> in, const T* grad, Outputs<T> out, std::int64_t rows, int d, int lanes) {
  using Acc = compute_t<T>;
  constexpr int W = kWidth<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  Acc* const sums = reinterpret_cast<Acc*>(memory);  // [d]
  const Group group(lanes, d, W);
  const Parameter<T, P, V> weight(in.weight, 1, group);
  const T* const more = gated ? in.gate : out.grad_sum;
  Vectors<V> next_x, next_grad, next_more = {};
  Acc next_rstd;
  const auto fetch = [&](std::int64_t row) {
    const bool has = row < rows;
    next_x.load(in.x + row * d, has, group);
    next_grad.load(grad + row * d, has, group);
    if (more != nullptr) next_more.load(more + row * d, has, group);
    next_rstd = has ? in.rstd[row] : Acc(0);
  };
  Numbers<Acc, W> dw[V] = {};
  const std::int64_t step = std::int64_t{gridDim.x} * group.count;
  std::int64_t row = std::int64_t{blockIdx.x} * group.count + group.number;
  fetch(row);
  for (int turn = 0; row - group.number < rows; row += step, ++turn) {
    Numbers<Acc, W> h[V], inner[V], s[V];  // inner: the gradient of h * weight; s: sigmoid(z)
    const Vectors<V> x = next_x, of_y = next_grad, z = next_more;
    const Acc rstd = next_rstd;
    fetch(row + step);
    Acc along = 0;
#pragma unroll
    for (int u = 0; u < V; ++u) {
      const auto scale = weight(u), gate = as_numbers<T>(z.bytes[u]);
      h[u] = as_numbers<T>(x.bytes[u]);
      inner[u] = as_numbers<T>(of_y.bytes[u]);
#pragma unroll
      for (int w = 0; w < W; ++w) {
        h[u].x[w] *= rstd;
        if constexpr (gated) {
          s[u].x[w] = math::rounded_sigmoid<T>(gate.x[w]);
          inner[u].x[w] *= gate.x[w] * s[u].x[w];
        }
        dw[u].x[w] += inner[u].x[w] * h[u].x[w];
        inner[u].x[w] *= scale.x[w];
        along += inner[u].x[w] * h[u].x[w];
      }
    }
    along = group.sum(along, turn) / static_cast<Acc>(d);
    if (row >= rows) continue;
#pragma unroll
    for (int u = 0; u < V; ++u) {
      if (!group.inside(u)) continue;
      const std::int64_t at = row * d + group.column(u);
      const auto scale = weight(u), added = as_numbers<T>(z.bytes[u]), from = as_numbers<T>(of_y.bytes[u]);
      Numbers<Acc, W> dx, dz, y;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        dx.x[w] = rstd * (inner[u].x[w] - h[u].x[w] * along);
        y.x[w] = h[u].x[w] * scale.x[w];
        if constexpr (gated) {
          const Acc gate = added.x[w], sigmoid = s[u].x[w];
          dz.x[w] = from.x[w] * y.x[w] * sigmoid * (1 + gate * (1 - sigmoid));
          y.x[w] *= gate * sigmoid;
        } else if (more != nullptr) {
          dx.x[w] = add_alone(math::rounded<T>(dx.x[w]), added.x[w]);
        }
      }
      store_numbers<W>(out.x + at, dx);
      if constexpr (gated) store_numbers<W>(out.gate_row(row, d) + group.column(u), dz);
      if (out.y != nullptr) store_numbers<W>(out.y + at, y);
    }
  }
  if (out.weight_parts == nullptr) return;
  // The block's groups one after the other, so that the sum's order is always the same.
  for (int turn = 0; turn < group.count; ++turn) {
    if (turn == group.number) {
#pragma unroll
      for (int u = 0; u < V; ++u) {
        if (!group.inside(u)) continue;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          Acc& sum = sums[group.column(u) + w];
          sum = turn == 0 ? dw[u].x[w] : sum + dw[u].x[w];
        }
      }
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

/// Whether groups whose threads have up to `most` vectors each can have rows of d elements of all that is defined.
template <class T, class P>
bool fits(const Inputs<T, P>& in, std::int64_t d, int most, std::initializer_list<const T*> others) {
  return sizeof(T) <= 4 && d <= most * kWidth<T> * kReduceThreads && in_vectors<kWidth<T>>(in, d, others);
}

/// Calls f(V, lanes) for rows of d elements, where V, at most `most`, is as small as can be.
template <class T, int most, class F>
void visit_vectors(std::int64_t d, const F& f) {
  const std::int64_t vectors = d / kWidth<T>;
  const auto call = [&]<int V>(std::integral_constant<int, V> count) {
    f(count, std::max(4, lanes_for(ceil_div(vectors, V), kReduceThreads)));
  };
  if constexpr (most >= 4)
    if (vectors > 2 * kReduceThreads) return call(std::integral_constant<int, 4>());
  if constexpr (most >= 2)
    if (vectors > kReduceThreads) return call(std::integral_constant<int, 2>());
  call(std::integral_constant<int, 1>());
}

}  // namespace

bool forward_in_groups(const NormInputs& in, const NormStatistics& statistics, const Tensor& y, const Tensor& sum) {
  if (in.gate.defined() && (in.centered || in.residual.defined())) return false;
  if (in.bias.defined() && !in.centered) return false;
  const Device device = y.device();
  const std::int64_t d = y.shape().back(), rows = y.numel() / d;
  bool taken = false;
  visit_types(in, [&]<class T, class P>(TypeTag<T>, TypeTag<P>) {
    const auto inputs = pointers<T, P>(in, statistics);
    const T* const more = in.gate.defined() ? inputs.gate : pointer<T>(in.residual);
    const auto launch = [&]<Kind kind, int most>() {
      taken = fits(inputs, d, most, {y.data<T>(), pointer<T>(in.residual), pointer<T>(sum)});
      if (!taken) return;
      visit_vectors<T, most>(d, [&]<int V>(std::integral_constant<int, V>, int lanes) {
        const auto kernel = forward_rows<T, P, kind, V>;
        kernel<<<blocks_at_once(kernel, 0, rows, lanes, device), kReduceThreads, 0, stream(device)>>>(
            inputs, more, pointer<T>(sum), y.data<T>(), rows, static_cast<int>(d), lanes);
        GLADE_CUDA_LAUNCHED();
      });
    };
    if constexpr (sizeof(T) <= 4) {
      if (in.gate.defined()) launch.template operator()<Kind::gated, 1>();
      else if (in.centered) launch.template operator()<Kind::layer, 4>();
      else launch.template operator()<Kind::rms, 4>();
    }
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
    const auto launch = [&]<bool gated, int most>() {
      taken = fits(inputs, d, most, {grad.data<T>(), out.x, out.gate, out.grad_sum, out.y});
      if (!taken) return;
      visit_vectors<T, most>(d, [&]<int V>(std::integral_constant<int, V>, int lanes) {
        const std::size_t bytes = static_cast<std::size_t>(d) * sizeof(Acc);
        const auto kernel = backward_rows<T, P, gated, V>;
        const unsigned blocks = blocks_at_once(kernel, bytes, rows, lanes, device);
        const Tensor parts = gradients.weight.defined() ? empty({blocks, d}, {dtype_of<Acc>(), device}) : Tensor();
        out.weight_parts = pointer<Acc>(parts);
        kernel<<<blocks, kReduceThreads, bytes, stream(device)>>>(inputs, grad.data<T>(), out, rows, static_cast<int>(d), lanes);
        GLADE_CUDA_LAUNCHED();
        if (!parts.defined()) return;
        const auto add_up = [blocks, d, parts](const Tensor& sums) { reduce(ReduceOp::sum, {1, blocks, d}, parts, sums); };
        gradients.defer_weight ? autograd::defer(gradients.weight, add_up) : add_up(gradients.weight);
      });
    };
    if constexpr (sizeof(T) <= 4)
      in.gate.defined() ? launch.template operator()<true, 1>() : launch.template operator()<false, 2>();
  });
  return taken;
}

}  // namespace glade::cuda::norms
