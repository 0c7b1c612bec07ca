// Reductions made of others, and the extremes along a dimension with their positions.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <limits>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;

Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

class DerivedReductions : public DeviceTest {};
GLADE_DEVICE_TESTS(DerivedReductions);

void check_gradients(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  const auto function = [&](const Tensors& in) { return Tensors{f(in[0])}; };
  EXPECT_TRUE(autograd::gradcheck(function, {x}));
  EXPECT_TRUE(autograd::gradgradcheck(function, {x}));
}

TEST_P(DerivedReductions, ExtremesAlongADimension) {
  const Tensor x = random_leaf({3, 4, 5}, device());
  for (const Tensor& view : {x, transpose(x, 0, 2), slice(x, 1, 0, 4, 2)})
    for (const std::int64_t dim : {0, 1, 2, -1})
      for (const bool keepdim : {false, true}) {
        const auto [values, indices] = max(view, dim, keepdim);
        EXPECT_TRUE(all_close(values, amax(view, {dim}, keepdim), 0, 0));
        EXPECT_TRUE(all_close(indices, argmax(view, dim, keepdim), 0, 0));
        const auto smallest = min(view, dim, keepdim);
        EXPECT_TRUE(all_close(smallest.values, amin(view, {dim}, keepdim), 0, 0));
        EXPECT_TRUE(all_close(smallest.indices, argmin(view, dim, keepdim), 0, 0));
      }
  check_gradients([](const Tensor& t) { return square(max(t, 1).values); }, x);
  check_gradients([](const Tensor& t) { return square(min(transpose(t, 0, 1), -1, true).values); }, x);
  Tensor ties = Tensor::from_vector(Values{1, 5, 5, 5, 2, 0}, {2, 3}, device()).set_requires_grad();
  sum(max(ties, 1).values).backward();
  EXPECT_EQ(ties.grad().to_vector<double>(), (Values{0, 1, 0, 1, 0, 0}));
  EXPECT_TRUE(throws_with<ShapeError>([&] { max(zeros({2, 0}, x.options()), 1); }, "max: x is [2, 0]"));
  EXPECT_TRUE(throws_with<IndexError>([&] { min(x, 3); }, "min: dimension 3"));
}

TEST_P(DerivedReductions, StandardDeviation) {
  const Tensor x = random_leaf({3, 4, 5}, device());
  EXPECT_TRUE(all_close(std(x, {1}), sqrt(var(x, {1}))));
  EXPECT_TRUE(all_close(std(x, {}, false, 0), sqrt(var(x, {}, false, 0))));
  check_gradients([](const Tensor& t) { return std(t, {0, 2}, true); }, x);
  const Tensor row_of_equals = Tensor::from_vector(Values{3, 3, 3, 1, 2, 6}, {2, 3}, device()).set_requires_grad();
  const Tensor deviations = std(row_of_equals, {1});
  EXPECT_TRUE(all_close(deviations, sqrt(var(row_of_equals, {1}))));
  sum(deviations).backward();
  EXPECT_TRUE(all_close(row_of_equals.grad(), Tensor::from_vector(Values{0, 0, 0, -2, -1, 3}, {2, 3}) / (2 * std::sqrt(7.0))));
  EXPECT_TRUE(throws_with<IndexError>([&] { std(x, {3}); }, "std: dimension 3"));
  EXPECT_TRUE(throws_with<IndexError>([&] { any(x, {3}); }, "any: dimension 3"));
  EXPECT_TRUE(throws_with<IndexError>([&] { all(x, {-4}); }, "all: dimension -4"));
}

TEST_P(DerivedReductions, Norms) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = random_leaf({3, 4}, device());
  const Values v = x.to_vector<double>();
  const auto expect = [&](double p, double expected) { EXPECT_NEAR(norm(x, p).item<double>(), expected, 1e-12 * expected) << p; };
  const auto power_sum = [&](double p) {
    double total = 0;
    for (const double e : v) total += std::pow(std::abs(e), p);
    return std::pow(total, 1 / p);
  };
  for (const double p : {1.0, 2.0, 3.0, 0.5}) expect(p, power_sum(p));
  const auto smaller = [](double a, double b) { return std::abs(a) < std::abs(b); };
  expect(inf, std::abs(*std::max_element(v.begin(), v.end(), smaller)));
  expect(-inf, std::abs(*std::min_element(v.begin(), v.end(), smaller)));
  expect(0, 12);
  EXPECT_EQ(norm(x, 2, {1}).shape(), (Shape{3}));
  EXPECT_EQ(norm(x, 2, {-1}, true).shape(), (Shape{3, 1}));
  EXPECT_TRUE(all_close(norm(x, 2, {0}), sqrt(sum(square(x), {0}))));
  for (const double p : {1.0, 2.0, 3.0}) check_gradients([p](const Tensor& t) { return norm(t, p, {1}); }, x);
  Tensor zero = zeros({3}, {DType::float64, device()}).set_requires_grad();
  norm(zero).backward();
  EXPECT_EQ(zero.grad().to_vector<double>(), (Values{0, 0, 0}));
  EXPECT_EQ(norm(full({4}, 300, {DType::float16, device()})).item<double>(), 600);  // whose squares overflow
  const Tensor cubed = norm(full({8}, 300, {DType::float16, device()}), 3);         // and cubes
  EXPECT_EQ(cubed.item<double>(), 600);
  EXPECT_EQ(cubed.dtype(), DType::float16);
  EXPECT_EQ(norm(x.detach(), 2).dtype(), DType::float64);
  EXPECT_TRUE(throws_with<DTypeError>([&] { norm(to(x, DType::int64)); }, "norm: x is int64"));
}

TEST_P(DerivedReductions, Products) {
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 400}, Shape{1, 70000}}) {
    const Tensor x = exp(random_tensor(shape, device(), DType::float64, 0, 0.01));
    const Tensor expected = exp(sum(log(x), {1}));
    EXPECT_TRUE(all_close(prod(x, {1}), expected, 1e-10));
    EXPECT_TRUE(all_close(prod(transpose(x, 0, 1), {0}), expected, 1e-10));
    EXPECT_TRUE(all_close(prod(to_data(x, DType::float32), {1}), expected, 1e-2));
  }
  EXPECT_EQ(prod(zeros({0}, {DType::float32, device()})).item<double>(), 1);
  const Tensor numbers = Tensor::from_vector(Integers{-3, 2, 7, 1}, device());
  for (const DType dtype : {DType::int64, DType::int32}) {
    EXPECT_EQ(prod(to_data(numbers, dtype)).item<std::int64_t>(), -42);
    EXPECT_EQ(prod(to_data(numbers, dtype)).dtype(), DType::int64);
  }
  EXPECT_EQ(integers(prod(reshape(to_data(numbers, DType::boolean), {2, 2}), {0})), (Integers{1, 1}));
  check_gradients([](const Tensor& t) { return prod(t, {1}); }, random_leaf({2, 4}, device()));
  const auto function = [](const Tensors& in) { return Tensors{prod(in[0], {1})}; };
  const Tensor with_zeros = Tensor::from_vector(Values{2, 0, 3, 0, 5, 0}, {2, 3}, device()).set_requires_grad();
  EXPECT_TRUE(autograd::gradcheck(function, {with_zeros}));
}

TEST_P(DerivedReductions, ProductsOnTheCpuPassTheRangeOfFloat32OnTheWay) {
  if (!device().is_cpu()) GTEST_SKIP() << "GPUs multiply in float32";
  Values factors(256, 1);  // products of every 64th one, as vectors have them, reach 2^130
  for (std::size_t i = 0; i < factors.size(); ++i)
    if (i % 64 < 4) factors[i] = i < 128 ? 0x1p65 : 0x1p-65;
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const double factor : {1.0, 0.0, -1.0}) {
      Values values = factors;
      values.push_back(factor);
      const Tensor column = to_data(Tensor::from_vector(values, {257, 1}), dtype), wild = contiguous(expand(column, {257, 33}));
      EXPECT_EQ(prod(column).item<double>(), factor);
      EXPECT_EQ(prod(wild, {0}).to_vector<double>(), Values(33, factor));
      EXPECT_EQ(prod(contiguous(transpose(wild, 0, 1)), {1}).to_vector<double>(), Values(33, factor));
      const double beyond = prod(slice(wild, 0, 0, 128), {0}).to_vector<double>()[5];
      EXPECT_EQ(beyond, std::numeric_limits<double>::infinity());
    }
}

TEST_P(DerivedReductions, AnyAndAll) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64, DType::uint8, DType::boolean}) {
    const Tensor x = to_data(Tensor::from_vector(Integers{0, 0, 1, 0, 1, 1}, {3, 2}, device()), dtype);
    EXPECT_EQ(any(x).dtype(), DType::boolean);
    EXPECT_EQ(integers(any(x, {1})), (Integers{0, 1, 1}));
    EXPECT_EQ(integers(all(x, {1})), (Integers{0, 0, 1}));
    EXPECT_TRUE(any(x).item<bool>());
    EXPECT_FALSE(all(x).item<bool>());
    EXPECT_EQ(any(x, {0}, true).shape(), (Shape{1, 2}));
  }
  const Tensor none = zeros({0}, {DType::boolean, device()});
  EXPECT_FALSE(any(none).item<bool>());
  EXPECT_TRUE(all(none).item<bool>());
  EXPECT_TRUE(all(full({2}, NAN, {DType::float32, device()})).item<bool>());
}

TEST_P(DerivedReductions, AnyAndAllOfEverySizeAndStart) {
  const Tensor one_true = zeros({70000}, {DType::boolean, device()}), one_false = ones({70000}, one_true.options());
  for (const std::int64_t n : {1, 15, 17, 255, 1030, 4099, 65539})
    for (const std::int64_t start : {0, 1, 7, 16}) {
      const Tensor x = slice(one_true, 0, start, start + n), y = slice(one_false, 0, start, start + n);
      EXPECT_FALSE(any(x).item<bool>()) << n << ' ' << start;
      EXPECT_TRUE(all(y).item<bool>()) << n << ' ' << start;
      for (const std::int64_t place : {std::int64_t{0}, n / 2, n - 1}) {
        fill_(slice(x, 0, place, place + 1), true);
        fill_(slice(y, 0, place, place + 1), false);
        EXPECT_TRUE(any(x).item<bool>()) << n << ' ' << start << ' ' << place;
        EXPECT_FALSE(all(y).item<bool>()) << n << ' ' << start << ' ' << place;
        fill_(x, false);
        fill_(y, true);
      }
    }
  const Tensor diagonal =
      eq(unsqueeze(arange(0, 300, 1, {DType::int64, device()}), 1), arange(0, 333, 1, {DType::int64, device()}));
  EXPECT_EQ(integers(any(diagonal, {1})), Integers(300, 1));
  EXPECT_EQ(integers(all(~diagonal, {1})), Integers(300, 0));
  Integers columns(333, 1);
  std::fill(columns.begin() + 300, columns.end(), 0);
  EXPECT_EQ(integers(any(diagonal, {0})), columns);
  EXPECT_EQ(integers(any(zeros({3, 0}, {DType::float32, device()}), {1})), Integers(3, 0));
  EXPECT_EQ(integers(all(zeros({0, 3}, {DType::float32, device()}), {0})), Integers(3, 1));
  EXPECT_TRUE(throws_with<ValueError>([&] { all(diagonal, {1, -1}); }, "all: dimension"));
}

TEST_P(DerivedReductions, EqualAndClose) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::from_vector(Values{1, -inf, 3}, device()),
               y = Tensor::from_vector(Values{1 + 1e-7, -inf, 3}, device());
  EXPECT_TRUE(equal(x, clone(x)));
  EXPECT_FALSE(equal(x, y));
  EXPECT_FALSE(equal(x, reshape(x, {1, 3})));
  EXPECT_TRUE(allclose(x, y));
  EXPECT_FALSE(allclose(x, y, 0, 1e-8));
  EXPECT_FALSE(allclose(x, -x));
  EXPECT_EQ(integers(isclose(Tensor::from_vector(Values{5, inf}, device()), Tensor::from_vector(Values{inf, 5}, device()))),
            (Integers{0, 0}));
  const Tensor nan = full({2}, NAN, {DType::float32, device()});
  EXPECT_FALSE(allclose(nan, nan));
  EXPECT_TRUE(allclose(nan, nan, 1e-5, 1e-8, true));
  EXPECT_TRUE(allclose(Tensor::from_vector(Integers{1, 2}, device()), Tensor::from_vector(Values{1, 2}, device())));
  EXPECT_FALSE(allclose(to_data(Tensor::from_vector(Integers{0}, device()), DType::uint8),
                        to_data(Tensor::from_vector(Integers{255}, device()), DType::uint8), 0, 1));
  EXPECT_TRUE(throws_with<ShapeError>([&] { allclose(x, zeros({2}, x.options())); }, "subtract"));
}

}  // namespace
}  // namespace glade
