#include <cmath>
#include <functional>

#include <glade/core/math.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class Elementwise : public DeviceTest {};
GLADE_DEVICE_TESTS(Elementwise);

struct UnaryCase {
  const char* name;
  Tensor (*operation)(const Tensor&);
  double (*reference)(double);
  bool positive;  // defined for positive numbers only
};

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

const UnaryCase kUnary[] = {
    {"negative", negative, [](double x) { return -x; }, false},
    {"abs", abs, [](double x) { return std::abs(x); }, false},
    {"square", square, [](double x) { return x * x; }, false},
    {"exp", exp, [](double x) { return std::exp(x); }, false},
    {"log", log, [](double x) { return std::log(x); }, true},
    {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, true},
    {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, true},
    {"expm1", expm1, [](double x) { return std::expm1(x); }, false},
    {"log1p", log1p, [](double x) { return std::log1p(x); }, true},
    {"erf", erf, [](double x) { return std::erf(x); }, false},
    {"floor", floor, [](double x) { return std::floor(x); }, false},
    {"ceil", ceil, [](double x) { return std::ceil(x); }, false},
    {"round", round, [](double x) { return std::nearbyint(x); }, false},
    {"trunc", trunc, [](double x) { return std::trunc(x); }, false},
    {"sign", sign, [](double x) { return double((x > 0) - (x < 0)); }, false},
    {"reciprocal", reciprocal, [](double x) { return 1 / x; }, true},
    {"sin", sin, [](double x) { return std::sin(x); }, false},
    {"cos", cos, [](double x) { return std::cos(x); }, false},
    {"tanh", tanh, [](double x) { return std::tanh(x); }, false},
    {"sigmoid", sigmoid, sigmoid_of, false},
    {"logsigmoid", logsigmoid, [](double x) { return std::log(sigmoid_of(x)); }, false},
    {"softplus", softplus, [](double x) { return std::log1p(std::exp(x)); }, false},
    {"relu", relu, [](double x) { return std::max(x, 0.0); }, false},
    {"silu", silu, [](double x) { return x * sigmoid_of(x); }, false},
    {"gelu", [](const Tensor& x) { return gelu(x); }, [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }, false},
    {"gelu_tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); },
     [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }, false},
};

Tensor unary_input(const UnaryCase& test, const Shape& shape, Device device, DType dtype = DType::float64) {
  Tensor x = random_tensor(shape, kCPU, DType::float64, 0, 1.5);
  if (test.positive) x = abs(x) + 0.2;
  return to_data(to_data(x, dtype), device);
}

/// Values in float64 against the reference on the values that the dtype holds.
Tensor apply_reference(const Tensor& x, const std::function<double(double)>& f) {
  std::vector<double> values = x.to_vector<double>();
  for (double& value : values) value = f(value);
  return Tensor::from_vector(values, x.shape());
}

TEST_P(Elementwise, UnaryValues) {
  // One rounding of the result in 16 bits; 4 ulp in float32.
  const std::pair<DType, double> dtypes[] = {
      {DType::float64, 1e-14}, {DType::float32, 5e-7}, {DType::bfloat16, 4e-3}, {DType::float16, 5e-4}};
  for (const UnaryCase& test : kUnary) {
    for (const auto& [dtype, tolerance] : dtypes) {
      const Tensor x = unary_input(test, {7, 33}, device(), dtype);
      const Tensor y = test.operation(x);
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_TRUE(all_close(y, apply_reference(x, test.reference), tolerance, tolerance * 0.2))
          << test.name << " " << dtype_name(dtype);
    }
  }
}

TEST_P(Elementwise, UnaryOfViewsScalarsAndNothing) {
  for (const UnaryCase& test : kUnary) {
    const Tensor x = unary_input(test, {6, 10}, device());
    for (const Tensor& view : {transpose(x, 0, 1), slice(x, 1, 1, 9, 3), expand(select(x, 0, 2), {4, 10}), slice(x, 0, 0, 0),
                               select(select(x, 0, 1), 0, 3)})
      EXPECT_TRUE(all_close(test.operation(view), apply_reference(view, test.reference), 1e-14, 1e-15)) << test.name;
  }
}

TEST_P(Elementwise, UnaryGradients) {
  for (const UnaryCase& test : kUnary) {
    const Tensor x = unary_input(test, {3, 4}, device()).set_requires_grad();
    const auto f = [&test](const Tensors& in) { return Tensors{test.operation(in[0])}; };
    EXPECT_TRUE(autograd::gradcheck(f, {x})) << test.name;
    EXPECT_TRUE(autograd::gradgradcheck(f, {x})) << test.name;
  }
}

TEST_P(Elementwise, FusedDerivativeEqualsRecordedOne) {
  for (const UnaryCase& test : kUnary) {
    const Tensor x = unary_input(test, {50}, device()).set_requires_grad();
    const Tensor weights = random_tensor({50}, device());
    const Tensor fused = autograd::grad({test.operation(x)}, {x}, {weights})[0];
    const Tensor recorded = autograd::grad({test.operation(x)}, {x}, {weights}, false, true)[0];
    EXPECT_TRUE(all_close(fused, recorded, 1e-12, 1e-14)) << test.name;
  }
}

TEST_P(Elementwise, ExtremeArguments) {
  const float inf = INFINITY;
  const Tensor x = Tensor::from_vector<float>({-inf, -1e4f, -90.f, 0.f, 90.f, 1e4f, inf, NAN}, device());
  const auto equals = [](const Tensor& y, const std::vector<float>& expected) {
    return all_close(y, Tensor::from_vector(expected), 1e-6, 1e-30);
  };
  EXPECT_TRUE(equals(exp(x), {0, 0, 8.194013e-40f, 1, inf, inf, inf, NAN}));
  EXPECT_TRUE(equals(sigmoid(x), {0, 0, 8.194013e-40f, 0.5, 1, 1, 1, NAN}));
  EXPECT_TRUE(equals(logsigmoid(x), {-inf, -1e4f, -90, -0.6931472f, 0, 0, 0, NAN}));
  EXPECT_TRUE(equals(softplus(x), {0, 0, 0, 0.6931472f, 90, 1e4f, inf, NAN}));
  EXPECT_TRUE(equals(tanh(x), {-1, -1, -1, 0, 1, 1, 1, NAN}));
  EXPECT_TRUE(equals(relu(x), {0, 0, 0, 0, 90, 1e4f, inf, NAN}));
  EXPECT_TRUE(equals(log(x), {NAN, NAN, NAN, -inf, 4.4998097f, 9.2103404f, inf, NAN}));
  EXPECT_TRUE(equals(maximum(x, zeros_like(x)), {0, 0, 0, 0, 90, 1e4f, inf, NAN}));
  EXPECT_TRUE(equals(maximum(zeros_like(x), x), {0, 0, 0, 0, 90, 1e4f, inf, NAN}));
  EXPECT_TRUE(equals(minimum(zeros_like(x), x), {-inf, -1e4f, -90, 0, 0, 0, 0, NAN}));
  EXPECT_TRUE(equals(clamp(x, -1, 1), {-1, -1, -1, 0, 1, 1, 1, NAN}));
}

// Every pattern of 16 bits, beside float32, signs of zeros included.
TEST_P(Elementwise, SixteenBitsWithoutConversion) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const Tensor x = empty({65536}, {dtype, kCPU});
    for (std::int64_t i = 0; i < 65536; ++i) static_cast<std::uint16_t*>(x.raw_data())[i] = static_cast<std::uint16_t>(i);
    const Tensor there = to_data(x, device());
    for (const auto operation : {maximum, minimum})
      for (const std::int64_t distance : {0, 1, 20000, 32768}) {
        const Tensor other = to_data(cat({slice(x, 0, distance, 65536), slice(x, 0, 0, distance)}), device());
        EXPECT_TRUE(all_close(to_data(to_data(operation(there, other), DType::float32), kCPU),
                              operation(to_data(x, DType::float32), to_data(to_data(other, kCPU), DType::float32)), 0, 0));
      }
    for (const auto operation : {negative, abs, relu}) {
      const Tensor narrow = to_data(to_data(operation(there), DType::float32), kCPU),
                   wide = operation(to_data(x, DType::float32));
      EXPECT_TRUE(all_close(narrow, wide, 0, 0));
      EXPECT_TRUE(all_close(1 / narrow, 1 / wide, 0, 0));
    }
  }
}

struct BinaryCase {
  const char* name;
  Tensor (*operation)(const Tensor&, const Tensor&);
  double (*reference)(double, double);
};
const BinaryCase kBinary[] = {
    {"add", add, [](double a, double b) { return a + b; }},
    {"subtract", subtract, [](double a, double b) { return a - b; }},
    {"multiply", multiply, [](double a, double b) { return a * b; }},
    {"divide", divide, [](double a, double b) { return a / b; }},
    {"power", power, [](double a, double b) { return std::pow(a, b); }},
    {"remainder", remainder, [](double a, double b) { return std::fmod(a, b); }},
    {"maximum", maximum, [](double a, double b) { return std::max(a, b); }},
    {"minimum", minimum, [](double a, double b) { return std::min(a, b); }},
    {"eq", eq, [](double a, double b) { return double(a == b); }},
    {"ne", ne, [](double a, double b) { return double(a != b); }},
    {"lt", lt, [](double a, double b) { return double(a < b); }},
    {"le", le, [](double a, double b) { return double(a <= b); }},
    {"gt", gt, [](double a, double b) { return double(a > b); }},
    {"ge", ge, [](double a, double b) { return double(a >= b); }},
    {"floor_divide", floor_divide, [](double a, double b) { return std::floor(a / b); }},
};

Tensor positive(const Shape& shape, Device device, DType dtype = DType::float64) {
  return to_data(to_data(abs(random_tensor(shape)) + 0.3, dtype), device);
}

/// Broadcasts by hand: element i of the result's row-major order in a of shape `shape`.
double element(const std::vector<double>& values, const Shape& shape, const Shape& result, std::int64_t i) {
  std::int64_t at = 0, step = 1;
  for (int d = 1; d <= result.ndim(); ++d) {
    const std::int64_t index = i % result[result.ndim() - d];
    i /= result[result.ndim() - d];
    if (d > shape.ndim()) continue;
    const std::int64_t size = shape[shape.ndim() - d];
    if (size != 1) at += index * step;
    step *= size;
  }
  return values[static_cast<std::size_t>(at)];
}

// Both gradients come from one kernel where the operands have one shape: its ends, and memory that it does not take.
TEST_P(Elementwise, GradientsOfAProduct) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t n : {0, 1, 3, 16, 1027, 5000})
      for (const std::int64_t skipped : {0, 1}) {
        const auto leaf = [&] { return random_tensor({n + skipped}, device(), dtype).set_requires_grad(); };
        Tensor a = leaf(), b = leaf();
        const Tensor x = slice(a, 0, skipped, n + skipped), y = slice(b, 0, skipped, n + skipped);
        const Tensor gradient = random_tensor({n}, device(), dtype);
        const Tensors gradients = autograd::grad({x * y}, {x, y}, {gradient});
        const NoGradGuard no_grad;
        EXPECT_TRUE(all_close(gradients[0], gradient * y, 0, 0)) << dtype_name(dtype) << ' ' << n << ' ' << skipped;
        EXPECT_TRUE(all_close(gradients[1], gradient * x, 0, 0)) << dtype_name(dtype) << ' ' << n << ' ' << skipped;
      }
  const Tensor a = random_leaf({5, 7}, device()), b = random_leaf({7, 5}, device()), gradient = random_tensor({7, 5}, device());
  const Tensors gradients = autograd::grad({transpose(a, 0, 1) * b}, {a, b}, {gradient});
  EXPECT_TRUE(all_close(gradients[0], transpose(gradient * b.detach(), 0, 1)));
  EXPECT_TRUE(all_close(gradients[1], gradient * transpose(a.detach(), 0, 1)));
}

TEST_P(Elementwise, BinaryValuesWithBroadcasting) {
  const std::pair<Shape, Shape> shapes[] = {
      {{5, 7}, {5, 7}},          {{5, 7}, {7}}, {{5, 1}, {5, 7}}, {{1, 7}, {5, 1}},
      {{2, 1, 3, 1}, {4, 1, 6}}, {{}, {3, 2}},  {{0, 3}, {1, 3}}, {{2, 3, 4, 5}, {3, 1, 5}}};
  for (const BinaryCase& test : kBinary) {
    for (const auto& [a_shape, b_shape] : shapes) {
      const Tensor a = positive(a_shape, device()), b = positive(b_shape, device());
      const Tensor y = test.operation(a, b);
      const Shape shape = broadcast_shapes(a_shape, b_shape, "test");
      std::vector<double> expected(static_cast<std::size_t>(shape.numel()));
      const auto av = a.to_vector<double>(), bv = b.to_vector<double>();
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = test.reference(element(av, a_shape, shape, static_cast<std::int64_t>(i)),
                                     element(bv, b_shape, shape, static_cast<std::int64_t>(i)));
      EXPECT_TRUE(all_close(y, Tensor::from_vector(expected, shape), 1e-14, 0)) << test.name << a_shape.str() << b_shape.str();
    }
  }
}

TEST_P(Elementwise, BinaryDTypes) {
  for (const DType a_type :
       {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::int32, DType::uint8}) {
    for (const DType b_type : {DType::float32, DType::bfloat16, DType::int64, DType::uint8}) {
      const Tensor a = to_data(Tensor::from_vector<float>({1, 2, 3, 100}), a_type),
                   b = to_data(Tensor::from_vector<float>({5, 2, 1, 2}), b_type);
      const Tensor x = to_data(a, device()), y = to_data(b, device());
      EXPECT_EQ((x + y).dtype(), promote(a_type, b_type));
      EXPECT_EQ((x + y).to_vector<double>(), (std::vector<double>{6, 4, 4, 102}));
      EXPECT_EQ((x * y).to_vector<double>(), (std::vector<double>{5, 4, 3, 200}));
      EXPECT_TRUE(is_floating((x / y).dtype()));
      EXPECT_EQ((x / y).to_vector<float>()[2], 3.f);
      EXPECT_EQ(maximum(x, y).to_vector<double>(), (std::vector<double>{5, 2, 3, 100}));
      EXPECT_EQ(lt(x, y).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 0, 0, 0}));
    }
  }
  const Tensor integers = Tensor::from_vector<std::int32_t>({7, -7}, device());
  EXPECT_EQ((integers + 1).dtype(), DType::int32);
  EXPECT_EQ((integers * 0.5).dtype(), DType::float32);
  EXPECT_EQ((2 - integers).to_vector<std::int64_t>(), (std::vector<std::int64_t>{-5, 9}));
  EXPECT_EQ((integers / 2).to_vector<float>(), (std::vector<float>{3.5f, -3.5f}));
  EXPECT_EQ(exp(integers).dtype(), DType::float32);
  EXPECT_EQ(abs(integers).dtype(), DType::int32);
}

TEST_P(Elementwise, BinaryGradients) {
  for (const BinaryCase& test : kBinary) {
    if (test.name == std::string("eq")) break;  // comparisons and what follows have no gradient
    const Tensor a = positive({3, 1, 2}, device()).set_requires_grad(), b = positive({4, 2}, device()).set_requires_grad();
    const auto f = [&test](const Tensors& in) { return Tensors{test.operation(in[0], in[1])}; };
    EXPECT_TRUE(autograd::gradcheck(f, {a, b})) << test.name;
    EXPECT_TRUE(autograd::gradgradcheck(f, {a, b})) << test.name;
  }
}

// A case of its own on CUDA: in vectors, with elements left over, at addresses that are aligned and are not.
TEST_P(Elementwise, OneElementBesideMany) {
  for (const std::int64_t n : {1, 5, 4096, 70001})
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int32, DType::uint8}) {
      std::vector<std::int64_t> values(static_cast<std::size_t>(n + 3));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i % 13);
      const Tensor x = to_data(Tensor::from_vector(values, {n + 3}, device()), dtype), one = slice(x, 0, 3, 4);  // 3
      for (const std::int64_t first : {0, 3}) {
        const Tensor many = slice(x, 0, first, first + n);
        const auto expect = [&](const char* name, const Tensor& y, const std::function<double(double)>& f) {
          EXPECT_TRUE(all_close(y, apply_reference(many, f), 0, 0)) << name << ' ' << n << ' ' << dtype_name(dtype);
        };
        expect("multiply", many * one, [](double v) { return v * 3; });
        expect("add", one + many, [](double v) { return 3 + v; });
        expect("less", lt(one, many), [](double v) { return 3 < v; });
        expect("where", where(lt(many, one), one, many), [](double v) { return std::max(v, 3.0); });
        expect("square", square(expand(one, {n})), [](double) { return 9; });
      }
    }
}

TEST_P(Elementwise, ScalarOperands) {
  const Tensor x = positive({3, 5}, device()).set_requires_grad();
  const std::pair<std::function<Tensor(const Tensor&)>, std::function<double(double)>> cases[] = {
      {[](const Tensor& t) { return t + 2.5; }, [](double v) { return v + 2.5; }},
      {[](const Tensor& t) { return 2.5 - t; }, [](double v) { return 2.5 - v; }},
      {[](const Tensor& t) { return t - 2; }, [](double v) { return v - 2; }},
      {[](const Tensor& t) { return t * -3; }, [](double v) { return v * -3; }},
      {[](const Tensor& t) { return t / 3; }, [](double v) { return v / 3; }},
      {[](const Tensor& t) { return 3 / t; }, [](double v) { return 3 / v; }},
      {[](const Tensor& t) { return power(t, 2.5); }, [](double v) { return std::pow(v, 2.5); }},
      {[](const Tensor& t) { return power(t, 0); }, [](double) { return 1.0; }},
      {[](const Tensor& t) { return clamp(t, 0.5, 1.25); }, [](double v) { return std::min(std::max(v, 0.5), 1.25); }},
      {[](const Tensor& t) { return -t; }, [](double v) { return -v; }},
  };
  for (const auto& [operation, reference] : cases) {
    EXPECT_TRUE(all_close(operation(x), apply_reference(x.detach(), reference), 1e-14, 0));
    const auto f = [&operation = operation](const Tensors& in) { return Tensors{operation(in[0])}; };
    EXPECT_TRUE(autograd::gradcheck(f, {x}));
    EXPECT_TRUE(autograd::gradgradcheck(f, {x}));
  }
  EXPECT_EQ(gt(x, 0.5).to_vector<std::int64_t>(), gt(x, full({}, 0.5, x.options())).to_vector<std::int64_t>());
}

TEST_P(Elementwise, PowersOfZero) {
  const std::vector<double> exponents{0, 1, 2, 3};
  const Tensor x = zeros({4}, {DType::float64, device()}).set_requires_grad(), y = Tensor::from_vector(exponents, device());
  sum(power(x, y)).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 1, 0, 0}));
}

TEST_P(Elementwise, Where) {
  const Tensor condition = Tensor::from_vector<bool>({true, false, true}, device());
  const Tensor a = random_leaf({2, 3}, device()), b = random_leaf({1}, device());
  const auto y = where(condition, a, b).to_vector<double>(), av = a.to_vector<double>();
  EXPECT_EQ(y, (std::vector<double>{av[0], b.item<double>(), av[2], av[3], b.item<double>(), av[5]}));
  const auto f = [&condition](const Tensors& in) { return Tensors{where(condition, in[0], in[1])}; };
  EXPECT_TRUE(autograd::gradcheck(f, {a, b}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {a, b}));
}

TEST_P(Elementwise, TiesShareTheGradient) {
  const Tensor a = ones({3}, {DType::float64, device()}).set_requires_grad(),
               b = ones({3}, {DType::float64, device()}).set_requires_grad();
  sum(maximum(a, b)).backward();
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{0.5, 0.5, 0.5}));
}

TEST_P(Elementwise, Conversions) {
  const Tensor x = Tensor::from_vector<double>({1.5, -2.25, 3}, device()).set_requires_grad();
  const Tensor y = to(x, DType::float32);
  EXPECT_EQ(y.dtype(), DType::float32);
  sum(y * y).backward();
  EXPECT_EQ(x.grad().dtype(), DType::float64);
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{3, -4.5, 6}));
  EXPECT_TRUE(to(x, DType::float64).is_same(x));
  const Tensor copy = clone(x);
  EXPECT_NE(copy.raw_data(), x.raw_data());
  EXPECT_EQ(copy.to_vector<double>(), x.to_vector<double>());
}

TEST_P(Elementwise, InPlace) {
  const Tensor x = Tensor::from_vector<float>({1, 2, 3, 4}, {2, 2}, device());
  const Tensor column = select(x, 1, 1);
  multiply_(column, 10);
  add_(x, Tensor::from_vector<float>({1, 2}, device()), 0.5);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1.5f, 21, 3.5f, 41}));
  multiply_(x, x);
  EXPECT_EQ(x.to_vector<float>()[1], 441.f);
  copy_(x, Tensor::from_vector<std::int64_t>({7, 8}));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{7, 8, 7, 8}));
  zero_(column);
  fill_(select(x, 1, 0), 2.5);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{2.5f, 0, 2.5f, 0}));
}

TEST_P(Elementwise, InPlaceRoundsOnce) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const Tensor start = random_tensor({50, 20}, device(), dtype, 1, 0.2);
    const auto check = [&](const char* what, const auto& change, const auto& operation) {
      const Tensor x = clone(start), exact = operation(to_data(start, DType::float32));
      change(x);
      EXPECT_TRUE(all_close(x, to_data(exact, dtype), 0, 0)) << dtype_name(dtype) << " " << what;
    };
    for (const DType source : {DType::float32, DType::float64, dtype == DType::float16 ? DType::bfloat16 : DType::float16}) {
      const Tensor y = random_tensor({20}, device(), source, 2, 0.2);
      check("add_", [&](const Tensor& x) { add_(x, y, 0.25); }, [&](const Tensor& x) { return x + y * 0.25; });
      check("multiply_", [&](const Tensor& x) { multiply_(x, y); }, [&](const Tensor& x) { return x * y; });
      check("divide_", [&](const Tensor& x) { divide_(x, y); }, [&](const Tensor& x) { return x / y; });
    }
    check("add_", [](const Tensor& x) { add_(x, 0.3); }, [](const Tensor& x) { return x + 0.3; });
    check("multiply_", [](const Tensor& x) { multiply_(x, 0.3); }, [](const Tensor& x) { return x * 0.3; });
    check("divide_", [](const Tensor& x) { divide_(x, 0.3); }, [](const Tensor& x) { return x / 0.3; });
  }
  const Tensor whole = ones({2}, {DType::int64, device()}), wide = ones({2}, {DType::float64, device()});
  EXPECT_TRUE(throws_with<DTypeError>([&] { add_(whole, 0.5); }, "add_: int64 plus 0.5 does not stay int64"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { divide_(whole, 2); }, "divide_: a quotient does not stay int64"));
  const Tensor expanded = expand(zeros({1}, {DType::float16, device()}), {2});
  EXPECT_TRUE(throws_with<ValueError>([&] { add_(expanded, wide); }, "add_: the target of shape [2] is expanded"));
}

TEST_P(Elementwise, InPlaceFromTheSameMemory) {
  // As if the source were read before anything is written.
  const auto numbers = [&] { return to_data(arange(0, 1000 * 1000, 1, {DType::float64, kCPU}), device()); };
  const auto part = [](const Tensor& x, std::int64_t first) { return slice(x, 0, first, first + 999000); };
  using Change = void (*)(const Tensor&, const Tensor&);
  for (const Change change : {Change([](const Tensor& x, const Tensor& y) { copy_(x, y); }),
                              Change([](const Tensor& x, const Tensor& y) { add_(x, y, -1); }),
                              Change([](const Tensor& x, const Tensor& y) { multiply_(x, y); })}) {
    const auto check = [&](const Tensor& x, const Tensor& target, const Tensor& source) {
      const Tensor expected = clone(target);
      change(expected, clone(source));
      change(target, source);
      EXPECT_TRUE(all_close(target, expected, 0, 0)) << x.shape()[0];
    };
    Tensor x = numbers();
    check(x, x, select(x, 0, 2));
    for (const std::int64_t first : {0, 1, 500}) check(x = numbers(), part(x, first), part(x, 1));
    x = reshape(numbers(), {1000, 1000});
    check(x, x, transpose(x, 0, 1));
    check(x, x, slice(x, 0, 7, 8));
    check(x, slice(x, 1, 0, 500), slice(x, 1, 500, 1000));
    check(x, x, x);
  }
  const Tensor expanded = expand(zeros({1, 3}, {DType::float32, device()}), {2, 3}), one = ones_like(expanded);
  EXPECT_TRUE(throws_with<ValueError>([&] { add_(expanded, one); }, "add_: the target of shape [2, 3] is expanded"));
  EXPECT_TRUE(throws_with<ValueError>([&] { copy_(expanded, one); }, "copy_: the target of shape [2, 3] is expanded"));
}

TEST_P(Elementwise, NumbersThatIntegersCannotHold) {
  const Tensor bytes = Tensor::from_vector<std::int64_t>({0, 5, 255}, device()), x = to_data(bytes, DType::uint8);
  const auto values = [](const Tensor& y) { return y.to_vector<std::int64_t>(); };
  using Numbers = std::vector<std::int64_t>;
  EXPECT_EQ(values(eq(x, 261)), (Numbers{0, 0, 0}));
  EXPECT_EQ(values(ne(x, 261)), (Numbers{1, 1, 1}));
  EXPECT_EQ(values(gt(x, -1)), (Numbers{1, 1, 1}));
  EXPECT_EQ(values(lt(x, 256)), (Numbers{1, 1, 1}));
  EXPECT_EQ(values(eq(to_data(bytes, DType::int32), std::int64_t{1} << 32)), (Numbers{0, 0, 0}));
  EXPECT_EQ(values(clamp(x, -1, 300)), (Numbers{0, 5, 255}));
  EXPECT_EQ(values(clamp(x, 3, std::int64_t{1} << 40)), (Numbers{3, 5, 255}));
  EXPECT_EQ(values(x - 1), (Numbers{255, 4, 254}));
  EXPECT_EQ(clamp(x, -1, 300).dtype(), DType::uint8);
  EXPECT_TRUE(throws_with<ValueError>([&] { clamp(x, 256, 300); }, "clamp: 256 does not fit in uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { clamp(x, -2, -1); }, "clamp: -1 does not fit in uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { x + 256; }, "add: 256 does not fit in uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { x * -1; }, "multiply: -1 does not fit in uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { 300 - x; }, "subtract: 300 does not fit in uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { fill_(x, 300); }, "fill: 300 does not fit in uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { full({2}, NAN, x.options()); }, "fill: nan does not fit in uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multiply_(x, 256); }, "multiply_: 256 does not fit in uint8"));
  EXPECT_EQ(values(x), (Numbers{0, 5, 255}));
}

TEST_P(Elementwise, LargeTensorsAreThreadedRight) {
  const Tensor a = random_tensor({300, 1, 700}, device(), DType::float32), b = random_tensor({5, 1}, device(), DType::float32);
  const Tensor y = a * b;
  const auto av = a.to_vector<float>(), bv = b.to_vector<float>(), yv = y.to_vector<float>();
  for (std::size_t i = 0; i < yv.size(); ++i) ASSERT_EQ(yv[i], av[i / 3500 * 700 + i % 700] * bv[i / 700 % 5]) << i;
}

TEST_P(Elementwise, Errors) {
  const Tensor a = zeros({2, 3}, {DType::float32, device()}), b = zeros({4}, {DType::float32, device()});
  EXPECT_TRUE(throws_with<ShapeError>([&] { add(a, b); }, "add: shapes [2, 3] and [4]"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multiply(a, Tensor{}); }, "multiply"));
  const Tensor flags = zeros({2, 3}, {DType::boolean, device()});
  EXPECT_TRUE(throws_with<DTypeError>([&] { add(flags, flags); }, "add: expected numbers, got bool"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { negative(flags); }, "negative"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { where(a, a, a); }, "where: the condition must be bool"));
  EXPECT_TRUE(throws_with<ValueError>([&] { clamp(a, 1, 0); }, "clamp: min 1 is above max 0"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { add_(b, a); }, "add_"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { add_(zeros({2, 3}, {DType::int32, device()}), a); }, "add_"));
  const Tensor leaf = zeros({4}, {DType::float32, device()}).set_requires_grad();
  EXPECT_TRUE(throws_with<AutogradError>([&] { fill_(leaf, 1); }, "fill_: the target requires a gradient"));
  EXPECT_TRUE(throws_with<AutogradError>([&] { add_(b, leaf); }, "add_: the source requires a gradient"));
  if (device().is_cpu()) return;
  EXPECT_TRUE(throws_with<DeviceError>([&] { add(a, zeros({2, 3})); }, "cuda:0, but the second operand is on cpu"));
}

TEST(Math, Float32FunctionsAreWithinFourUlp) {
  const auto worst = [](float low, float high, float (*f)(float), double (*reference)(double)) {
    double ulps = 0;
    for (int i = 0; i <= 200000; ++i) {
      const float x = low + (high - low) * static_cast<float>(i) / 200000;
      const double expected = reference(x);
      const double ulp = std::ldexp(1.0, std::max(std::ilogb(expected == 0 ? 1e-38 : expected), -126) - 23);
      ulps = std::max(ulps, std::abs(f(x) - expected) / ulp);
    }
    return ulps;
  };
  // always_inline functions have no address that every optimisation level can take.
  const auto exp = [](float x) { return math::exp(x); };
  const auto log = [](float x) { return math::log(x); };
  const auto log1p_unit = [](float x) { return math::log1p_unit(x); };
  const auto tanh = [](float x) { return math::tanh(x); };
  const auto sigmoid = [](float x) { return math::sigmoid(x); };
  const auto softplus = [](float x) { return math::softplus(x); };
  EXPECT_LT(worst(-104, 88.7f, exp, std::exp), 4);
  EXPECT_LT(worst(-1, 1, exp, std::exp), 4);
  EXPECT_LT(worst(1e-38f, 1e-30f, log, std::log), 4);
  EXPECT_LT(worst(0.5f, 2, log, std::log), 4);
  EXPECT_LT(worst(1, 1e30f, log, std::log), 4);
  EXPECT_LT(worst(0, 1, log1p_unit, std::log1p), 4);
  EXPECT_LT(worst(-10, 10, tanh, std::tanh), 4);
  EXPECT_LT(worst(-0.5f, 0.5f, tanh, std::tanh), 4);
  EXPECT_LT(worst(-80, 80, sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }), 4);
  EXPECT_LT(worst(-80, 80, softplus, [](double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }), 4);
}

}  // namespace
}  // namespace glade
