#pragma once
// What the kernels of the normalisations on the GPU share.
#include <algorithm>
#include <initializer_list>

#include <glade/core/pointer.h>
#include <glade/ops/norm/norm_kernels.h>
#include <glade/ops/reduce/fold.cuh>

namespace glade::cuda::norms {

/// Pointers to what NormInputs and NormStatistics hold, null where undefined. P is the parameters' type.
template <class T, class P>
struct Inputs {
  using Acc = compute_t<T>;
  const T* x;
  const P *weight, *bias;
  const T* gate;
  Acc *mean, *rstd;
  Acc eps;
};

/// v * weight + bias, for the elements from i on.
template <int W, class T, class P>
__device__ void scale_and_shift(const Inputs<T, P>& in, std::int64_t i, Numbers<compute_t<T>, W>& v) {
  if (in.weight != nullptr) {
    const auto weight = load_numbers<W>(in.weight + i);
#pragma unroll
    for (int w = 0; w < W; ++w) v.x[w] *= static_cast<compute_t<T>>(weight.x[w]);
  }
  if (in.bias != nullptr) {
    const auto bias = load_numbers<W>(in.bias + i);
#pragma unroll
    for (int w = 0; w < W; ++w) v.x[w] += static_cast<compute_t<T>>(bias.x[w]);
  }
}

/// Pointers to what NormGradients holds, null where undefined.
template <class T>
struct Outputs {
  T *x = nullptr, *gate = nullptr;
  compute_t<T>*weight_parts = nullptr, *bias_parts = nullptr;  ///< [blocks, d]
  const T* grad_sum = nullptr;                                 ///< added to x's, or null
  T* y = nullptr;                                              ///< the norm's result again, or null
  // Of the gate's gradient: after every so many rows there may be a gap; they begin `gate_step` elements apart.
  detail::FastDivisor gate_rows{};
  std::int64_t gate_step = 0;

  __device__ T* gate_row(std::int64_t row, int d) const {
    const auto i = static_cast<std::uint32_t>(row), run = gate_rows.divide(i);
    return gate + run * gate_step + std::int64_t{i - run * gate_rows.divisor} * d;
  }
};

template <class T, class P>
Inputs<T, P> pointers(const NormInputs& in, const NormStatistics& statistics) {
  using Acc = compute_t<T>;
  return {in.x.data<T>(),          pointer<P>(in.weight),         pointer<P>(in.bias),
          pointer<T>(in.gate),     pointer<Acc>(statistics.mean), statistics.rstd.data<Acc>(),
          static_cast<Acc>(in.eps)};
}

/// Calls f(TypeTag<T>, TypeTag<P>) for x's and the parameters' types.
template <class F>
void visit_types(const NormInputs& in, const F& f) {
  const Tensor& parameter = in.weight.defined() ? in.weight : in.bias;
  visit_floating(in.x.dtype(), [&]<class T>(TypeTag<T> tag) {
    if (!parameter.defined() || parameter.dtype() == in.x.dtype()) f(tag, tag);
    else f(tag, TypeTag<compute_t<T>>{});
  });
}

/// Whether rows of d elements of all that is defined can be read and written in vectors of W.
template <int W, class T, class P>
bool in_vectors(const Inputs<T, P>& in, std::int64_t d, std::initializer_list<const T*> others) {
  const auto fits = [d](const auto* data) { return cuda::in_vectors<W>(d, data); };
  return fits(in.x) && fits(in.weight) && fits(in.bias) && fits(in.gate) && std::all_of(others.begin(), others.end(), fits);
}

/// Where groups of threads hold rows in registers (not float64, nor long rows); false, and nothing is done, elsewhere.
bool forward_in_groups(const NormInputs& in, const NormStatistics& statistics, const Tensor& y, const Tensor& sum);
bool backward_in_groups(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const Tensor& grad_sum,
                        const NormGradients& gradients);

}  // namespace glade::cuda::norms
