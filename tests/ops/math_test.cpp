// Mathematical functions on the CPU against <cmath> in long double: special values, and all exponents and bits at random.
#include <bit>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include <glade/glade.h>

namespace glade {
namespace {

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
using Real = long double;

template <class T>
std::vector<T> special_values() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values{0,
                        Limits::denorm_min(),
                        Limits::min() / 3,
                        Limits::min(),
                        Limits::epsilon(),
                        T(1e-8),
                        T(0.25),
                        T(0.5),
                        T(0.875),
                        T(1),
                        T(1.5),
                        T(2),
                        T(3),
                        T(4),
                        T(6),
                        T(7),
                        T(44),
                        T(87.4),
                        T(88.5),
                        T(88.8),
                        T(104),
                        T(709.5),
                        T(745.5),
                        T(1e5 + 1),
                        Limits::max() / 2,
                        Limits::max(),
                        Limits::infinity()};
  for (std::size_t i = values.size(); i-- > 0;) values.push_back(-values[i]);
  values.push_back(Limits::quiet_NaN());
  return values;
}

/// Special values, then half of any bits, half of sizes that functions are computed for.
template <class T>
std::vector<T> arguments(std::size_t count) {
  std::mt19937_64 random(25);
  std::normal_distribution<double> normal;
  std::vector<T> values = special_values<T>();
  while (values.size() < count) {
    values.push_back(std::bit_cast<T>(static_cast<BitsOf<T>>(random())));
    values.push_back(static_cast<T>(normal(random) * std::exp2(normal(random) * 3)));
  }
  return values;
}

/// How far `got` is from the true value, in units of the last place of T; infinity where one of them is special and differs.
template <class T>
Real ulps(T got, Real expected) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(expected)) return std::isnan(got) ? 0 : INFINITY;
  const T nearest = static_cast<T>(expected);
  if (got == nearest) return got != 0 || std::signbit(got) == std::signbit(expected) ? 0 : INFINITY;
  if (std::isnan(got) || std::isinf(expected)) return INFINITY;
  // Infinity counts as the number after the largest.
  const Real value = std::isinf(got) ? std::copysign(std::ldexp(Real(1), Limits::max_exponent), Real(got)) : Real(got);
  const int exponent = std::max(std::ilogb(expected == 0 ? Real(Limits::denorm_min()) : expected), Limits::min_exponent - 1);
  return std::abs(value - expected) / std::ldexp(Real(1), exponent + 1 - Limits::digits);
}

struct Case {
  const char* name;
  Tensor (*operation)(const Tensor&);
  Real (*reference)(Real);
  double bound, bound_of_double;  ///< ulps
};

const Case kCases[] = {
    {"exp", exp, [](Real x) { return std::exp(x); }, 1.2, 1.2},
    {"expm1", expm1, [](Real x) { return std::expm1(x); }, 1.7, 2},
    {"log", log, [](Real x) { return std::log(x); }, 1, 1},
    {"log1p", log1p, [](Real x) { return std::log1p(x); }, 1.5, 1.5},
    {"tanh", tanh, [](Real x) { return std::tanh(x); }, 2.49, 2.6},
    {"erf", erf, [](Real x) { return std::erf(x); }, 1.2, 2},
    {"sin", sin, [](Real x) { return std::sin(x); }, 1, 1},
    {"cos", cos, [](Real x) { return std::cos(x); }, 1, 1},
    {"softplus", softplus, [](Real x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }, 1.8, 2},
};

template <class T>
void expect_right(const Case& test, const std::vector<T>& x, const std::vector<T>& y) {
  Real worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Real error = ulps(y[i], test.reference(Real(x[i])));
    if (!(error <= worst)) worst = error, at = i;
  }
  EXPECT_LE(worst, sizeof(T) == 4 ? test.bound : test.bound_of_double) << test.name << " of " << x[at] << " is " << y[at];
}

template <class T>
void check_functions() {
  const std::vector<T> x = arguments<T>(150001);
  const auto n = static_cast<std::int64_t>(x.size());
  for (const Case& test : kCases) expect_right(test, x, test.operation(Tensor::from_vector(x, {n})).template to_vector<T>());
}

TEST(Math, Float32FunctionsAreWithinTwoUnits) { check_functions<float>(); }
TEST(Math, Float64FunctionsAreWithinTwoUnits) { check_functions<double>(); }

template <class T>
void check_power() {
  const std::vector<T> special = special_values<T>();
  std::vector<T> x, y;
  for (const T a : special)
    for (const T b : special) x.push_back(a), y.push_back(b);
  std::mt19937_64 random(8);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 30000; ++i) {
    x.push_back(std::abs(std::bit_cast<T>(static_cast<BitsOf<T>>(random()))));
    y.push_back(static_cast<T>(normal(random)));
    x.push_back(static_cast<T>(std::exp2(normal(random))));
    y.push_back(static_cast<T>(normal(random) * 20));
  }
  const Shape shape{static_cast<std::int64_t>(x.size())};
  const Tensor bases = Tensor::from_vector(x, shape);
  const std::vector<T> powers = power(bases, Tensor::from_vector(y, shape)).template to_vector<T>();
  Real worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Real error = ulps(powers[i], std::pow(Real(x[i]), Real(y[i])));
    if (!(error <= worst)) worst = error, at = i;
  }
  EXPECT_LE(worst, 1) << x[at] << " to the power " << y[at] << " is " << powers[at];

  for (const double exponent : {2., 3., -1., 0.5, -0.5, 0., 1., 1.7, -3.}) {  // some have formulas of their own
    const std::vector<T> results = power(bases, exponent).template to_vector<T>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T rounded = static_cast<T>(exponent);
      ASSERT_LE(ulps(results[i], std::pow(Real(x[i]), Real(rounded))), 1.6)
          << x[i] << " to the power " << exponent << " is " << results[i];
    }
  }
}

TEST(Math, Float32PowersAreWithinOneUnit) { check_power<float>(); }
TEST(Math, Float64PowersAreWithinOneUnit) { check_power<double>(); }

// fmod is exact.
template <class T>
void check_remainder() {
  std::vector<T> x, y;
  for (const T a : special_values<T>())
    for (const T b : special_values<T>()) x.push_back(a), y.push_back(b);
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 50000; ++i) {
    x.push_back(std::bit_cast<T>(static_cast<BitsOf<T>>(random())));
    y.push_back(std::bit_cast<T>(static_cast<BitsOf<T>>(random())));
    x.push_back(static_cast<T>(normal(random) * 1000));
    y.push_back(static_cast<T>(normal(random)));
    const T divisor = static_cast<T>(normal(random)), multiple = divisor * static_cast<T>(random() >> (43 + i % 20));
    for (const T a : {std::nextafter(multiple, T(0)), multiple, std::nextafter(multiple, T(INFINITY))})
      x.push_back(a), y.push_back(divisor);
  }
  const Shape shape{static_cast<std::int64_t>(x.size())};
  const std::vector<T> rests = remainder(Tensor::from_vector(x, shape), Tensor::from_vector(y, shape)).template to_vector<T>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const T rest = std::fmod(x[i], y[i]), expected = rest != 0 && (rest < 0) != (y[i] < 0) ? rest + y[i] : rest;
    ASSERT_EQ(ulps(rests[i], Real(expected)), 0) << x[i] << " % " << y[i] << " is " << rests[i] << ", expected " << expected;
  }
}

TEST(Math, Float32RemaindersAreExact) { check_remainder<float>(); }
TEST(Math, Float64RemaindersAreExact) { check_remainder<double>(); }

// Ranges of elements are shared out over threads and vectors: none may show.
TEST(Math, ResultsDependOnTheirArgumentsAlone) {
  std::vector<float> values = arguments<float>(3000);
  std::erase_if(values, [](float x) { return std::isnan(x); });
  const Tensor x = Tensor::from_vector(values, {static_cast<std::int64_t>(values.size())});
  for (const Case& test : kCases) {
    const std::vector<float> whole = test.operation(x).to_vector<float>();
    for (const std::int64_t n : {1, 2, 3, 7, 13, 31, 517}) {
      const std::vector<float> part = test.operation(slice(x, 0, 5, 5 + n)).to_vector<float>();
      for (std::size_t i = 0; i < part.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(part[i]) & 0x7fffffff, std::bit_cast<std::uint32_t>(whole[i + 5]) & 0x7fffffff)
            << test.name << " of " << values[i + 5];
    }
  }
}

TEST(Math, SixteenBitsAreTheRoundedResultsOfFloat32) {
  const std::vector<float> values = arguments<float>(2000);
  const Tensor x = to_data(Tensor::from_vector(values, {static_cast<std::int64_t>(values.size())}), DType::bfloat16);
  const Tensor wide = to_data(x, DType::float32);
  const auto same = [](const Tensor& a, const Tensor& b) {
    const std::vector<float> left = to_data(a, DType::float32).to_vector<float>();
    const std::vector<float> right = to_data(to_data(b, DType::bfloat16), DType::float32).to_vector<float>();
    for (std::size_t i = 0; i < left.size(); ++i)
      if (!(left[i] == right[i] || (std::isnan(left[i]) && std::isnan(right[i])))) return false;
    return true;
  };
  for (const Case& test : kCases) EXPECT_TRUE(same(test.operation(x), test.operation(wide))) << test.name;
  EXPECT_TRUE(same(power(abs(x), x), power(abs(wide), wide)));
  EXPECT_TRUE(same(power(x, 1.5), power(wide, 1.5)));
}

TEST(Math, DerivativesOfSineAndCosine) {
  const std::vector<double> values = arguments<double>(2000);
  Tensor x = Tensor::from_vector(values, {static_cast<std::int64_t>(values.size())}).set_requires_grad();
  const Tensor weights = zeros_like(x.detach()) + 2.0;
  const std::vector<double> of_sin = autograd::grad({sin(x)}, {x}, {weights})[0].to_vector<double>();
  const std::vector<double> of_cos = autograd::grad({cos(x)}, {x}, {weights})[0].to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(ulps(of_sin[i], 2 * std::cos(Real(values[i]))), 1) << values[i];
    ASSERT_LE(ulps(of_cos[i], -2 * std::sin(Real(values[i]))), 1) << values[i];
  }
}

}  // namespace
}  // namespace glade
