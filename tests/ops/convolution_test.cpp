// The short convolution: values against plain loops, gradients against central differences and a composition of slices.
#include <glade/ops/convolution/convolution.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class ShortConvolution : public DeviceTest {
 protected:
  Tensor random(const Shape& shape, DType dtype = DType::float64) const { return random_tensor(shape, device(), dtype); }
  Tensor leaf(const Shape& shape) const { return random_leaf(shape, device()); }
};
GLADE_DEVICE_TESTS(ShortConvolution);

/// The definition, for x [B, T, D] without packing.
std::pair<Tensor, Tensor> loops(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options) {
  const std::int64_t B = x.size(0), T = x.size(1), D = x.size(2), W = weight.size(1);
  const auto in = x.to_vector<double>(), taps = weight.to_vector<double>();
  const auto bias = options.bias.defined() ? options.bias.to_vector<double>() : std::vector<double>(static_cast<std::size_t>(D));
  const auto state = options.initial_state.defined() ? options.initial_state.to_vector<double>()
                                                     : std::vector<double>(static_cast<std::size_t>(B * D * (W - 1)));
  const auto input = [&](std::int64_t b, std::int64_t t, std::int64_t d) {
    return t >= 0 ? in[static_cast<std::size_t>((b * T + t) * D + d)]
                  : state[static_cast<std::size_t>((b * D + d) * (W - 1) + t + W - 1)];
  };
  std::vector<double> y, last;
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t d = 0; d < D; ++d) {
        double z = bias[static_cast<std::size_t>(d)];
        for (std::int64_t w = 0; w < W; ++w) z += taps[static_cast<std::size_t>(d * W + w)] * input(b, t - (W - 1) + w, d);
        y.push_back(options.silu ? z / (1 + std::exp(-z)) : z);
      }
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t d = 0; d < D; ++d)
      for (std::int64_t i = 0; i < W - 1; ++i) last.push_back(input(b, T - (W - 1) + i, d));
  return {Tensor::from_vector(y, {B, T, D}), Tensor::from_vector(last, {B, D, W - 1})};
}

/// The same out of recorded operations.
std::pair<Tensor, Tensor> composed(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options) {
  const std::int64_t B = x.size(0), T = x.size(1), D = x.size(2), W = weight.size(1);
  const Tensor before =
      options.initial_state.defined() ? transpose(options.initial_state, 1, 2) : zeros({B, W - 1, D}, x.options());
  const Tensor padded = cat({before, x}, 1);
  Tensor y = options.bias.defined() ? expand(options.bias, {B, T, D}) : zeros({B, T, D}, x.options());
  for (std::int64_t w = 0; w < W; ++w) y = y + slice(padded, 1, w, w + T) * select(weight, 1, w);
  return {options.silu ? silu(y) : y, transpose(slice(padded, 1, T, T + W - 1), 1, 2)};
}

TEST_P(ShortConvolution, Values) {
  for (const std::int64_t T : {1, 2, 3, 5, 16, 17, 130, 300})
    for (const std::int64_t D : {1, 3, 64, 130})
      for (const std::int64_t W : {1, 2, 3, 4, 5, 9}) {
        ShortConvolutionOptions options;
        if (T % 2 == 1) options.bias = random({D});
        if (D % 2 == 0) options.initial_state = random({2, D, W - 1});
        options.silu = W % 2 == 0;
        const Tensor x = random({2, T, D}), weight = random({D, W});
        const auto [y, state] = short_convolution(x, weight, options);
        const auto [y_loops, state_loops] = loops(x, weight, options);
        EXPECT_TRUE(all_close(y, y_loops)) << T << " " << D << " " << W;
        EXPECT_TRUE(all_close(state, state_loops, 0, 0)) << T << " " << D << " " << W;
      }
}

TEST_P(ShortConvolution, WidestFilter) {
  const Tensor x = random({1, 90, 3}), weight = random({3, 32});
  EXPECT_TRUE(all_close(short_convolution(x, weight).first, loops(x, weight, {}).first));
}

// Sums of four products and one rounding of the result.
TEST_P(ShortConvolution, DTypes) {
  struct Case {
    DType dtype;
    double tolerance;
  };
  for (const auto& [dtype, tolerance] : {Case{DType::float32, 1e-6}, Case{DType::bfloat16, 4e-3}, Case{DType::float16, 5e-4}})
    for (const std::int64_t D : {7, 256}) {
      ShortConvolutionOptions options;
      options.bias = random({D}, dtype);
      options.initial_state = random({2, D, 3}, dtype);
      options.silu = true;
      const Tensor x = random({2, 50, D}, dtype), weight = random({D, 4}, dtype);
      const auto [y, state] = short_convolution(x, weight, options);
      const auto [y_loops, state_loops] = loops(x, weight, options);
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(state.dtype(), dtype);
      EXPECT_LT(relative_error(y, y_loops), tolerance);
      EXPECT_TRUE(all_close(state, state_loops, 0, 0));
    }
}

TEST_P(ShortConvolution, Views) {
  const Tensor wide = random({2, 20, 24}), weight = transpose(random({4, 6}), 0, 1);
  ShortConvolutionOptions options;
  options.initial_state = transpose(random({2, 3, 6}), 1, 2);
  options.bias = slice(random({12}), 0, 0, 12, 2);
  for (const Tensor& x : {slice(wide, 2, 6, 12), slice(wide, 2, 0, 12, 2), slice(slice(wide, 1, 3, 15), 2, 0, 6),
                          slice(transpose(random({20, 2, 6}), 0, 1), 1, 0, 20), transpose(random({2, 6, 20}), 1, 2),
                          expand(random({2, 1, 6}), {2, 20, 6}), slice(slice(wide, 1, 0, 20, 2), 2, 1, 7)})
    EXPECT_TRUE(all_close(short_convolution(x, weight, options).first, loops(x, weight, options).first)) << x.strides().str();
}

// What lies outside the filter must not matter, whatever it is.
TEST_P(ShortConvolution, InfinitiesStayInTheirWindow) {
  for (const std::int64_t W : {2, 4, 6}) {
    std::vector<double> values(20, 1);
    values[5] = INFINITY;
    const Tensor x = Tensor::from_vector(values, {1, 20, 1}, device());
    const auto y = short_convolution(x, ones({1, W}, x.options())).first.to_vector<double>();
    for (std::size_t t = 0; t < 20; ++t) EXPECT_EQ(std::isinf(y[t]), t >= 5 && t < 5 + static_cast<std::size_t>(W)) << t;
  }
}

std::vector<std::int64_t> boundaries_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> boundaries{0};
  for (const std::int64_t length : lengths) boundaries.push_back(boundaries.back() + length);
  return boundaries;
}

// Packed sequences give what each gives alone, forward and backward: empty and short ones, borders inside and at the ends
// of the runs of tokens that are computed together.
TEST_P(ShortConvolution, PackedEqualsSeparate) {
  const std::vector<std::vector<std::int64_t>> packings = {
      {5}, {1, 1, 1, 1}, {0, 3, 0, 0, 2, 1, 0}, {16, 16, 3}, {128, 1, 127, 2, 130}, {2, 300, 0, 1, 1, 15, 17}, {0, 0}};
  for (const auto& lengths : packings)
    for (const std::int64_t W : {1, 2, 4, 7})
      for (const bool with_state : {false, true}) {
        const auto boundaries = boundaries_of(lengths);
        const auto N = static_cast<std::int64_t>(lengths.size());
        const std::int64_t T = boundaries.back(), D = 5;
        const auto make = [&] {
          Tensors leaves{leaf({1, T, D}), leaf({D, W}), leaf({D})};
          if (with_state) leaves.push_back(leaf({N, D, W - 1}));
          return leaves;
        };
        const Tensors packed = make();
        Tensors separate;
        for (const Tensor& x : packed) separate.push_back(clone(x.detach()).set_requires_grad());
        const Tensor y_weight = random({1, T, D}), state_weight = random({N, D, W - 1});

        ShortConvolutionOptions options{.bias = packed[2], .silu = true};
        if (with_state) options.initial_state = packed[3];
        options.cu_seqlens = Tensor::from_vector(boundaries, N % 2 == 0 ? kCPU : device());
        const auto [y, state] = short_convolution(packed[0], packed[1], options);

        Tensors ys, states;
        for (std::int64_t n = 0; n < N; ++n) {
          ShortConvolutionOptions one{.bias = separate[2], .silu = true};
          if (with_state) one.initial_state = slice(separate[3], 0, n, n + 1);
          const auto begin = boundaries[static_cast<std::size_t>(n)], end = boundaries[static_cast<std::size_t>(n) + 1];
          const auto [y_one, state_one] = composed(slice(separate[0], 1, begin, end), separate[1], one);
          ys.push_back(y_one);
          states.push_back(state_one);
        }
        EXPECT_TRUE(all_close(y, cat(ys, 1)));
        EXPECT_TRUE(all_close(state, cat(states, 0), 0, 0));
        const Tensors grads = autograd::grad({sum(y * y_weight), sum(state * state_weight)}, packed);
        const Tensors expected = autograd::grad({sum(cat(ys, 1) * y_weight), sum(cat(states, 0) * state_weight)}, separate);
        for (std::size_t i = 0; i < grads.size(); ++i)
          EXPECT_TRUE(all_close(grads[i], expected[i], 1e-10, 1e-11)) << "input " << i << " width " << W;
      }
}

TEST_P(ShortConvolution, Int32Boundaries) {
  const Tensor x = random({1, 7, 3}), weight = random({3, 4});
  ShortConvolutionOptions narrow, wide;
  narrow.cu_seqlens = Tensor::from_vector<std::int32_t>({0, 3, 7}, device());
  wide.cu_seqlens = Tensor::from_vector<std::int64_t>({0, 3, 7}, device());
  EXPECT_TRUE(all_close(short_convolution(x, weight, narrow).first, short_convolution(x, weight, wide).first, 0, 0));
}

TEST_P(ShortConvolution, StreamingEqualsOnePass) {
  for (const std::int64_t W : {1, 2, 4, 6}) {
    const Tensor x = random({3, 11, 10}), weight = random({10, W}), bias = random({10});
    const auto [y, state] = short_convolution(x, weight, {.bias = bias, .silu = true});
    for (const std::int64_t step : {1, 2, 5}) {
      Tensor carried;
      Tensors parts;
      for (const Tensor& part : split(x, step, 1)) {
        const auto [y_part, next] = short_convolution(part, weight, {.bias = bias, .silu = true, .initial_state = carried});
        parts.push_back(y_part);
        carried = next;
      }
      EXPECT_TRUE(all_close(cat(parts, 1), y, 0, 0)) << W << " " << step;
      EXPECT_TRUE(all_close(carried, state, 0, 0)) << W << " " << step;
    }
  }
}

TEST_P(ShortConvolution, Empty) {
  const Tensor weight = random({3, 4}), state = random({2, 3, 3});
  const auto [y, passed] = short_convolution(random({2, 0, 3}), weight, {.initial_state = state});
  EXPECT_EQ(y.shape(), (Shape{2, 0, 3}));
  EXPECT_TRUE(all_close(passed, state, 0, 0));
  EXPECT_TRUE(all_close(short_convolution(random({2, 0, 3}), weight).second, zeros({2, 3, 3}, {DType::float64, kCPU})));
  EXPECT_EQ(short_convolution(random({0, 5, 3}), weight).second.shape(), (Shape{0, 3, 3}));
  EXPECT_EQ(short_convolution(random({2, 5, 0}), random({0, 4})).first.shape(), (Shape{2, 5, 0}));
}

TEST_P(ShortConvolution, Gradients) {
  for (const bool with_silu : {false, true})
    for (const std::int64_t W : {1, 3, 4, 6}) {
      const auto f = [&](const Tensors& x) {
        const auto [y, state] = short_convolution(x[0], x[1], {.bias = x[2], .silu = with_silu, .initial_state = x[3]});
        return Tensors{y, state};
      };
      EXPECT_TRUE(autograd::gradcheck(f, {leaf({2, 5, 3}), leaf({3, W}), leaf({3}), leaf({2, 3, W - 1})})) << W;
      EXPECT_TRUE(autograd::gradcheck(f, {leaf({1, 2, 3}), leaf({3, W}), leaf({3}), leaf({1, 3, W - 1})})) << W;
      const auto y_alone = [&](const Tensors& x) { return Tensors{short_convolution(x[0], x[1], {.silu = with_silu}).first}; };
      EXPECT_TRUE(autograd::gradcheck(y_alone, {leaf({1, 6, 2}), leaf({2, W})}));
      const auto state_alone = [&](const Tensors& x) {
        return Tensors{short_convolution(x[0], x[1], {.silu = with_silu, .initial_state = x[2]}).second};
      };
      EXPECT_TRUE(autograd::gradcheck(state_alone, {leaf({1, 2, 2}), random({2, W}), leaf({1, 2, W - 1})}));
    }
}

// Longer than a run of tokens and a block of channels, in each dtype. The gradient of weight sums 600 products, each from
// operands rounded once.
TEST_P(ShortConvolution, LongGradients) {
  struct Case {
    DType dtype;
    double tolerance;
  };
  for (const auto& [dtype, tolerance] :
       {Case{DType::float64, 1e-12}, Case{DType::float32, 2e-6}, Case{DType::bfloat16, 4e-3}, Case{DType::float16, 5e-4}})
    for (const std::int64_t D : {70, 128}) {
      Tensors given{random({2, 300, D}, dtype), random({D, 4}, dtype), random({D}, dtype), random({2, D, 3}, dtype)}, exact;
      for (Tensor& x : given) {
        exact.push_back(to_data(x, DType::float64).detach().set_requires_grad());
        x.set_requires_grad();
      }
      const Tensor y_weight = random({2, 300, D}, dtype), state_weight = random({2, D, 3}, dtype);
      const auto grads_of = [&](auto&& function, const Tensors& x) {
        const auto [y, state] = function(x[0], x[1], ShortConvolutionOptions{.bias = x[2], .silu = true, .initial_state = x[3]});
        return autograd::grad({y, state}, x, {to_data(y_weight, y.dtype()), to_data(state_weight, y.dtype())});
      };
      const Tensors grads = grads_of(short_convolution, given), expected = grads_of(composed, exact);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(grads[i].dtype(), dtype);
        EXPECT_LT(relative_error(grads[i], expected[i]), tolerance) << "input " << i << " " << dtype_name(dtype) << " " << D;
      }
    }
}

TEST_P(ShortConvolution, Deterministic) {
  const Tensor x = random({2, 500, 40}, DType::float32), weight = random({40, 4}, DType::float32).set_requires_grad();
  const auto gradient = [&] {
    return autograd::grad({sum(short_convolution(x, weight, {.silu = true}).first)}, {weight})[0].to_vector<float>();
  };
  const auto first = gradient();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(gradient(), first);
}

TEST_P(ShortConvolution, OnceDifferentiable) {
  const Tensor x = leaf({1, 4, 2});
  const Tensor y = short_convolution(x, random({2, 3})).first;
  EXPECT_TRUE(throws_with<AutogradError>([&] { sum(y).backward({}, true, true); },
                                         "short_convolution: it cannot be differentiated twice"));
}

TEST_P(ShortConvolution, Errors) {
  const auto e = [&](const Shape& shape, DType dtype = DType::float32) { return zeros(shape, {dtype, device()}); };
  const auto error = [&]<class E>(TypeTag<E>, const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options,
                                  const char* text) {
    EXPECT_TRUE(throws_with<E>([&] { short_convolution(x, weight, options); }, text));
  };
  const TypeTag<ShapeError> shape;
  const TypeTag<DTypeError> dtype;
  const TypeTag<ValueError> value;
  const auto seqlens = [&](const std::vector<std::int64_t>& values) {
    return ShortConvolutionOptions{.cu_seqlens = Tensor::from_vector(values, device())};
  };
  error(shape, e({5, 3}), e({3, 4}), {}, "short_convolution: x is [5, 3], expected [batch, tokens, channels]");
  error(shape, e({2, 5, 3}), e({4, 4}), {}, "short_convolution: weight is [4, 4], expected [3, width] for x [2, 5, 3]");
  error(shape, e({2, 5, 3}), e({3, 0}), {}, "weight is [3, 0]");
  error(value, e({2, 5, 3}), e({3, 33}), {}, "expected a width of at most 32");
  error(shape, e({2, 5, 3}), e({3, 4}), {.bias = e({4})}, "bias is [4], expected [3]");
  error(shape, e({2, 5, 3}), e({3, 4}), {.initial_state = e({2, 3, 4})}, "initial_state is [2, 3, 4], expected [2, 3, 3]");
  error(dtype, e({2, 5, 3}, DType::int64), e({3, 4}), {}, "x is int64, expected a floating-point tensor");
  error(dtype, e({2, 5, 3}), e({3, 4}, DType::float64), {}, "weight is float64, but x is float32");
  error(shape, e({2, 5, 3}), e({3, 4}), seqlens({0, 5}), "cu_seqlens needs a batch of 1, x is [2, 5, 3]");
  error(value, e({1, 5, 3}), e({3, 4}), seqlens({0, 4}), "cu_seqlens goes from 0 to 4: expected 0 to 5");
  error(value, e({1, 5, 3}), e({3, 4}), seqlens({1, 5}), "cu_seqlens goes from 1 to 5");
  error(value, e({1, 5, 3}), e({3, 4}), seqlens({0, 4, 2, 5}), "cu_seqlens falls from 4 to 2 at position 2");
  error(dtype, e({1, 5, 3}), e({3, 4}), {.cu_seqlens = e({2})}, "cu_seqlens is float32: expected int32 or int64");
  error(shape, e({1, 5, 3}), e({3, 4}), {.cu_seqlens = e({1, 2}, DType::int64)}, "cu_seqlens is [1, 2]");
  if (device().is_cuda()) error(TypeTag<DeviceError>(), e({2, 5, 3}), zeros({3, 4}), {}, "x is on cuda:0, but weight is on cpu");
}

}  // namespace
}  // namespace glade
