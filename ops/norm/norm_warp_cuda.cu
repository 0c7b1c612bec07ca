// The gradient of the RMS norms where rows are short enough for a warp's registers: everything is read once, and the weight's
// gradient is gathered in registers over all rows that a warp has.
#include <glade/core/rounded_math.h>
#include <glade/ops/norm/norm.cuh>
#include <glade/ops/reduce/reduce_kernels.h>
#include <glade/ops/reduce/reducers.cuh>

namespace glade::cuda::norms {

namespace {

constexpr int kWarps = kReduceThreads / 32;
/// Vectors of a row that a lane has registers for.
constexpr int kLongest = 8, kLongestGated = 4;

/// `held` vectors of W elements a lane.
template <class T, class P, int W, int held, bool gated>
__global__ void __launch_bounds__(kReduceThreads)
    warp_rows(Inputs<T, P> in, const T* __restrict__ grad, Outputs<T> out, std::int64_t rows, int d) {
  using Acc = compute_t<T>;
  using Loaded = detail::Vector<T, W>;
  extern __shared__ __align__(16) unsigned char memory[];
  Acc* const sums = reinterpret_cast<Acc*>(memory);  // [d]
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Numbers<Acc, W> dw[held] = {};
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp; row < rows; row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t offset = row * d;
    Loaded x[held] = {}, g[held] = {}, z[gated ? held : 1] = {};
#pragma unroll
    for (int u = 0; u < held; ++u) {
      const int i = (u * 32 + lane) * W;
      if (i >= d) break;
      x[u] = *reinterpret_cast<const Loaded*>(in.x + offset + i);
      g[u] = *reinterpret_cast<const Loaded*>(grad + offset + i);
      if constexpr (gated) z[u] = *reinterpret_cast<const Loaded*>(in.gate + offset + i);
    }
    const Acc rstd = in.rstd[row];
    // f(element, h, the gradient of y, the weight) for vector u's elements.
    const auto for_each = [&](int u, const auto& f) {
      const int i = (u * 32 + lane) * W;
      if (i >= d) return;
      detail::Vector<P, W> weight;
      if (in.weight != nullptr) weight = *reinterpret_cast<const detail::Vector<P, W>*>(in.weight + i);
#pragma unroll
      for (int w = 0; w < W; ++w) f(w, Acc(x[u].x[w]) * rstd, Acc(g[u].x[w]), in.weight != nullptr ? Acc(weight.x[w]) : Acc(1));
    };
    Acc along = 0;
#pragma unroll
    for (int u = 0; u < held; ++u)
      for_each(u, [&](int w, Acc h, Acc of_y, Acc factor) {
        if constexpr (gated) of_y *= math::rounded_silu<T>(Acc(z[u].x[w]));
        along += of_y * factor * h;
      });
    along = merge_lanes<Sum<T>>(along, 32) / static_cast<Acc>(d);
#pragma unroll
    for (int u = 0; u < held; ++u) {
      const int i = (u * 32 + lane) * W;
      if (i >= d) break;
      Loaded dx, dz, more = {};
      if (out.grad_sum != nullptr) more = *reinterpret_cast<const Loaded*>(out.grad_sum + offset + i);
      for_each(u, [&](int w, Acc h, Acc of_y, Acc factor) {
        if constexpr (gated) {
          const Acc gate = Acc(z[u].x[w]), s = math::rounded_sigmoid<T>(gate);
          dz.x[w] = T(of_y * h * factor * s * (1 + gate * (1 - s)));
          of_y *= gate * s;
        }
        dw[u].x[w] += of_y * h;
        const Acc of_x = rstd * (of_y * factor - h * along);
        // Rounded before the sum, as by an addition of its own.
        dx.x[w] = out.grad_sum != nullptr ? T(Acc(T(of_x)) + Acc(more.x[w])) : T(of_x);
      });
      detail::store(out.x + offset + i, dx);
      if constexpr (gated) detail::store(out.gate + offset + i, dz);
    }
  }
  if (out.weight_parts == nullptr) return;
  // The block's warps one after the other, so that the sum's order is always the same.
  for (int turn = 0; turn < kWarps; ++turn) {
    if (turn == warp) {
#pragma unroll
      for (int u = 0; u < held; ++u) {
        const int i = (u * 32 + lane) * W;
        if (i >= d) break;
#pragma unroll
        for (int w = 0; w < W; ++w) sums[i + w] = turn == 0 ? dw[u].x[w] : sums[i + w] + dw[u].x[w];
      }
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < d; i += kReduceThreads)
    out.weight_parts[blockIdx.x * std::int64_t{d} + i] = sums[i];
}

template <class T, class P, bool gated>
void launch(const Inputs<T, P>& in, const Tensor& grad, Outputs<T> out, const NormGradients& gradients) {
  using Acc = compute_t<T>;
  constexpr int W = kWidth<T>;
  const Device device = grad.device();
  const std::int64_t d = grad.shape().back(), rows = grad.numel() / d, vectors = ceil_div(d, 32 * W);
  const auto kernel = vectors == 1   ? warp_rows<T, P, W, 1, gated>
                      : vectors == 2 ? warp_rows<T, P, W, 2, gated>
                      : vectors <= 4 ? warp_rows<T, P, W, 4, gated>
                                     : warp_rows < T,
             P, W, gated ? kLongestGated : kLongest, gated > ;
  int blocks_each = 1;  // of a multiprocessor
  GLADE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_each, kernel, kReduceThreads,
                                                           static_cast<std::size_t>(d) * sizeof(Acc)));
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(rows, kWarps), blocks_each * multiprocessor_count(device));
  const Tensor parts = gradients.weight.defined() ? empty({blocks, d}, {dtype_of<Acc>(), device}) : Tensor();
  out.weight_parts = pointer<Acc>(parts);
  kernel<<<static_cast<unsigned>(blocks), kReduceThreads, static_cast<std::size_t>(d) * sizeof(Acc), stream(device)>>>(
      in, grad.data<T>(), out, rows, static_cast<int>(d));
  GLADE_CUDA_LAUNCHED();
  if (parts.defined()) reduce(ReduceOp::sum, {1, blocks, d}, parts, gradients.weight);
}

}  // namespace

bool backward_in_warps(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const Tensor& grad_sum,
                       const NormGradients& gradients) {
  if (in.centered || gradients.bias.defined() || in.x.dtype() == DType::float64) return false;
  bool taken = false;
  visit_types(in, [&]<class T, class P>(TypeTag<T>, TypeTag<P>) {
    if constexpr (sizeof(T) <= 4) {
      const auto inputs = pointers<T, P>(in, statistics);
      const Outputs<T> out{gradients.x.data<T>(), pointer<T>(gradients.gate), nullptr, nullptr, pointer<T>(grad_sum)};
      const std::int64_t d = grad.shape().back();
      const int longest = in.gate.defined() ? kLongestGated : kLongest;
      taken = d <= 32 * kWidth<T> * longest && in_vectors<kWidth<T>>(inputs, d, {grad.data<T>(), out.x, out.gate, out.grad_sum});
      if (!taken) return;
      if (in.gate.defined()) launch<T, P, true>(inputs, grad, out, gradients);
      else launch<T, P, false>(inputs, grad, out, gradients);
    }
  });
  return taken;
}

}  // namespace glade::cuda::norms
