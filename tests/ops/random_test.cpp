#include <glade/core/philox.h>
#include <glade/ops/random/random.h>

#include <algorithm>
#include <limits>

#include "support/testing.h"

namespace glade {
namespace {

using testing_support::all_close;
using testing_support::DeviceTest;
using testing_support::throws_with;

// The known-answer tests of Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  struct Case {
    Philox4 counter;
    std::uint64_t key;
    Philox4 expected;
  };
  const Case cases[] = {
      {{{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       0xffffffffffffffff,
       {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0x299f31d0a4093822,
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const Case& c : cases) {
    const Philox4 result = philox4x32(c.counter, c.key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(result.x[i], c.expected.x[i]);
  }
  EXPECT_EQ(philox(0, 0).x[0], 0x6627e8d5u);
}

class RandomTest : public DeviceTest {
 protected:
  TensorOptions options(DType dtype = DType::float32) const { return {dtype, device()}; }
};
GLADE_DEVICE_TESTS(RandomTest);

constexpr DType kFloating[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16};

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};

Moments moments(const std::vector<double>& values) {
  Moments m;
  const auto n = static_cast<double>(values.size());
  for (const double x : values) m.mean += x / n;
  for (const double x : values) m.variance += (x - m.mean) * (x - m.mean) / n;
  const double deviation = std::sqrt(m.variance);
  for (const double x : values) {
    const double z = (x - m.mean) / deviation;
    m.skewness += z * z * z / n;
    m.kurtosis += z * z * z * z / n;
  }
  return m;
}

/// The largest distance between the distribution function of `values` and `expected`, times sqrt(n) (Kolmogorov and
/// Smirnov): above 2.2 with a probability of about 1e-4 where they agree.
template <class F>
double kolmogorov_smirnov(std::vector<double> values, const F& expected) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  double distance = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double p = expected(values[i]);
    distance = std::max({distance, std::abs(p - static_cast<double>(i) / n), std::abs(p - static_cast<double>(i + 1) / n)});
  }
  return distance * std::sqrt(n);
}

TEST_P(RandomTest, UniformIsUniform) {
  Generator generator(1);
  for (const DType dtype : {DType::float64, DType::float32}) {
    const auto values = uniform({100003}, -2, 3, options(dtype), generator).to_vector<double>();
    EXPECT_LT(kolmogorov_smirnov(values, [](double x) { return (x + 2) / 5; }), 2.2);
  }
}

TEST_P(RandomTest, UniformStaysBelowItsUpperBound) {
  Generator generator(2);
  for (const DType dtype : kFloating) {
    for (const auto& [low, high] : {std::pair{0.0, 1.0}, {-1.0, -0.5}, {1000.0, 1000.5}, {-3.0, 0.0}}) {
      if (dtype == DType::bfloat16 && low == 1000) continue;  // no bfloat16 between the bounds
      const auto values = uniform({200000}, low, high, options(dtype), generator).to_vector<double>();
      EXPECT_GE(*std::min_element(values.begin(), values.end()), low);
      EXPECT_LT(*std::max_element(values.begin(), values.end()), high);
    }
    // Rounding to 16 bits keeps the mean: 0.5 to within 4 standard errors and what cutting off the last half step takes.
    const double mean = moments(uniform({200000}, 0, 1, options(dtype), generator).to_vector<double>()).mean;
    EXPECT_NEAR(mean, 0.5, 4 * std::sqrt(1.0 / 12 / 200000) + 0x1p-17);
  }
}

TEST_P(RandomTest, NormalIsNormal) {
  Generator generator(3);
  const auto cdf = [](double x) { return 0.5 * std::erfc(-(x - 1.5) / 2 / std::sqrt(2.0)); };
  constexpr int n = 400001;
  for (const DType dtype : kFloating) {
    const auto values = normal({n}, 1.5, 2, options(dtype), generator).to_vector<double>();
    const Moments m = moments(values);
    // Four standard errors of each moment, and the step of a 16-bit type near its mean.
    EXPECT_NEAR(m.mean, 1.5, 4 * 2 / std::sqrt(n));
    EXPECT_NEAR(m.variance, 4, 4 * 4 * std::sqrt(2.0 / n) + 1e-3);
    EXPECT_NEAR(m.skewness, 0, 4 * std::sqrt(6.0 / n));
    EXPECT_NEAR(m.kurtosis, 3, 4 * std::sqrt(24.0 / n));
    if (dtype == DType::float64 || dtype == DType::float32) {
      EXPECT_LT(kolmogorov_smirnov(values, cdf), 2.2);
    }
  }
}

TEST_P(RandomTest, NeighboursAreIndependent) {
  Generator generator(4);
  const auto x = normal({200000}, 0, 1, options(), generator).to_vector<double>();
  for (std::size_t lag = 1; lag <= 4; ++lag) {
    double sum = 0, squares = 0;
    for (std::size_t i = lag; i < x.size(); ++i) {
      sum += x[i] * x[i - lag];
      squares += x[i] * x[i] * x[i - lag] * x[i - lag] - 1;
    }
    EXPECT_LT(std::abs(sum) / std::sqrt(x.size()), 4.5) << lag;
    EXPECT_LT(std::abs(squares) / std::sqrt(8.0 * static_cast<double>(x.size())), 4.5) << lag;
  }
}

// Against the C library: element i comes from the words of counter i / 4 (i / 2 for float64). Numbers near 1 are 2^-24 apart in
// float32, which moves the square of the radius by half of that, twice.
TEST_P(RandomTest, NormalMatchesBoxMuller) {
  constexpr std::uint64_t seed = 0x123456789abcdef0;
  constexpr double turn = 2 * 3.14159265358979323846;
  Generator generator(seed);
  const auto narrow = normal({4002}, 0, 1, options(), generator).to_vector<double>();
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    const Philox4 words = philox(seed, i / 4);
    const std::size_t pair = i % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log((words.x[pair] + 0.5) * 0x1p-32)), angle = turn * words.x[pair + 1] * 0x1p-32;
    EXPECT_NEAR(narrow[i], radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)), 2e-6 + 0x1p-24 / radius);
  }
  generator.seed(seed);
  const auto wide = normal({1001}, 0, 1, options(DType::float64), generator).to_vector<double>();
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const Philox4 words = philox(seed, i / 2);
    const std::uint64_t first = std::uint64_t{words.x[1]} << 32 | words.x[0],
                        second = std::uint64_t{words.x[3]} << 32 | words.x[2];
    const double radius = std::sqrt(-2 * std::log((static_cast<double>(first >> 11) + 0.5) * 0x1p-53));
    const double angle = turn * (static_cast<double>(second) * 0x1p-64);
    EXPECT_NEAR(wide[i], radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)), 1e-14);
  }
}

TEST_P(RandomTest, BernoulliHasItsProbability) {
  Generator generator(5);
  constexpr int n = 100001;
  for (const double p : {0.0, 0.1, 0.5, 1.0}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64, DType::int64, DType::boolean}) {
      const auto values = bernoulli({n}, p, options(dtype), generator).to_vector<double>();
      double ones = 0;
      for (const double x : values) {
        EXPECT_TRUE(x == 0 || x == 1);
        ones += x;
      }
      EXPECT_LE(std::abs(ones - n * p), 4 * std::sqrt(n * p * (1 - p)));
    }
  }
}

TEST_P(RandomTest, EveryDeviceGivesTheSameBits) {
  for (const DType dtype : kFloating) {
    Generator here(77), there(77);
    const TensorOptions host{dtype, kCPU};
    for (const std::int64_t n : {0, 1, 3, 4, 5, 1023, 300001}) {
      for (int kind = 0; kind < 3; ++kind) {
        const auto make = [&](TensorOptions where, Generator& generator) {
          return kind == 0   ? uniform({n}, -0.3, 1.7, where, generator)
                 : kind == 1 ? normal({n}, 0.3, 1.7, where, generator)
                             : bernoulli({n}, 0.3, where, generator);
        };
        const Tensor a = to_data(make(options(dtype), here), kCPU), b = make(host, there);
        const auto *bytes = static_cast<const unsigned char*>(a.raw_data()),
                   *expected = static_cast<const unsigned char*>(b.raw_data());
        EXPECT_TRUE(std::equal(bytes, bytes + static_cast<std::size_t>(n) * dtype_size(dtype), expected))
            << dtype_name(dtype) << " " << n << " " << kind;
        EXPECT_EQ(here.state(), there.state());
      }
    }
  }
}

// Frozen results: seeds must go on giving the same numbers.
TEST_P(RandomTest, SeedsKeepTheirNumbers) {
  Generator generator(42);
  const auto u = uniform({4}, 0, 1, options(), generator).to_vector<float>();
  const Philox4 words = philox(42, 0);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(u[i], static_cast<float>(words.x[i] >> 8) * 0x1p-24f);
  EXPECT_EQ(generator.state().offset, 1u);
  uniform({5}, 0, 1, options(), generator);
  EXPECT_EQ(generator.state().offset, 3u);
  uniform({5}, 0, 1, options(DType::float64), generator);
  EXPECT_EQ(generator.state().offset, 6u);
  bernoulli({5}, 0.5, options(DType::float64), generator);
  EXPECT_EQ(generator.state().offset, 8u);
}

TEST_P(RandomTest, StateIsSavedAndRestored) {
  Generator generator(6);
  normal({17}, 0, 1, options(), generator);
  const Generator::State state = generator.state();
  const Tensor first = normal({33}, 0, 1, options(), generator);
  const Tensor second = normal({33}, 0, 1, options(), generator);
  EXPECT_FALSE(all_close(second, first));
  generator.set_state(state);
  EXPECT_TRUE(all_close(normal({33}, 0, 1, options(), generator), first, 0, 0));
  EXPECT_TRUE(all_close(normal({33}, 0, 1, options(), generator), second, 0, 0));
}

TEST_P(RandomTest, DefaultGeneratorIsSeeded) {
  manual_seed(9);
  const Tensor a = randn({2, 3}, options()), b = rand({2, 3}, options());
  EXPECT_EQ(a.shape(), (Shape{2, 3}));
  EXPECT_EQ(a.device(), device());
  manual_seed(9);
  EXPECT_TRUE(all_close(randn({2, 3}, options()), a, 0, 0));
  EXPECT_TRUE(all_close(rand({2, 3}, options()), b, 0, 0));
}

TEST_P(RandomTest, ErrorsTakeNothingFromTheGenerator) {
  Generator generator;
  EXPECT_TRUE(throws_with<DTypeError>([&] { uniform({2}, 0, 1, options(DType::int64), generator); }, "uniform: dtype is int64"));
  EXPECT_TRUE(throws_with<ValueError>([&] { uniform({2}, 1, 1, options(), generator); }, "low is 1 and high 1"));
  EXPECT_TRUE(throws_with<ValueError>([&] { uniform({2}, 0, INFINITY, options(), generator); }, "high inf"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { normal({2}, 0, 1, options(DType::boolean), generator); }, "normal: dtype is bool"));
  EXPECT_TRUE(throws_with<ValueError>([&] { normal({2}, 0, -1, options(), generator); }, "deviation is -1"));
  EXPECT_TRUE(throws_with<ValueError>([&] { bernoulli({2}, 1.5, options(), generator); }, "p is 1.5"));
  EXPECT_TRUE(throws_with<ValueError>([&] { bernoulli({2}, NAN, options(), generator); }, "p is nan"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { normal({-2}, 0, 1, options(), generator); }, "negative"));
  EXPECT_EQ(generator.state(), Generator::State{});
}

TEST_P(RandomTest, Arange) {
  EXPECT_EQ(arange(2, 7, 1, options(DType::int64)).to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 3, 4, 5, 6}));
  EXPECT_EQ(arange(0, 7, 3, options(DType::int32)).to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 3, 6}));
  EXPECT_EQ(arange(0, 6, 3, options(DType::uint8)).to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(arange(5, -2, -3, options(DType::int64)).to_vector<std::int64_t>(), (std::vector<std::int64_t>{5, 2, -1}));
  EXPECT_EQ(arange(5, 5, 1, options(DType::int64)).numel(), 0);
  EXPECT_EQ(arange(5, 0, 1, options()).numel(), 0);
  EXPECT_EQ(arange(0, 1, 0.25, options()).to_vector<double>(), (std::vector<double>{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(arange(1, -1, -0.5, options(DType::bfloat16)).to_vector<double>(), (std::vector<double>{1, 0.5, 0, -0.5}));
  const auto tenths = arange(0, 1, 0.1, options(DType::float64)).to_vector<double>();
  ASSERT_EQ(tenths.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(tenths[i], static_cast<double>(i) * 0.1);
  const auto many = arange(0, 100001, 1, options(DType::int32)).to_vector<std::int64_t>();
  for (std::size_t i = 0; i < many.size(); ++i) ASSERT_EQ(many[i], static_cast<std::int64_t>(i));
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(arange(least, most, std::int64_t{1} << 62, options(DType::int64)).to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{least, least / 2, 0, -(least / 2)}));
}

TEST_P(RandomTest, ArangeErrors) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(throws_with<ValueError>([&] { arange(0, 5, 0, options(DType::int64)); }, "step is 0"));
  EXPECT_TRUE(throws_with<ValueError>([&] { arange(0, 300, 1, options(DType::uint8)); }, "do not fit uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { arange(-1, 3, 1, options(DType::uint8)); }, "do not fit uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { arange(-most, most, 1, options(DType::int64)); }, "cannot count"));
  EXPECT_TRUE(throws_with<ValueError>([&] { arange(0, INFINITY, 1, options()); }, "cannot count"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { arange(0, 1, 0.5, options(DType::int64)); }, "dtype is int64"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { arange(0, 2, 1, options(DType::boolean)); }, "dtype is bool"));
}

TEST_P(RandomTest, Linspace) {
  EXPECT_EQ(linspace(-1, 1, 5, options()).to_vector<double>(), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(linspace(3, 4, 1, options()).to_vector<double>(), (std::vector<double>{3}));
  EXPECT_EQ(linspace(3, 4, 0, options()).numel(), 0);
  const auto values = linspace(0.1, 0.7, 1001, options(DType::float64)).to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], 0.1 + 0.6 * static_cast<double>(i) / 1000, 1e-15);
  EXPECT_EQ(values.front(), 0.1);
  EXPECT_EQ(values.back(), 0.7);
  EXPECT_TRUE(throws_with<ValueError>([&] { linspace(0, 1, -1, options()); }, "count is -1"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { linspace(0, 1, 2, options(DType::int32)); }, "linspace: dtype is int32"));
}

TEST_P(RandomTest, Eye) {
  for (const DType dtype : {DType::float32, DType::int64, DType::boolean}) {
    const auto values = eye(3, options(dtype)).to_vector<double>();
    EXPECT_EQ(values, (std::vector<double>{1, 0, 0, 0, 1, 0, 0, 0, 1}));
  }
  EXPECT_EQ(eye(0, options()).shape(), (Shape{0, 0}));
}

}  // namespace
}  // namespace glade
