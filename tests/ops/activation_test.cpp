// swiglu and dropout.
#include <glade/core/philox.h>
#include <glade/ops/activation/activation.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class Swiglu : public DeviceTest {};
GLADE_DEVICE_TESTS(Swiglu);

Tensor swiglu_loop(const Tensor& gate, const Tensor& up) {
  const auto x = gate.to_vector<double>(), y = up.to_vector<double>();
  std::vector<double> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] / (1 + std::exp(-x[i])) * y[i];
  return Tensor::from_vector(out, gate.shape());
}

TEST_P(Swiglu, Values) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{7}, Shape{3, 5}, Shape{2, 3, 1025}, Shape{0, 4}}) {
    const Tensor gate = random_tensor(shape, device()), up = random_tensor(shape, device());
    EXPECT_TRUE(all_close(swiglu(gate, up), swiglu_loop(gate, up))) << shape.str();
  }
}

// Rounding of the result: 2^-9 of it for bfloat16, 2^-12 for float16; a few steps of 2^-24 for float32.
TEST_P(Swiglu, DTypes) {
  struct Case {
    DType dtype;
    double tolerance;
  };
  for (const auto& [dtype, tolerance] : {Case{DType::float32, 1e-6}, Case{DType::bfloat16, 4e-3}, Case{DType::float16, 5e-4}}) {
    const Tensor gate = random_tensor({3, 77}, device(), dtype).set_requires_grad();
    const Tensor up = random_tensor({3, 77}, device(), dtype).set_requires_grad();
    const Tensor out = swiglu(gate, up);
    EXPECT_EQ(out.dtype(), dtype);
    EXPECT_LT(relative_error(out, swiglu_loop(gate, up)), tolerance);

    const Tensor gate64 = to_data(gate, DType::float64).detach().set_requires_grad();
    const Tensor up64 = to_data(up, DType::float64).detach().set_requires_grad();
    sum(swiglu(gate64, up64)).backward();
    sum(out).backward();
    EXPECT_LT(relative_error(gate.grad(), gate64.grad()), tolerance);
    EXPECT_LT(relative_error(up.grad(), up64.grad()), tolerance);
  }
  const Tensor mixed = swiglu(random_tensor({4}, device(), DType::bfloat16), random_tensor({4}, device(), DType::float32));
  EXPECT_EQ(mixed.dtype(), DType::float32);
}

TEST_P(Swiglu, ExtremeGates) {
  const Tensor gate = Tensor::from_vector<float>({-1e4f, -100, 100, 1e4f}, {4}, device()).set_requires_grad();
  const Tensor up = full({4}, 2, {DType::float32, device()}), out = swiglu(gate, up);
  EXPECT_TRUE(all_close(out, Tensor::from_vector<double>({0, 0, 200, 2e4}), 1e-6, 1e-30));
  sum(out).backward();
  EXPECT_TRUE(all_close(gate.grad(), Tensor::from_vector<double>({0, 0, 2, 2}), 1e-6, 1e-30));
}

// The halves of one projection, expanded and transposed operands; forward and backward.
TEST_P(Swiglu, Views) {
  const auto check = [](const Tensor& gate, const Tensor& up) {
    const Tensor plain_gate = clone(gate.detach()).set_requires_grad(), plain_up = clone(up.detach()).set_requires_grad();
    const Tensor weight = random_tensor(gate.shape(), gate.device());
    const Tensor out = swiglu(gate, up), plain = swiglu(plain_gate, plain_up);
    EXPECT_TRUE(all_close(out, swiglu_loop(gate, up)));
    const Tensors grads = autograd::grad({sum(out * weight)}, {gate, up});
    sum(plain * weight).backward();
    EXPECT_TRUE(all_close(grads[0], plain_gate.grad()));
    EXPECT_TRUE(all_close(grads[1], plain_up.grad()));
  };
  for (const std::int64_t width : {1, 3, 8, 256}) {
    const Tensor both = random_leaf({6, 2 * width}, device());
    check(slice(both, 1, 0, width), slice(both, 1, width, 2 * width));
  }
  check(transpose(random_leaf({4, 5}, device()), 0, 1), random_leaf({5, 4}, device()));
  check(expand(random_leaf({5, 1}, device()), {5, 4}), slice(random_leaf({5, 8}, device()), 1, 0, 8, 2));
  check(permute(random_leaf({3, 4, 5}, device()), {1, 0, 2}), random_leaf({4, 3, 5}, device()));
}

TEST_P(Swiglu, Gradients) {
  const auto f = [](const Tensors& x) { return Tensors{swiglu(x[0], x[1])}; };
  EXPECT_TRUE(autograd::gradcheck(f, {random_leaf({3, 5}, device()), random_leaf({3, 5}, device())}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {random_leaf({3, 5}, device()), random_leaf({3, 5}, device())}));
}

TEST_P(Swiglu, ThenLinear) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    const DType wide = dtype == DType::float64 ? dtype : DType::float32;
    const auto leaf = [&](const Shape& shape, DType type) {
      return random_tensor(shape, device(), type).detach().set_requires_grad();
    };
    const Tensor gate = leaf({3, 5, 24}, dtype), up = leaf({3, 5, 24}, dtype), weight = leaf({16, 24}, wide);
    const Tensor addend = leaf({3, 5, 16}, dtype), grad = random_tensor({3, 5, 16}, device(), dtype);
    const Tensor y = swiglu_linear(gate, up, weight, addend), plain = linears(swiglu(gate, up), {weight}, {}, {addend})[0];
    EXPECT_EQ(y.to_vector<double>(), plain.to_vector<double>()) << dtype_name(dtype);
    const Tensors inputs{gate, up, weight, addend};
    const Tensors got = autograd::grad({y}, inputs, {grad}), expected = autograd::grad({plain}, inputs, {grad});
    for (std::size_t i = 0; i < inputs.size(); ++i)
      EXPECT_EQ(got[i].to_vector<double>(), expected[i].to_vector<double>()) << dtype_name(dtype) << " " << i;
  }
  const Tensor gate = random_leaf({2, 6, 4}, device()), up = random_leaf({2, 4, 6}, device()),
               weight = random_leaf({5, 4}, device());
  const auto f = [](const Tensors& in) { return Tensors{swiglu_linear(in[0], transpose(in[1], 1, 2), in[2], in[3])}; };
  EXPECT_TRUE(autograd::gradcheck(f, {gate, up, weight, random_leaf({2, 6, 5}, device())}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {gate, up, weight, random_leaf({2, 6, 5}, device())}));
  const auto without = [&](const Tensors& in) { return Tensors{swiglu_linear(in[0], in[0], weight.detach())}; };
  EXPECT_TRUE(autograd::gradcheck(without, {gate}));
  EXPECT_EQ(swiglu_linear(zeros({0, 4}), zeros({0, 4}), zeros({3, 4})).shape(), (Shape{0, 3}));
  EXPECT_TRUE(throws_with<ShapeError>([&] { swiglu_linear(gate, gate, zeros({5, 3}, gate.options())); },
                                      "expected [..., 3] for weight 0 of [5, 3]"));
}

// The same bits as from the operations that it is made of where their kernels run; where products have swiglu in them, sums may
// have been added in another order, so that some results are rounded to the next of their 16 bits.
TEST_P(Swiglu, GatedMLPIsLinearsAndSwigluLinear) {
  struct Case {
    DType dtype, weights;
    Shape x;
    std::int64_t columns;
    double tolerance;
  };
  std::vector<Case> cases{{DType::float64, DType::float64, {2, 3, 6}, 10, 0},
                          {DType::float32, DType::float32, {5, 6}, 10, 0},
                          {DType::bfloat16, DType::float32, {7, 24}, 40, 0},
                          {DType::bfloat16, DType::float32, {2, 4, 25}, 39, 0}};
  if (device().is_cuda())  // long enough, with and without edges
    for (const auto& [dtype, tolerance] : {std::pair{DType::bfloat16, 4e-3}, std::pair{DType::float16, 5e-4}}) {
      cases.push_back({dtype, DType::float32, {4099, 520}, 520, tolerance});
      cases.push_back({dtype, dtype, {16, 512, 256}, 512, tolerance});
      cases.push_back({dtype, DType::float32, {3, 11000, 8}, 4104, tolerance});
      cases.push_back({dtype, DType::float32, {100, 3336}, 3352, tolerance});
    }
  for (const auto& [dtype, weights, shape, columns, tolerance] : cases) {
    SCOPED_TRACE(shape.str() + " " + std::string(dtype_name(dtype)));
    const auto leaf = [&](const Shape& of, DType type, double deviation) {
      return random_tensor(of, device(), type, 0, deviation).detach().set_requires_grad();
    };
    const std::int64_t hidden = shape.back();
    const double small = 1 / std::sqrt(static_cast<double>(hidden));
    const Tensors inputs{leaf(shape, dtype, 1), leaf({columns, hidden}, weights, small), leaf({columns, hidden}, weights, small),
                         leaf({hidden, columns}, weights, small), leaf(shape, dtype, 1)};
    const Tensor grad = random_tensor(shape, device(), dtype);
    const Tensor y = gated_mlp(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]);
    const Tensors parts = linears(inputs[0], {inputs[1], inputs[2]});
    const Tensor composed = linears(swiglu(parts[0], parts[1]), {inputs[3]}, {}, {inputs[4]})[0];
    EXPECT_LE(relative_error(y, composed), tolerance);
    const Tensors got = autograd::grad({y}, inputs, {grad}), expected = autograd::grad({composed}, inputs, {grad});
    for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_LE(relative_error(got[i], expected[i]), tolerance) << i;
  }
}

// Views that begin in the middle of 16 bytes, or are not row-major.
TEST_P(Swiglu, GatedMLPOfViews) {
  if (device().is_cpu()) GTEST_SKIP() << "every tensor takes the same way there";
  constexpr std::int64_t kRows = 4096, kSize = 512;
  const auto values = [&](const Shape& shape) { return random_tensor(shape, device(), DType::bfloat16, 0, 0.1); };
  const Tensor x = values({kRows, kSize}), weight = values({kSize, kSize});
  const Tensor expected = gated_mlp(x, weight, weight, weight);
  const Tensor moved = reshape(slice(cat({zeros({1}, x.options()), reshape(x, {-1})}, 0), 0, 1, std::nullopt), x.shape());
  const Tensor turned = transpose(contiguous(transpose(weight, 0, 1)), 0, 1);
  EXPECT_LT(relative_error(gated_mlp(moved, weight, weight, weight), expected), 4e-3);
  EXPECT_LT(relative_error(gated_mlp(x, turned, weight, turned), expected), 4e-3);
}

TEST_P(Swiglu, GatedMLP) {
  const auto f = [](const Tensors& in) { return Tensors{gated_mlp(in[0], in[1], in[2], in[3], in[4])}; };
  const Tensors inputs{random_leaf({2, 3, 4}, device()), random_leaf({5, 4}, device()), random_leaf({5, 4}, device()),
                       random_leaf({4, 5}, device()), random_leaf({2, 3, 4}, device())};
  EXPECT_TRUE(autograd::gradcheck(f, inputs));
  EXPECT_TRUE(autograd::gradgradcheck(f, inputs));
  EXPECT_EQ(gated_mlp(zeros({4}), zeros({5, 4}), zeros({5, 4}), zeros({4, 5})).shape(), (Shape{4}));
  EXPECT_EQ(gated_mlp(zeros({0, 4}), zeros({5, 4}), zeros({5, 4}), zeros({4, 5})).shape(), (Shape{0, 4}));
  EXPECT_TRUE(throws_with<ShapeError>([&] { gated_mlp(zeros({2, 3}), zeros({5, 4}), zeros({5, 4}), zeros({4, 5})); },
                                      "linears: x is [2, 3], expected [..., 4] for weight 0 of [5, 4]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { gated_mlp(zeros({2, 4}), zeros({5, 4}), zeros({6, 4}), zeros({4, 5})); },
                                      "swiglu: gate is [2, 5] and up is [2, 6], expected equal shapes"));
}

TEST_P(Swiglu, Errors) {
  const TensorOptions options{DType::float32, device()};
  EXPECT_TRUE(throws_with<ShapeError>([&] { swiglu(zeros({2, 3}, options), zeros({3}, options)); },
                                      "swiglu: gate is [2, 3] and up is [3], expected equal shapes"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { swiglu(zeros({2}, {DType::int32, device()}), zeros({2}, {DType::int32, device()})); },
                                      "swiglu: gate is int32 and up is int32"));
  if (device().is_cuda()) {
    EXPECT_TRUE(throws_with<DeviceError>([&] { swiglu(zeros({2}, options), zeros({2})); }, "swiglu: gate is on cuda:0"));
  }
}

class LowRankGate : public DeviceTest {};
GLADE_DEVICE_TESTS(LowRankGate);

TEST_P(LowRankGate, EqualsTheComposition) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t channels : {64, 192, 512, 40, 576, 704, 1024, 1280})
      for (const Shape& shape : {Shape{1, 16}, Shape{3, 37, 16}, Shape{2, 2500, 16}, Shape{4, 8}}) {
        if (device().is_cpu() && shape.numel() > 4096) continue;
        const std::int64_t rank = shape.back();
        const Tensor x = random_tensor(shape, device(), dtype).set_requires_grad();
        const Tensor weight = random_tensor({channels, rank}, device(), DType::float32, 0, 0.5).set_requires_grad();
        const Tensor bias = random_tensor({channels}, device(), DType::float32, 1).set_requires_grad();
        const Tensors inputs{x, weight, bias};
        const Tensor y = low_rank_gate(x, weight, bias, 16), plain = normalized_logsigmoid(linears(x, {weight}, {bias})[0], 16);
        const double rounding = dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-11 : 1e-6;
        EXPECT_LT(relative_error(y, plain), rounding) << dtype_name(dtype) << " " << shape.str();
        const Tensor grad = random_tensor(y.shape(), device(), dtype);
        const Tensors got = autograd::grad({y}, inputs, {grad}), expected = autograd::grad({plain}, inputs, {grad});
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          EXPECT_EQ(got[i].dtype(), inputs[i].dtype());
          EXPECT_TRUE(got[i].is_contiguous());
          EXPECT_LT(relative_error(got[i], expected[i]), 2 * rounding) << dtype_name(dtype) << " " << shape.str() << " " << i;
        }
        const Tensors again = autograd::grad({low_rank_gate(x, weight, bias, 16)}, inputs, {grad}, true, true);
        for (std::size_t i = 0; i < inputs.size(); ++i)
          EXPECT_LT(relative_error(again[i].detach(), expected[i]), 2 * rounding) << dtype_name(dtype) << " " << i;
      }
  const auto f = [](const Tensors& in) { return Tensors{low_rank_gate(in[0], in[1], in[2], 2)}; };
  const Tensors leaves{random_leaf({3, 4}, device()), random_leaf({5, 4}, device()), random_leaf({5}, device())};
  EXPECT_TRUE(autograd::gradcheck(f, leaves));
  EXPECT_TRUE(autograd::gradgradcheck(f, leaves));
}

class Dropout : public DeviceTest {};
GLADE_DEVICE_TESTS(Dropout);

/// The definition, from the generator's numbers one by one.
Tensor dropout_loop(const Tensor& x, double p, Generator::State state) {
  auto values = x.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float u = uniform_from_bits(philox(state.seed, state.offset + i / 4).x[i % 4]);
    values[i] = u >= static_cast<float>(p) ? values[i] / (1 - p) : 0;
  }
  return Tensor::from_vector(values, x.shape());
}

TEST_P(Dropout, Values) {
  Generator generator(17);
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{3}, Shape{4}, Shape{5, 7}, Shape{257, 1023}, Shape{0, 3}}) {
    const Tensor x = random_tensor(shape, device());
    const Generator::State before = generator.state();
    EXPECT_TRUE(all_close(dropout(x, 0.3, true, generator), dropout_loop(x, 0.3, before))) << shape.str();
    EXPECT_EQ(generator.state().offset - before.offset, static_cast<std::uint64_t>(x.numel() + 3) / 4);
  }
}

TEST_P(Dropout, DTypes) {
  Generator generator(3);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const Tensor x = random_tensor({1001}, device(), dtype);
    const Generator::State before = generator.state();
    const Tensor y = dropout(x, 0.5, true, generator);
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_TRUE(all_close(y, dropout_loop(x, 0.5, before), 0, 0)) << dtype_name(dtype);  // doubling is exact
  }
}

TEST_P(Dropout, Views) {
  Generator generator(5);
  const Tensor wide = random_tensor({9, 12}, device());
  for (const Tensor& x : {transpose(wide, 0, 1), slice(wide, 1, 1, 12, 2), slice(reshape(wide, {108}), 0, 1, 100),
                          expand(slice(wide, 1, 0, 1), {9, 6})}) {
    const Generator::State before = generator.state();
    EXPECT_TRUE(all_close(dropout(x, 0.4, true, generator), dropout_loop(x, 0.4, before)));
  }
}

// The share of kept elements is within five standard deviations of 1 - p.
TEST_P(Dropout, Share) {
  Generator generator(11);
  const std::int64_t n = 1 << 18;
  const Tensor x = ones({n}, {DType::float32, device()});
  for (const double p : {0.1, 0.5, 0.9}) {
    const double kept = sum(dropout(x, p, true, generator)).item<double>() * (1 - p) / static_cast<double>(n);
    EXPECT_NEAR(kept, 1 - p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(n))) << p;
  }
}

TEST_P(Dropout, WithoutEffect) {
  Generator generator(1);
  const Tensor x = random_tensor({5}, device());
  EXPECT_TRUE(dropout(x, 0, true, generator).is_same(x));
  EXPECT_TRUE(dropout(x, 0.5, false, generator).is_same(x));
  EXPECT_EQ(generator.state(), (Generator::State{1, 0}));
  EXPECT_TRUE(all_close(dropout(x, 1, true, generator), zeros({5}, {DType::float64, kCPU})));
}

TEST_P(Dropout, SameMaskBackward) {
  Generator generator(2);
  const Tensor x = random_leaf({33, 5}, device());
  const Tensor y = dropout(x, 0.6, true, generator);
  const Tensor weight = random_tensor({33, 5}, device());
  sum(y * weight).backward();
  EXPECT_TRUE(all_close(x.grad(), dropout_loop(weight, 0.6, {2, 0})));
  sum(dropout(x, 1, true, generator)).backward();  // adds nothing
  EXPECT_TRUE(all_close(x.grad(), dropout_loop(weight, 0.6, {2, 0})));
}

TEST_P(Dropout, Gradients) {
  const auto f = [](const Tensors& x) {
    Generator generator(4);
    return Tensors{square(dropout(x[0], 0.5, true, generator))};
  };
  EXPECT_TRUE(autograd::gradcheck(f, {random_leaf({3, 7}, device())}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {random_leaf({3, 7}, device())}));
}

TEST_P(Dropout, Errors) {
  const Tensor x = zeros({3}, {DType::float32, device()});
  EXPECT_TRUE(throws_with<ValueError>([&] { dropout(x, -0.1); }, "dropout: p is -0.1, expected a probability in [0, 1]"));
  EXPECT_TRUE(throws_with<ValueError>([&] { dropout(x, 1.5); }, "dropout: p is 1.5"));
  EXPECT_TRUE(throws_with<ValueError>([&] { dropout(x, NAN); }, "dropout: p is nan"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { dropout(zeros({3}, {DType::int64, device()}), 0.5); }, "dropout: x is int64"));
}

TEST_P(Swiglu, NormalizedLogsigmoid) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    Tensor x = random_tensor({5, 33}, device(), dtype, 0, 4).detach().set_requires_grad();
    const Tensor y = normalized_logsigmoid(x, 16), wide = to(x.detach(), DType::float64);
    const Tensor grad = random_tensor({5, 33}, device(), dtype);
    const double rounding = dtype == DType::bfloat16  ? 0x1.1p-8
                            : dtype == DType::float16 ? 0x1.1p-11
                            : dtype == DType::float32 ? 1e-6
                                                      : 1e-14;
    EXPECT_TRUE(all_close(y, logsigmoid(wide) / 16, rounding, 1e-7)) << dtype_name(dtype);
    EXPECT_TRUE(all_close(autograd::grad({y}, {x}, {grad})[0], to(grad, DType::float64) * sigmoid(-wide) / 16, rounding, 1e-7));
  }
  const auto f = [](const Tensors& in) { return Tensors{normalized_logsigmoid(transpose(in[0], 0, 1), 4)}; };
  const Tensor x = random_leaf({3, 4}, device());
  EXPECT_TRUE(autograd::gradcheck(f, {x}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {x}));
  EXPECT_TRUE(throws_with<ValueError>([&] { normalized_logsigmoid(x, 0); }, "normalizer is 0"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { normalized_logsigmoid(zeros({2}, {DType::int64, device()}), 1); }, "x is int64"));
}

}  // namespace
}  // namespace glade
