#include <algorithm>
#include <functional>

#include <glade/ops/loss/loss.h>

#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <support/testing.h>

namespace glade {
namespace {

using namespace testing_support;
using Values = std::vector<double>;
using Targets = std::vector<std::int64_t>;

class Loss : public DeviceTest {};
GLADE_DEVICE_TESTS(Loss);

/// By plain loops in float64.
double reference(const Tensor& logits, const Targets& targets, const CrossEntropyOptions& options) {
  const auto classes = static_cast<std::size_t>(logits.shape().back());
  const Values x = logits.to_vector<double>();
  double total = 0, count = 0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == options.ignore_index) continue;
    double largest = -INFINITY, sum = 0;
    for (std::size_t c = 0; c < classes; ++c) largest = std::max(largest, x[row * classes + c]);
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(x[row * classes + c] - largest);
    for (std::size_t c = 0; c < classes; ++c) {
      const double wanted = options.label_smoothing / static_cast<double>(classes) +
                            (static_cast<std::int64_t>(c) == targets[row] ? 1 - options.label_smoothing : 0);
      total -= wanted * (x[row * classes + c] - largest - std::log(sum));
    }
    ++count;
  }
  return options.reduction == Reduction::mean ? total / count : total;
}

Targets some_targets(std::int64_t rows, std::int64_t classes, std::int64_t ignored = -100) {
  Targets targets;
  for (std::int64_t i = 0; i < rows; ++i) targets.push_back(i % 5 == 3 ? ignored : (i * 7919 + 11) % classes);
  return targets;
}

const CrossEntropyOptions kOptions[] = {{}, {-100, 0, Reduction::sum}, {-100, 0.1, Reduction::mean}, {1, 0.3, Reduction::sum}};

TEST_P(Loss, CrossEntropyValues) {
  for (const CrossEntropyOptions& options : kOptions)
    for (const std::int64_t rows : {1, 4, 33, 1500})
      for (const std::int64_t classes : {2, 3, 32, 65, 256, 1001, 5000}) {
        if (rows * classes > 500'000) continue;
        const Tensor x = random_tensor({rows, classes}, device(), DType::float64, 1, 3);
        const Targets targets = some_targets(rows, classes, options.ignore_index);
        const double expected = reference(x, targets, options), tolerance = 1e-12 * static_cast<double>(rows) * 10;
        const Tensor loss = cross_entropy(x, Tensor::from_vector(targets, device()), options);
        EXPECT_EQ(loss.shape(), Shape{});
        EXPECT_EQ(loss.dtype(), DType::float64);
        EXPECT_NEAR(loss.item<double>(), expected, tolerance) << rows << " " << classes;
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
          const Tensor rounded = to_data(x, dtype);
          const Tensor narrow = cross_entropy(rounded, to_data(Tensor::from_vector(targets, device()), DType::int32), options);
          const double exact = reference(rounded, targets, options);
          EXPECT_EQ(narrow.dtype(), DType::float32);
          EXPECT_NEAR(narrow.item<double>(), exact, 2e-6 * std::max(1.0, std::abs(exact)))
              << dtype_name(dtype) << " " << rows << " " << classes;
        }
      }
}

TEST_P(Loss, CrossEntropyOfAnyShape) {
  const Tensor x = random_tensor({4, 10, 3}, device());
  const Targets targets = some_targets(12, 10);
  const Tensor view = transpose(x, 1, 2), labels = Tensor::from_vector(targets, {4, 3}, device());
  EXPECT_NEAR(cross_entropy(view, labels).item<double>(), reference(view, targets, {}), 1e-12);
  const Tensor turned = transpose(contiguous(transpose(labels, 0, 1)), 0, 1);
  EXPECT_NEAR(cross_entropy(view, turned).item<double>(), reference(view, targets, {}), 1e-12);
  EXPECT_NEAR(cross_entropy(select(view, 0, 1), select(turned, 0, 1)).item<double>(),
              reference(select(view, 0, 1), {targets.begin() + 3, targets.begin() + 6}, {}), 1e-12);
  const Tensor one = random_tensor({5}, device());
  EXPECT_NEAR(cross_entropy(one, full({}, 2, {DType::int64, device()})).item<double>(), reference(one, {2}, {}), 1e-12);
}

TEST_P(Loss, ExtremeLogits) {
  const Tensor x = Tensor::from_vector(std::vector<float>{1e4F, 0, -1e4F, -INFINITY, 0, 0}, {2, 3}, device());
  EXPECT_NEAR(cross_entropy(x, Tensor::from_vector(Targets{1, 1}, device()), {-100, 0, Reduction::sum}).item<double>(),
              1e4 + std::log(2.0), 1e-2);
  EXPECT_EQ(cross_entropy(x, Tensor::from_vector(Targets{0, 0}, device()), {}).item<double>(), INFINITY);
}

TEST_P(Loss, NothingCounts) {
  const Tensor x = random_leaf({2, 3}, device()), ignored = Tensor::from_vector(Targets{-100, -100}, device());
  EXPECT_EQ(cross_entropy(x, ignored, {-100, 0, Reduction::sum}).item<double>(), 0);
  EXPECT_TRUE(std::isnan(cross_entropy(x, ignored).item<double>()));
  const Tensor none = zeros({0, 3}, {DType::float32, device()}), no_targets = zeros({0}, {DType::int64, device()});
  EXPECT_TRUE(std::isnan(cross_entropy(none, no_targets).item<double>()));
  EXPECT_EQ(cross_entropy(none, no_targets, {-100, 0, Reduction::sum}).item<double>(), 0);
  EXPECT_TRUE(std::isnan(nll_loss(none, no_targets).item<double>()));
}

TEST_P(Loss, NllIsTheLastStepOfCrossEntropy) {
  for (const Reduction reduction : {Reduction::mean, Reduction::sum})
    for (const std::int64_t rows : {1, 50, 3000}) {
      Tensor x = random_leaf({rows, 17}, device()), same = x.detach().set_requires_grad();
      const Tensor targets = Tensor::from_vector(some_targets(rows, 17), device());
      const Tensor fused = cross_entropy(x, targets, {-100, 0, reduction});
      const Tensor composed = nll_loss(log_softmax(same), targets, -100, reduction);
      EXPECT_NEAR(fused.item<double>(), composed.item<double>(), 1e-12 * static_cast<double>(rows) * 10);
      (fused * 3.0).backward();
      (composed * 3.0).backward();
      EXPECT_TRUE(all_close(x.grad(), same.grad()));
    }
}

TEST_P(Loss, Gradients) {
  const Tensor targets = Tensor::from_vector(Targets{2, -100, 0, 4, 1}, device());
  const auto check = [](const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
    const auto function = [&](const Tensors& in) { return Tensors{f(in[0])}; };
    EXPECT_TRUE(autograd::gradcheck(function, {x}));
    EXPECT_TRUE(autograd::gradgradcheck(function, {x}));
  };
  const Tensor x = random_leaf({5, 5}, device());
  for (const CrossEntropyOptions& options : kOptions)
    check([&](const Tensor& t) { return cross_entropy(t, targets, {-100, options.label_smoothing, options.reduction}); }, x);
  check([&](const Tensor& t) { return cross_entropy(transpose(t, 0, 1), targets); }, x);
  check([&](const Tensor& t) { return nll_loss(log_softmax(t), targets); }, x);
  check([&](const Tensor& t) { return nll_loss(t * t, targets, -100, Reduction::sum); }, x);
}

TEST_P(Loss, CrossEntropyBackwardTypes) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t classes : {10, 256, 1003})
      for (const double smoothing : {0.0, 0.2}) {
        const Tensor values = random_tensor({40, classes}, device(), dtype);
        const Tensor targets = Tensor::from_vector(some_targets(40, classes), device());
        const auto gradient = [&](DType type) {
          Tensor x = to_data(values, type).detach().set_requires_grad();
          (cross_entropy(x, targets, {-100, smoothing, Reduction::mean}) * 8.0).backward();
          return x.grad();
        };
        // float16 has a floor: its smallest number, against gradients of 8 / (32 classes).
        const double tolerance = dtype == DType::float32 ? 1e-6 : dtype == DType::float16 ? 0x1p-10 : 0x1p-8;
        EXPECT_EQ(gradient(dtype).dtype(), dtype);
        EXPECT_LT(relative_error(gradient(dtype), gradient(DType::float64)), tolerance) << dtype_name(dtype) << " " << classes;
      }
}

TEST_P(Loss, CrossEntropyOfLargeLogits) {
  for (const Reduction reduction : {Reduction::mean, Reduction::none})
    for (const std::int64_t classes : {10, 1003, 5000}) {
      const Tensor values = random_tensor({40, classes}, device(), DType::float32, 1e5, 1);
      const Tensor targets = Tensor::from_vector(some_targets(40, classes), device());
      Tensor x = values.detach().set_requires_grad(), exact = to_data(values, DType::float64).set_requires_grad();
      const Tensor loss = cross_entropy(x, targets, {-100, 0, reduction}),
                   expected = cross_entropy(exact, targets, {-100, 0, reduction});
      EXPECT_TRUE(all_close(loss, expected, 2e-6, 2e-6)) << classes;
      sum(loss).backward();
      sum(expected).backward();
      EXPECT_LT(relative_error(x.grad(), exact.grad()), 2e-6) << classes;
    }
}

TEST_P(Loss, MeanSquaredError) {
  const Tensor a = random_leaf({3, 4}, device()), b = random_leaf({3, 4}, device());
  const Values x = a.to_vector<double>(), y = b.to_vector<double>();
  double total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) total += (x[i] - y[i]) * (x[i] - y[i]);
  EXPECT_NEAR(mse_loss(a, b).item<double>(), total / 12, 1e-14);
  EXPECT_NEAR(mse_loss(a, b, Reduction::sum).item<double>(), total, 1e-13);
  const auto function = [](const Tensors& in) { return Tensors{mse_loss(in[0], in[1])}; };
  EXPECT_TRUE(autograd::gradcheck(function, {a, b}));
  EXPECT_TRUE(autograd::gradgradcheck(function, {a, b}));
  const Tensor large = full({10}, 1000.0, {DType::float16, device()});  // whose square float16 does not hold
  const Tensor loss = mse_loss(large, zeros_like(large));
  EXPECT_EQ(loss.dtype(), DType::float32);
  EXPECT_EQ(loss.item<double>(), 1e6);
}

TEST_P(Loss, Errors) {
  const TensorOptions f32{DType::float32, device()}, index{DType::int64, device()};
  const Tensor x = zeros({2, 3}, f32);
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { cross_entropy(x, zeros({3}, index)); }, "cross_entropy: targets is [3], expected [2]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { cross_entropy(zeros({}, f32), zeros({}, index)); }, "cross_entropy: logits is []"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { nll_loss(x, zeros({2, 3}, index)); }, "nll_loss: targets is [2, 3]"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { cross_entropy(x, zeros({2}, f32)); }, "cross_entropy: targets is float32"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { cross_entropy(zeros({2, 3}, index), zeros({2}, index)); }, "logits is int64"));
  EXPECT_TRUE(throws_with<ValueError>([&] { cross_entropy(x, zeros({2}, index), {-100, 1.0}); }, "label_smoothing is 1"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { mse_loss(x, zeros({3}, f32)); }, "mse_loss: a is [2, 3] and b is [3]"));
}

TEST_P(Loss, TargetsOutOfRange) {
  const Tensor x = zeros({3, 4}, {DType::float32, device()});
  for (const std::int64_t wrong : {-1, 4}) {
    const Tensor targets = Tensor::from_vector(Targets{0, wrong, 3}, device());
    if (device().is_cpu()) {
      EXPECT_TRUE(throws_with<IndexError>([&] { cross_entropy(x, targets); }, "at position 1 is outside [0, 4)"));
      EXPECT_TRUE(throws_with<IndexError>([&] { nll_loss(x, targets); }, "nll_loss: target"));
    } else {
      EXPECT_TRUE(std::isnan(cross_entropy(x, targets).item<double>()));
      EXPECT_TRUE(std::isnan(nll_loss(x, targets).item<double>()));
    }
  }
}

TEST_P(Loss, OfLinearInBlocksEqualsTheComposition) {
  // On a GPU rows of 5000 to 32768 classes have kernels of their own, the blocks of which take several rows each here. The
  // largest takes two blocks of logits.
  for (const auto& [rows, classes] :
       {std::pair<std::int64_t, std::int64_t>{7, 33}, {40, 50}, {420, 5000}, {420, 10'008}, {420, 32'000}, {20, 12'000'000}})
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      if (classes > 1000 && device().is_cpu()) continue;
      if (classes > 1'000'000 && dtype == DType::bfloat16) continue;  // gigabytes
      Tensor x = random_tensor({rows, 4}, device(), dtype).detach().set_requires_grad();
      Tensor weight = random_tensor({classes, 4}, device(), DType::float32).detach().set_requires_grad();
      std::vector<std::int64_t> labels;
      for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i % 5 == 0 ? -100 : i * 7919 % classes);
      const Tensor targets = Tensor::from_vector(labels, device());
      for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        const CrossEntropyOptions options{.label_smoothing = 0.1, .reduction = reduction};
        const Tensor loss = linear_cross_entropy(x, weight, targets, options);
        const Tensor plain = cross_entropy(linear(x, to(weight, dtype)), targets, options);
        EXPECT_EQ(loss.dtype(), DType::float32);
        EXPECT_TRUE(all_close(loss, to(plain, DType::float64), 1e-6, 1e-6)) << dtype_name(dtype) << " " << classes;
        const Tensors got = autograd::grad({loss * 3.0}, {x, weight}), expected = autograd::grad({plain * 3.0}, {x, weight});
        // bfloat16: two or three roundings. float32: the products sum `classes` or `rows` terms in orders of their own, and the
        // errors of a sum in float32 grow with the root of their number.
        for (std::size_t i = 0; i < 2; ++i) {
          const double terms = static_cast<double>(i == 0 ? classes : rows);
          const double tolerance = dtype == DType::float32 ? std::max(3e-6, 0x1p-24 * std::sqrt(terms)) : 0x1p-7;
          EXPECT_LT(relative_error(got[i], expected[i]), tolerance) << classes << " " << i;
        }
      }
    }
}

TEST_P(Loss, OfLinearGradients) {
  const Tensor x = random_leaf({2, 3, 4}, device()), weight = random_leaf({5, 4}, device());
  const Tensor targets = Tensor::from_vector<std::int64_t>({0, 4, -100, 2, 2, 1}, {2, 3}, device());
  const auto f = [&](const Tensors& in) {
    return Tensors{linear_cross_entropy(in[0], in[1], targets, {.label_smoothing = 0.2})};
  };
  EXPECT_TRUE(autograd::gradcheck(f, {x, weight}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {x, weight}));
  EXPECT_TRUE(autograd::gradcheck([&](const Tensors& in) { return f({x.detach(), in[0]}); }, {weight}));
  {
    NoGradGuard no_grad;
    EXPECT_FALSE(linear_cross_entropy(x, weight, targets).requires_grad());
  }
  EXPECT_TRUE(throws_with<ShapeError>([&] { linear_cross_entropy(x, random_leaf({5, 3}, device()), targets); },
                                      "linear_cross_entropy: x is [2, 3, 4], expected [..., 3]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { linear_cross_entropy(x, weight, zeros({2}, {DType::int64, device()})); },
                                      "linear_cross_entropy: targets is [2], expected [2, 3]"));
}

}  // namespace
}  // namespace glade
