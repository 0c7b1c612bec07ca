#include <omp.h>

#include <functional>

#include <glade/ops/norm/norm.h>

#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <support/testing.h>

namespace glade {
namespace {

using namespace testing_support;
using Values = std::vector<double>;

class Norm : public DeviceTest {};
GLADE_DEVICE_TESTS(Norm);

/// (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias, times silu(gate), by plain loops in float64.
Tensor reference(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& gate, bool centered, double eps) {
  const auto d = static_cast<std::size_t>(x.shape().back());
  const auto values = [](const Tensor& t) { return t.defined() ? t.to_vector<double>() : Values(); };
  Values v = values(x), w = values(weight), b = values(bias), g = values(gate);
  for (std::size_t row = 0; row < v.size(); row += d) {
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < d && centered; ++i) mean += v[row + i] / static_cast<double>(d);
    for (std::size_t i = 0; i < d; ++i) squares += (v[row + i] - mean) * (v[row + i] - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(d) + eps);
    for (std::size_t i = 0; i < d; ++i) {
      double& y = v[row + i];
      y = (y - mean) / deviation;
      if (!w.empty()) y *= w[i];
      if (!b.empty()) y += b[i];
      if (!g.empty()) y *= g[row + i] / (1 + std::exp(-g[row + i]));
    }
  }
  return Tensor::from_vector(v, x.shape());
}

const std::int64_t kSizes[] = {1, 2, 7, 8, 31, 64, 100, 128, 257, 512, 1000, 1024, 2048, 4099, 5120, 20000};

TEST_P(Norm, Values) {
  for (const std::int64_t d : kSizes) {
    const Tensor x = random_tensor({3, 5, d}, device(), DType::float64, 0.5, 2), gate = random_tensor({3, 5, d}, device());
    const Tensor weight = random_tensor({d}, device(), DType::float64, 1), bias = random_tensor({d}, device());
    EXPECT_TRUE(all_close(rms_norm(x), reference(x, {}, {}, {}, false, 1e-5))) << d;
    EXPECT_TRUE(all_close(rms_norm(x, weight, 0.1), reference(x, weight, {}, {}, false, 0.1))) << d;
    EXPECT_TRUE(all_close(layer_norm(x), reference(x, {}, {}, {}, true, 1e-5), 1e-11, 1e-11)) << d;
    EXPECT_TRUE(all_close(layer_norm(x, weight), reference(x, weight, {}, {}, true, 1e-5), 1e-11, 1e-11)) << d;
    EXPECT_TRUE(all_close(layer_norm(x, {}, bias), reference(x, {}, bias, {}, true, 1e-5), 1e-11, 1e-11)) << d;
    EXPECT_TRUE(all_close(layer_norm(x, weight, bias, 1e-3), reference(x, weight, bias, {}, true, 1e-3), 1e-11, 1e-11)) << d;
    EXPECT_TRUE(all_close(gated_rms_norm(x, gate), reference(x, {}, {}, gate, false, 1e-5))) << d;
    EXPECT_TRUE(all_close(gated_rms_norm(x, gate, weight), reference(x, weight, {}, gate, false, 1e-5))) << d;
  }
}

TEST_P(Norm, Views) {
  const Tensor x = random_tensor({6, 4, 10}, device());
  const Tensor weight = slice(random_tensor({20}, device()), 0, 3, 19, 4);  // 4 of them
  const Tensor turned = transpose(x, 1, 2);
  EXPECT_TRUE(all_close(rms_norm(turned, weight), reference(turned, weight, {}, {}, false, 1e-5)));
  EXPECT_TRUE(all_close(gated_rms_norm(turned, expand(slice(turned, 0, 0, 1), {6, 10, 4}), weight),
                        reference(turned, weight, {}, expand(slice(turned, 0, 0, 1), {6, 10, 4}), false, 1e-5)));
  const Tensor part = slice(x, 2, 1, 8);
  EXPECT_TRUE(all_close(layer_norm(part), reference(part, {}, {}, {}, true, 1e-5)));
  const Tensor row = random_tensor({9}, device());
  EXPECT_TRUE(all_close(rms_norm(row), reference(row, {}, {}, {}, false, 1e-5)));
}

TEST_P(Norm, Types) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const DType parameters : {dtype, DType::float32})
      for (const std::int64_t d : {5, 16, 64, 1024, 2560, 3000, 4096, 8200}) {
        const Tensor x = random_tensor({7, d}, device(), dtype, 1, 2), gate = random_tensor({7, d}, device(), dtype);
        const Tensor weight = random_tensor({d}, device(), parameters, 1), bias = random_tensor({d}, device(), parameters);
        // One rounding of the result; cancellation in + bias leaves float32's share of the summands.
        const double relative = dtype == DType::float32 ? 2e-6 : dtype == DType::float16 ? 0x1.01p-11 : 0x1.01p-8;
        const auto check = [&](const Tensor& y, const Tensor& expected) {
          EXPECT_EQ(y.dtype(), dtype);
          EXPECT_TRUE(all_close(y, expected, relative, 4e-6)) << dtype_name(dtype) << " " << d;
        };
        check(rms_norm(x, weight), reference(x, weight, {}, {}, false, 1e-5));
        check(layer_norm(x, weight, bias), reference(x, weight, bias, {}, true, 1e-5));
        check(gated_rms_norm(x, gate, weight), reference(x, weight, {}, gate, false, 1e-5));
      }
}

/// More rows than run at once, each of another size than its neighbours: a sum of another row would show.
TEST_P(Norm, ManyRows) {
  const std::int64_t rows = device().is_cpu() ? 50 : 6000;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t d : {256, 512, 1024, 2048, 4096}) {
      std::vector<double> sizes;
      for (std::int64_t row = 0; row < rows; ++row) sizes.push_back(std::pow(2.0, row % 7 - 3));
      const Tensor size = Tensor::from_vector(sizes, {rows, 1}, device());
      const Tensor x = to_data(random_tensor({rows, d}, device()) * size, dtype),
                   gate = random_tensor({rows, d}, device(), dtype);
      const Tensor residual = to_data(random_tensor({rows, d}, device()) * size, dtype);
      const Tensor weight = random_tensor({d}, device(), DType::float32, 1);
      const auto exact = [](const Tensor& t) { return to_data(t, DType::float64); };
      const double relative = dtype == DType::float32 ? 2e-6 : dtype == DType::float16 ? 0x1.01p-11 : 0x1.01p-8;
      const auto check = [&](const Tensor& y, const Tensor& expected) {
        EXPECT_TRUE(all_close(y, expected, relative, 4e-6)) << dtype_name(dtype) << " " << d;
      };
      check(rms_norm(x, weight), rms_norm(exact(x), exact(weight)));
      check(layer_norm(x, weight), layer_norm(exact(x), exact(weight)));
      check(gated_rms_norm(x, gate, weight), gated_rms_norm(exact(x), exact(gate), exact(weight)));
      check(add_rms_norm(x, residual, weight).first, rms_norm(exact(x + residual), exact(weight)));
    }
}

TEST_P(Norm, LargeMeanAndTinyVariance) {
  const Tensor x = random_tensor({4, 2000}, device(), DType::float32, 300, 1);
  EXPECT_TRUE(all_close(layer_norm(x), reference(x, {}, {}, {}, true, 1e-5), 1e-4, 1e-4));
  const Tensor constant = full({2, 16}, 7.0, {DType::float32, device()});
  EXPECT_EQ(layer_norm(constant).to_vector<float>(), std::vector<float>(32, 0.0F));
}

TEST_P(Norm, RowsOfEqualElements) {
  if (!device().is_cpu()) GTEST_SKIP() << "a GPU's mean is a rounding off";
  for (const std::int64_t d : kSizes)
    for (const double value : {0.1, 12345.678, -1e20, 3e38})
      for (const DType dtype : {DType::float64, DType::float32})
        EXPECT_TRUE(equal(layer_norm(full({2, d}, value, {dtype, device()})), zeros({2, d}, {dtype, device()}))) << d << value;
}

TEST_P(Norm, Gradients) {
  for (const std::int64_t d : {1, 3, 8}) {
    const Tensor x = random_leaf({2, 3, d}, device()), gate = random_leaf({2, 3, d}, device());
    const Tensor weight = random_leaf({d}, device(), 1), bias = random_leaf({d}, device());
    const auto check = [](const std::function<Tensor(const Tensors&)>& f, const Tensors& inputs) {
      const auto function = [&](const Tensors& in) { return Tensors{f(in)}; };
      EXPECT_TRUE(autograd::gradcheck(function, inputs));
      EXPECT_TRUE(autograd::gradgradcheck(function, inputs));
    };
    check([](const Tensors& in) { return rms_norm(in[0], {}, 0.1); }, {x});
    check([](const Tensors& in) { return rms_norm(in[0], in[1], 0.1); }, {x, weight});
    check([](const Tensors& in) { return layer_norm(in[0], {}, {}, 0.1); }, {x});
    check([](const Tensors& in) { return layer_norm(in[0], in[1], in[2], 0.1); }, {x, weight, bias});
    check([](const Tensors& in) { return layer_norm(in[0], {}, in[1], 0.1); }, {x, bias});
    check([](const Tensors& in) { return gated_rms_norm(in[0], in[1], {}, 0.1); }, {x, gate});
    check([](const Tensors& in) { return gated_rms_norm(in[0], in[1], in[2], 0.1); }, {x, gate, weight});
    check([](const Tensors& in) { return rms_norm(transpose(in[0], 0, 1), in[1], 0.1); }, {x, weight});
    // Only some of the inputs.
    check([&](const Tensors& in) { return rms_norm(x.detach(), in[0]); }, {weight});
    check([&](const Tensors& in) { return gated_rms_norm(x.detach(), in[0], weight.detach()); }, {gate});
  }
}

/// The fused backward pass against the one composed of tensor operations, which create_graph takes, in float64.
TEST_P(Norm, BackwardOfManySizes) {
  for (const std::int64_t rows : {1, 9, 700})
    for (const std::int64_t d : kSizes) {
      if (rows * d > 1'000'000) continue;
      const Tensor x = random_leaf({rows, d}, device(), 0.5), gate = random_leaf({rows, d}, device());
      const Tensor weight = random_leaf({d}, device(), 1), bias = random_leaf({d}, device());
      const Tensor grad = random_tensor({rows, d}, device());
      const auto check = [&](const Tensor& y, const Tensors& inputs) {
        const Tensors composed = autograd::grad({y}, inputs, {grad}, true, true);
        const Tensors fused = autograd::grad({y}, inputs, {grad});
        for (std::size_t i = 0; i < inputs.size(); ++i)
          EXPECT_TRUE(all_close(fused[i], composed[i], 1e-10, 1e-10)) << rows << " " << d << " " << i;
      };
      check(rms_norm(x, weight), {x, weight});
      check(layer_norm(x, weight, bias), {x, weight, bias});
      check(gated_rms_norm(x, gate, weight), {x, gate, weight});
    }
}

TEST_P(Norm, BackwardTypes) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const DType parameters : {dtype, DType::float32})
      for (const std::int64_t d : {24, 129, 256, 768, 1024, 2048, 3000, 4096}) {
        const Tensor values = random_tensor({50, d}, device(), dtype), gates = random_tensor({50, d}, device(), dtype);
        const Tensor weights = random_tensor({d}, device(), parameters, 1), grad = random_tensor({50, d}, device(), dtype);
        const auto gradients = [&](DType xs, DType ws) {
          Tensor x = to_data(values, xs).detach().set_requires_grad(), gate = to_data(gates, xs).detach().set_requires_grad();
          Tensor weight = to_data(weights, ws).detach().set_requires_grad();
          gated_rms_norm(x, gate, weight).backward(to_data(grad, xs));
          const Tensors plain = autograd::grad({rms_norm(x, weight)}, {x, weight}, {to_data(grad, xs)});
          return Tensors{x.grad(), gate.grad(), weight.grad(), plain[0], plain[1]};
        };
        const Tensors got = gradients(dtype, parameters), expected = gradients(DType::float64, DType::float64);
        const double tolerance = dtype == DType::float32 ? 1e-6 : dtype == DType::float16 ? 0x1p-11 : 0x1p-8;
        EXPECT_EQ(got[0].dtype(), dtype);
        EXPECT_EQ(got[2].dtype(), parameters);
        for (std::size_t i = 0; i < got.size(); ++i)
          EXPECT_LT(relative_error(got[i], expected[i]), tolerance) << dtype_name(dtype) << " " << i;
      }
}

TEST_P(Norm, SumAndNormInOnePass) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t d : {1, 7, 96, 256, 1024, 2560, 4096, 20000}) {
      const DType parameters = dtype == DType::float64 ? dtype : DType::float32;
      const auto leaf = [&](const Shape& shape, DType type) {
        return random_tensor(shape, device(), type).detach().set_requires_grad();
      };
      const Tensor x = leaf({3, 5, d}, dtype), residual = leaf({3, 5, d}, dtype), weight = leaf({d}, parameters);
      const Tensor grad = random_tensor({3, 5, d}, device(), dtype), grad_sum = random_tensor({3, 5, d}, device(), dtype);
      const auto [y, total] = add_rms_norm(x, residual, weight, 0.1);
      const Tensor plain_total = x + residual, plain = rms_norm(plain_total, weight, 0.1);
      EXPECT_EQ(y.to_vector<double>(), plain.to_vector<double>()) << dtype_name(dtype) << " " << d;
      EXPECT_EQ(total.to_vector<double>(), plain_total.to_vector<double>()) << dtype_name(dtype) << " " << d;
      const Tensors fused = autograd::grad({y, total}, {x, residual, weight}, {grad, grad_sum});
      const Tensors composed = autograd::grad({plain, plain_total}, {x, residual, weight}, {grad, grad_sum});
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_EQ(fused[i].to_vector<double>(), composed[i].to_vector<double>()) << dtype_name(dtype) << " " << d << " " << i;
    }
  const Tensor x = random_leaf({2, 3, 8}, device()), residual = random_leaf({2, 3, 8}, device());
  const Tensor weight = random_leaf({8}, device(), 1);
  const auto both = [](const Tensors& in) {
    const auto [y, total] = add_rms_norm(in[0], in[1], in[2], 0.1);
    return Tensors{y, total};
  };
  EXPECT_TRUE(autograd::gradcheck(both, {x, residual, weight}));
  EXPECT_TRUE(autograd::gradgradcheck(both, {x, residual, weight}));
  EXPECT_TRUE(autograd::gradcheck([](const Tensors& in) { return Tensors{add_rms_norm(in[0], in[1]).second}; }, {x, residual}));
  EXPECT_EQ(add_rms_norm(zeros({0, 4}), zeros({0, 4})).first.shape(), (Shape{0, 4}));
  EXPECT_TRUE(throws_with<ShapeError>([&] { add_rms_norm(x, weight); }, "add_rms_norm: residual is [8], expected x's shape"));
}

TEST_P(Norm, WithoutResidualTheSumIsX) {
  const Tensor x = random_leaf({3, 5, 16}, device()), weight = random_leaf({16}, device(), 1);
  const auto [y, total] = add_rms_norm(x, {}, weight);
  EXPECT_EQ(y.to_vector<double>(), rms_norm(x, weight).to_vector<double>());
  EXPECT_EQ(total.raw_data(), x.raw_data());
  const auto both = [](const Tensors& in) {
    const auto [norm, same] = add_rms_norm(in[0], {}, in[1], 0.1);
    return Tensors{norm, square(same)};
  };
  EXPECT_TRUE(autograd::gradcheck(both, {x, weight}));
  EXPECT_TRUE(autograd::gradgradcheck(both, {x, weight}));
}

TEST_P(Norm, GatedThenLinear) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t d : {7, 64, 256, 520}) {
      const DType wide = dtype == DType::float64 ? dtype : DType::float32;
      const auto leaf = [&](const Shape& shape, DType type) {
        return random_tensor(shape, device(), type).detach().set_requires_grad();
      };
      const Tensor x = leaf({3, 5, 2, d}, dtype), gate = leaf({3, 5, 2, d}, dtype), norm_weight = leaf({d}, wide);
      const Tensor weight = leaf({8, 2 * d}, wide), addend = leaf({3, 5, 8}, dtype),
                   grad = random_tensor({3, 5, 8}, device(), dtype);
      const Tensor y = gated_norm_linear(x, gate, norm_weight, 0.1, weight, addend);
      const Tensor joined = reshape(gated_rms_norm(x, gate, norm_weight, 0.1), {3, 5, 2 * d});
      const Tensor plain = linears(joined, {weight}, {}, {addend})[0];
      EXPECT_EQ(y.to_vector<double>(), plain.to_vector<double>()) << dtype_name(dtype) << " " << d;
      const Tensors inputs{x, gate, norm_weight, weight, addend};
      const Tensors got = autograd::grad({y}, inputs, {grad}), expected = autograd::grad({plain}, inputs, {grad});
      for (std::size_t i = 0; i < inputs.size(); ++i)
        EXPECT_EQ(got[i].to_vector<double>(), expected[i].to_vector<double>()) << dtype_name(dtype) << " " << d << " " << i;
    }
  const Tensors leaves{random_leaf({2, 3, 2, 8}, device()), random_leaf({2, 3, 2, 8}, device()), random_leaf({8}, device(), 1),
                       random_leaf({5, 16}, device())};
  const auto f = [](const Tensors& in) { return Tensors{gated_norm_linear(in[0], in[1], in[2], 0.1, in[3])}; };
  EXPECT_TRUE(autograd::gradcheck(f, leaves));
  EXPECT_TRUE(autograd::gradgradcheck(f, leaves));
  EXPECT_TRUE(throws_with<ShapeError>([&] { gated_norm_linear(leaves[2], leaves[2], leaves[2], 0.1, leaves[3]); },
                                      "gated_norm_linear: x is [8], expected [..., heads, channels]"));
}

TEST_P(Norm, WeightGradientHasTheSameBitsEveryTime) {
  const Tensor values = random_tensor({3000, 96}, device(), DType::float32),
               grad = random_tensor({3000, 96}, device(), DType::float32);
  const auto weight_gradient = [&] {
    Tensor x = values.detach().set_requires_grad(), weight = ones({96}, {DType::float32, device()}).set_requires_grad();
    rms_norm(x, weight).backward(grad);
    return weight.grad().to_vector<float>();
  };
  const auto expected = weight_gradient();
  const int threads = omp_get_max_threads();
  for (const int n : {1, 2, 5}) {
    omp_set_num_threads(n);
    EXPECT_EQ(weight_gradient(), expected) << n << " threads";
  }
  omp_set_num_threads(threads);
}

TEST_P(Norm, Empty) {
  Tensor x = zeros({0, 4}, {DType::float64, device()}).set_requires_grad(), weight = random_leaf({4}, device());
  const Tensor y = rms_norm(x, weight);
  EXPECT_EQ(y.shape(), x.shape());
  sum(y).backward();
  EXPECT_EQ(weight.grad().to_vector<double>(), Values(4, 0.0));
  EXPECT_EQ(x.grad().shape(), x.shape());
  EXPECT_EQ(layer_norm(zeros({3, 0}, {DType::float32, device()})).shape(), (Shape{3, 0}));
}

TEST_P(Norm, Errors) {
  const TensorOptions f32{DType::float32, device()};
  const Tensor x = zeros({2, 3}, f32);
  EXPECT_TRUE(throws_with<ShapeError>([&] { rms_norm(x, zeros({4}, f32)); }, "rms_norm: weight is [4], expected [3]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { layer_norm(x, {}, zeros({1, 3}, f32)); }, "layer_norm: bias is [1, 3]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { gated_rms_norm(x, zeros({3}, f32)); }, "gated_rms_norm: gate is [3]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { rms_norm(zeros({}, f32)); }, "rms_norm: x has no dimension"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { rms_norm(zeros({3}, {DType::int32, device()})); }, "rms_norm: x is int32"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { rms_norm(x, zeros({3}, {DType::bfloat16, device()})); }, "weight is bfloat16"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { gated_rms_norm(x, zeros({2, 3}, {DType::float64, device()})); }, "gate is float64"));
  const Tensor half = zeros({2, 3}, {DType::float16, device()});
  EXPECT_TRUE(throws_with<DTypeError>([&] { layer_norm(half, zeros({3}, f32), zeros({3}, half.options())); }, "bias is float16"));
}

}  // namespace
}  // namespace glade
