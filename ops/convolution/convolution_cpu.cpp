#include <glade/core/parallel.h>
#include <glade/ops/convolution/convolution_chunk.h>

namespace glade::cpu {

namespace {

using namespace convolution;

/// What the code for a chunk is compiled for.
template <int MaxWidth, int Lanes>
struct Sizes {
  static constexpr int max_width = MaxWidth, lanes = Lanes;
};

/// Calls f(sizes, begin, end, channel) for every chunk of tokens and every sizes.lanes channels.
template <int MaxWidth, class T, class F>
void for_each_chunk(const Arguments<T>& a, const F& f) {
  constexpr std::int64_t kLanes = 32;
  const std::int64_t wide = a.channels / kLanes, blocks = wide + a.channels % kLanes;
  const std::int64_t chunks = (a.tokens + kConvolutionChunk - 1) / kConvolutionChunk;
  const std::int64_t work = std::min(a.tokens, kConvolutionChunk) * kLanes * a.width;
  parallel_for(chunks * blocks, kGrain / work + 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t begin = i / blocks * kConvolutionChunk, end = std::min(begin + kConvolutionChunk, a.tokens),
                         block = i % blocks;
      if (block < wide) f(Sizes<MaxWidth, kLanes>(), begin, end, block * kLanes);
      else f(Sizes<MaxWidth, 1>(), begin, end, wide * kLanes + block - wide);
    }
  });
}

template <class T, class F>
void for_each_chunk(const Arguments<T>& a, const F& f) {
  if (a.width <= 4) for_each_chunk<4>(a, f);
  else for_each_chunk<kMaxConvolutionWidth>(a, f);
}

}  // namespace

void short_convolution(const ShortConvolution& problem, const Tensor& y, const Tensor& final_state) {
  visit_floating(problem.x.dtype(), [&]<class T>(TypeTag<T>) {
    const Arguments<T> a = forward_arguments<T>(problem, y, final_state);
    for_each_chunk(a, [&](auto sizes, std::int64_t begin, std::int64_t end, std::int64_t channel) {
      forward<T, sizes.max_width, sizes.lanes>(a, begin, end, channel);
    });
  });
}

void short_convolution_backward(const ShortConvolution& problem, const Tensor& grad_y, const Tensor& grad_final,
                                const Tensor& grad_x, const Tensor& grad_initial, const Tensor& sums) {
  visit_floating(problem.x.dtype(), [&]<class T>(TypeTag<T>) {
    const Arguments<T> a = backward_arguments<T>(problem, grad_y, grad_final, grad_x, grad_initial);
    for_each_chunk(a, [&](auto sizes, std::int64_t begin, std::int64_t end, std::int64_t channel) {
      Backward<T, sizes.max_width, sizes.lanes> backward(a, begin, end, channel);
      backward.run();
      compute_t<T>* to = sums.data<compute_t<T>>() + begin / kConvolutionChunk * (a.width + 1) * a.channels + channel;
      for (int w = 0; w < a.width; ++w) std::copy_n(backward.grad_taps[a.width - 1 - w], sizes.lanes, to + w * a.channels);
      std::copy_n(backward.grad_bias, sizes.lanes, to + a.width * a.channels);
    });
  });
}

}  // namespace glade::cpu
