#include <omp.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <support/testing.h>

namespace glade {
namespace {

using namespace testing_support;
using Values = std::vector<double>;

class Reduce : public DeviceTest {};
GLADE_DEVICE_TESTS(Reduce);

/// f of the elements of each group, in row-major order, by plain loops in float64.
Tensor reference(const Tensor& x, Dims dims, bool keepdim, const std::function<double(const Values&)>& f) {
  std::vector<bool> reduced(static_cast<std::size_t>(x.ndim()), dims.empty());
  for (const auto d : dims) reduced[static_cast<std::size_t>(d < 0 ? d + x.ndim() : d)] = true;
  Shape kept, result;
  for (int d = 0; d < x.ndim(); ++d) {
    kept.push_back(reduced[static_cast<std::size_t>(d)] ? 1 : x.shape()[d]);
    if (keepdim || !reduced[static_cast<std::size_t>(d)]) result.push_back(kept[d]);
  }
  const Strides strides = x.shape().contiguous_strides(), kept_strides = kept.contiguous_strides();
  std::vector<Values> groups(static_cast<std::size_t>(kept.numel()));
  const auto values = x.to_vector<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t group = 0;
    for (int d = 0; d < x.ndim(); ++d)
      if (!reduced[static_cast<std::size_t>(d)]) group += i / strides[d] % x.shape()[d] * kept_strides[d];
    groups[static_cast<std::size_t>(group)].push_back(values[static_cast<std::size_t>(i)]);
  }
  Values out;
  for (const Values& group : groups) out.push_back(f(group));
  return Tensor::from_vector(out, result);
}

double sum_of(const Values& v) { return std::accumulate(v.begin(), v.end(), 0.0); }
double mean_of(const Values& v) { return sum_of(v) / static_cast<double>(v.size()); }
double var_of(const Values& v) {
  const double m = mean_of(v);
  double total = 0;
  for (const double x : v) total += (x - m) * (x - m);
  return v.size() > 1 ? total / static_cast<double>(v.size() - 1) : NAN;
}
double max_of(const Values& v) { return *std::max_element(v.begin(), v.end()); }
double min_of(const Values& v) { return *std::min_element(v.begin(), v.end()); }
double logsumexp_of(const Values& v) {
  const double m = max_of(v);
  double total = 0;
  for (const double x : v) total += std::exp(x - m);
  return m + std::log(total);
}

struct Case {
  const char* name;
  std::function<Tensor(const Tensor&, const Dims&, bool)> op;
  double (*reference)(const Values&);
};
const Case kCases[] = {
    {"sum", [](const Tensor& x, const Dims& d, bool k) { return sum(x, d, k); }, sum_of},
    {"mean", [](const Tensor& x, const Dims& d, bool k) { return mean(x, d, k); }, mean_of},
    {"var", [](const Tensor& x, const Dims& d, bool k) { return var(x, d, k); }, var_of},
    {"amax", [](const Tensor& x, const Dims& d, bool k) { return amax(x, d, k); }, max_of},
    {"amin", [](const Tensor& x, const Dims& d, bool k) { return amin(x, d, k); }, min_of},
    {"logsumexp", [](const Tensor& x, const Dims& d, bool k) { return logsumexp(x, d, k); }, logsumexp_of},
};

TEST_P(Reduce, EverySetOfDimsOfEveryView) {
  const Tensor x = random_tensor({3, 4, 5, 6}, device());
  const Tensor views[] = {x,
                          permute(x, {0, 2, 1, 3}),
                          permute(x, {3, 2, 1, 0}),
                          slice(x, 3, 1, 6, 2),
                          slice(x, 0, 1, 3),
                          expand(slice(x, 1, 0, 1), {3, 7, 5, 6}),
                          reshape(x, {1, 12, 1, 30})};
  for (const Case& c : kCases)
    for (const Tensor& view : views)
      for (int set = 0; set < 16; ++set)
        for (const bool keepdim : {false, true}) {
          Dims dims;
          for (int d = 0; d < 4; ++d)
            if ((set >> d & 1) != 0) dims.push_back(set % 3 == 0 ? d - 4 : d);
          const Tensor y = c.op(view, dims, keepdim);
          EXPECT_EQ(y.device(), device());
          EXPECT_TRUE(all_close(y, reference(view, dims, keepdim, c.reference)))
              << c.name << " over set " << set << " of " << view.shape().str();
        }
}

// Lengths around vector widths, warps, blocks and chunks; rows, columns and both; few outputs and many.
const Shape kShapes[] = {{1, 1, 1},      {1, 2, 1},     {2, 31, 1},     {3, 33, 1},   {1, 257, 1},   {5, 1023, 1},  {7, 4099, 1},
                         {1, 200003, 1}, {2, 70001, 1}, {3000, 5, 1},   {700, 64, 1}, {1, 5, 3},     {1, 1000, 33}, {1, 20011, 7},
                         {1, 20000, 8},  {2, 129, 300}, {1, 300, 1025}, {40, 3, 65},  {1000, 2, 16}, {3, 9001, 4},  {1, 6000, 64},
                         {1, 2500, 257}, {1, 3, 1000},  {9, 1, 9},      {1, 4096, 1}, {2, 8200, 2},  {2200, 603, 1}};

TEST_P(Reduce, ManySizes) {
  for (const Case& c : kCases)
    for (const Shape& shape : kShapes) {
      const Tensor x = random_tensor(shape, device(), DType::float64, 1.5);
      EXPECT_TRUE(all_close(c.op(x, {1}, false), reference(x, {1}, false, c.reference), 1e-11))
          << c.name << " of " << shape.str();
    }
}

TEST_P(Reduce, FloatingTypes) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
      for (const Shape& shape : kShapes) {
        const Tensor x = random_tensor(shape, device(), dtype, 0.25);
        const Tensor y = c.op(x, {1}, false);
        EXPECT_EQ(y.dtype(), dtype);
        // One rounding to the result's type; in float32 also those of the sums, relative to the largest one on the way.
        const double epsilon = dtype == DType::float32 ? 2e-6 : dtype == DType::float16 ? 0x1p-11 : 0x1p-8;
        const double absolute = dtype == DType::float32 ? 1e-6 * std::sqrt(static_cast<double>(shape[1])) : 1e-4;
        EXPECT_TRUE(all_close(y, reference(x, {1}, false, c.reference), 1.01 * epsilon, absolute))
            << c.name << " of " << dtype_name(dtype) << " " << shape.str();
      }
}

TEST_P(Reduce, UnalignedStart) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::uint8}) {
    const Tensor x = to_data(random_tensor({4000}, device(), DType::float64, 100, 10), dtype);
    for (std::int64_t start = 0; start < 20; ++start) {
      const Tensor view = slice(x, 0, start, 3000 + 3 * start);
      const double expected = sum_of(view.to_vector<double>());
      EXPECT_NEAR(sum(view).item<double>(), expected, std::abs(expected) * (dtype == DType::bfloat16 ? 0x1p-8 : 1e-6));
      EXPECT_EQ(max(view).item<double>(), max_of(view.to_vector<double>()));
      const Tensor columns = reshape(slice(x, 0, start, start + 3900), {300, 13});
      EXPECT_TRUE(all_close(amax(columns, {0}), reference(columns, {0}, false, max_of)));
    }
  }
}

TEST_P(Reduce, Integers) {
  for (const DType dtype : {DType::int64, DType::int32, DType::uint8, DType::boolean}) {
    const Tensor x = to(random_tensor({50, 60, 3}, device(), DType::float64, 100, 30), dtype);
    for (const Dims& dims : {Dims{}, Dims{0}, Dims{1}, Dims{2}, Dims{0, 2}}) {
      EXPECT_EQ(sum(x, dims).dtype(), DType::int64);
      EXPECT_TRUE(all_close(sum(x, dims), reference(x, dims, false, sum_of), 0, 0));
      EXPECT_EQ(amax(x, dims).dtype(), dtype);
      EXPECT_TRUE(all_close(amax(x, dims), reference(x, dims, false, max_of), 0, 0));
      EXPECT_TRUE(all_close(amin(x, dims), reference(x, dims, false, min_of), 0, 0));
      EXPECT_EQ(mean(x, dims).dtype(), DType::float32);
      EXPECT_TRUE(all_close(mean(x, dims), reference(x, dims, false, mean_of), 1e-6));
      EXPECT_TRUE(all_close(var(x, dims), reference(x, dims, false, var_of), 1e-5));
      EXPECT_TRUE(all_close(logsumexp(x, dims), reference(x, dims, false, logsumexp_of), 1e-6));
    }
  }
  EXPECT_TRUE(all_close(softmax(full({4}, 3, {DType::int32, device()})), full({4}, 0.25)));
  const Tensor large = Tensor::from_vector(std::vector<std::int64_t>{std::int64_t{1} << 53, 1, 1}, device());
  EXPECT_EQ(sum(large).item<std::int64_t>(), (std::int64_t{1} << 53) + 2);
}

TEST_P(Reduce, LargeFloat32SumIsAccurate) {
  // A running float32 sum of these is off by more than 1e-3 of it.
  const std::int64_t n = 5'000'000;
  const float value = 0.1F;
  const Tensor x = full({n}, value, {DType::float32, device()});
  const double expected = static_cast<double>(n) * static_cast<double>(value);
  const double tolerance = 0x1p-20;  // eight roundings: the sums of equal numbers are all rounded the same way
  EXPECT_NEAR(sum(x).item<double>(), expected, expected * tolerance);
  EXPECT_NEAR(mean(x).item<double>(), value, value * tolerance);
  EXPECT_TRUE(all_close(sum(reshape(x, {n / 10, 10}), {0}), full({10}, expected / 10, {DType::float64, kCPU}), tolerance));
}

TEST_P(Reduce, MeanOfHalfDoesNotOverflow) {
  const Tensor x = full({4096}, 1000.0, {DType::float16, device()});
  EXPECT_EQ(mean(x).item<double>(), 1000);
}

TEST_P(Reduce, VarianceAroundLargeMean) {
  const Tensor x = random_tensor({3, 50000}, device(), DType::float32, 1000, 1);
  EXPECT_TRUE(all_close(var(x, {1}), reference(x, {1}, false, var_of), 1e-4));
  const Tensor t = transpose(x, 0, 1);
  EXPECT_TRUE(all_close(var(contiguous(t), {0}), reference(t, {0}, false, var_of), 1e-4));
}

TEST_P(Reduce, VarianceCorrection) {
  const Tensor x = Tensor::from_vector(Values{1, 2, 4}, device());
  EXPECT_NEAR(var(x, {}, false, 0).item<double>(), 14.0 / 9, 1e-15);
  EXPECT_NEAR(var(x).item<double>(), 7.0 / 3, 1e-15);
  EXPECT_TRUE(std::isnan(var(x, {}, false, 3).item<double>()));
  EXPECT_TRUE(std::isnan(var(x, {}, false, 5).item<double>()));
}

TEST_P(Reduce, ArgMax) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::int64, DType::int32, DType::uint8})
    for (const Shape& shape : kShapes) {
      const Tensor x = to(random_tensor(shape, device(), DType::float64, 100, 5), dtype);  // many ties in the small types
      const Tensor y = argmax(x, 1);
      EXPECT_EQ(y.dtype(), DType::int64);
      const auto first = [](const Values& v) { return static_cast<double>(std::max_element(v.begin(), v.end()) - v.begin()); };
      EXPECT_TRUE(all_close(y, reference(x, {1}, false, first), 0, 0)) << dtype_name(dtype) << " " << shape.str();
      const auto smallest = [](const Values& v) { return static_cast<double>(std::min_element(v.begin(), v.end()) - v.begin()); };
      EXPECT_TRUE(all_close(argmin(x, 1), reference(x, {1}, false, smallest), 0, 0)) << dtype_name(dtype) << " " << shape.str();
    }
  const Tensor x = random_tensor({3, 4, 5}, device());
  EXPECT_EQ(argmax(x, 0, true).shape(), (Shape{1, 4, 5}));
  EXPECT_EQ(argmax(transpose(x, 0, 2), -1).shape(), (Shape{5, 4}));
  EXPECT_EQ(argmax(x, std::nullopt, true).shape(), (Shape{1, 1, 1}));
  // Without a dimension the position is that in row-major order, of views too.
  const Tensor turned = transpose(x, 0, 2);
  const Values values = turned.to_vector<double>();
  EXPECT_EQ(argmax(turned).item<std::int64_t>(), std::max_element(values.begin(), values.end()) - values.begin());
  EXPECT_EQ(argmin(turned).item<std::int64_t>(), std::min_element(values.begin(), values.end()) - values.begin());
  EXPECT_FALSE(argmax(random_leaf({3}, device())).requires_grad());
}

TEST_P(Reduce, PositionsInLongAndManyRows) {
  for (const Shape& shape : {Shape{3, 9001}, Shape{2300, 1203}, Shape{9001, 3}})
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64, DType::uint8}) {
      std::vector<std::int64_t> values(static_cast<std::size_t>(shape.numel()), 5);
      const auto n = static_cast<std::size_t>(shape[1]);
      for (std::size_t row = 0; row < static_cast<std::size_t>(shape[0]); ++row)  // twice, of which the first counts
        for (const std::size_t place : {row * 37 % n, row * 101 % n}) values[row * n + place] = 9;
      const Tensor x = to_data(Tensor::from_vector(values, shape, device()), dtype);
      std::vector<std::int64_t> expected;
      for (std::size_t row = 0; row < static_cast<std::size_t>(shape[0]); ++row)
        expected.push_back(static_cast<std::int64_t>(std::min(row * 37 % n, row * 101 % n)));
      EXPECT_EQ(argmax(x, 1).to_vector<std::int64_t>(), expected) << shape.str() << dtype_name(dtype);
      EXPECT_EQ(argmax(contiguous(transpose(x, 0, 1)), 0).to_vector<std::int64_t>(), expected) << shape.str();
      EXPECT_EQ(argmin(to_data(x, DType::float64) * -1, 1).to_vector<std::int64_t>(), expected) << shape.str();
      EXPECT_EQ(argmax(x).item<std::int64_t>(), 0);
    }
  for (const double same : {-std::numeric_limits<double>::infinity(), 0.0, std::numeric_limits<double>::quiet_NaN()}) {
    const Tensor x = full({40, 700}, same, {DType::float32, device()});  // nothing is larger than another
    EXPECT_EQ(argmax(x, 1).to_vector<std::int64_t>(), std::vector<std::int64_t>(40, 0)) << same;
    EXPECT_EQ(argmin(x, 0).to_vector<std::int64_t>(), std::vector<std::int64_t>(700, 0)) << same;
  }
}

TEST_P(Reduce, NotANumberWins) {
  for (const std::int64_t n : {3, 100, 10000})
    for (const std::int64_t position : {std::int64_t{0}, n / 2, n - 1}) {
      Values values(static_cast<std::size_t>(n));
      std::iota(values.begin(), values.end(), 0.0);
      values[static_cast<std::size_t>(position)] = NAN;
      if (position + 1 < n) values.back() = NAN;
      const Tensor x = Tensor::from_vector(values, device());
      EXPECT_TRUE(std::isnan(max(x).item<double>()));
      EXPECT_TRUE(std::isnan(min(x).item<double>()));
      EXPECT_TRUE(std::isnan(logsumexp(x).item<double>()));
      EXPECT_EQ(argmax(x).item<std::int64_t>(), position);
      EXPECT_EQ(argmin(x).item<std::int64_t>(), position);
      const Tensor columns = expand(reshape(x, {n, 1}), {n, 3});
      EXPECT_EQ(argmax(contiguous(columns), 0).to_vector<std::int64_t>(), (std::vector<std::int64_t>(3, position)));
    }
}

TEST_P(Reduce, Infinities) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::float64, DType::float32}) {
    const auto x = [&](const Values& v) { return to_data(Tensor::from_vector(v, device()), dtype); };
    EXPECT_EQ(max(x({-inf, -inf})).item<double>(), -inf);
    EXPECT_EQ(argmax(x({-inf, -inf})).item<std::int64_t>(), 0);
    EXPECT_EQ(logsumexp(x({-inf, -inf})).item<double>(), -inf);
    EXPECT_EQ(logsumexp(x({-inf, 3})).item<double>(), 3);
    EXPECT_EQ(logsumexp(x({inf, 3})).item<double>(), inf);
    for (const double end : {inf, -inf}) {
      const Tensor leaf = x({end, end > 0 ? 3.0 : end}).set_requires_grad();
      logsumexp(leaf).backward();
      EXPECT_EQ(select(leaf.grad(), 0, 1).item<double>(), 0) << end;
    }
    EXPECT_NEAR(logsumexp(x({-1000, -1000})).item<double>(), -1000 + std::log(2.0), 1e-4);
    EXPECT_NEAR(logsumexp(x({1000, 1000})).item<double>(), 1000 + std::log(2.0), 1e-4);
    // Whole blocks without weight before one with a very small one.
    Values values(20000, -inf);
    values.back() = -900;
    EXPECT_EQ(logsumexp(x(values)).item<double>(), -900);
  }
  Tensor x = Tensor::from_vector(Values{-inf, -inf, 1, -inf}, {2, 2}, device()).set_requires_grad();
  sum(logsumexp(x, {1})).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, 0, 1, 0}));
}

TEST_P(Reduce, Empty) {
  const Tensor x = zeros({0, 3}, {DType::float64, device()});
  EXPECT_EQ(sum(x).item<double>(), 0);
  EXPECT_EQ(sum(x, {0}).to_vector<double>(), (Values{0, 0, 0}));
  EXPECT_EQ(sum(x, {1}).shape(), (Shape{0}));
  EXPECT_TRUE(std::isnan(mean(x).item<double>()));
  EXPECT_TRUE(std::isnan(var(x).item<double>()));
  EXPECT_EQ(logsumexp(x).item<double>(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(amax(x, {1}).shape(), (Shape{0}));
  EXPECT_EQ(argmax(x, 1).shape(), (Shape{0}));
  EXPECT_EQ(softmax(x).shape(), x.shape());
  EXPECT_EQ(cumsum(x, 0).shape(), x.shape());
  EXPECT_EQ(sum(zeros({0}, {DType::int32, device()})).item<std::int64_t>(), 0);
  EXPECT_EQ(sum(full({}, 3.0, {DType::float64, device()})).item<double>(), 3);
}

TEST_P(Reduce, SumTo) {
  const Tensor x = random_tensor({2, 3, 4, 5}, device());
  const auto check = [&](const Shape& shape, const Dims& dims) {
    const Tensor y = sum_to(x, shape);
    EXPECT_EQ(y.shape(), shape);
    EXPECT_TRUE(all_close(reshape(y, {-1}), reshape(reference(x, dims, false, sum_of), {-1}))) << shape.str();
  };
  check({5}, {0, 1, 2});
  check({4, 1}, {0, 1, 3});
  check({1, 3, 1, 5}, {0, 2});
  check({}, {});
  check({1, 1}, {});
  EXPECT_TRUE(sum_to(x, x.shape()).is_same(x));
  EXPECT_EQ(sum_to(zeros({0, 3}, {DType::float32, device()}), {1, 3}).to_vector<double>(), (Values{0, 0, 0}));
}

Values softmax_of(const Values& v) {
  const double total = logsumexp_of(v);
  Values y;
  for (const double x : v) y.push_back(std::exp(x - total));
  return y;
}

TEST_P(Reduce, Softmax) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t n : {1, 2, 7, 32, 33, 100, 256, 1000, 5003}) {
      const Tensor x = random_tensor({5, n}, device(), dtype, 2, 3);
      Values expected, expected_log;
      const auto values = x.to_vector<double>();
      for (std::size_t r = 0; r < 5; ++r) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(r) * n;
        for (const double p : softmax_of({begin, begin + n})) {
          expected.push_back(p);
          expected_log.push_back(std::log(p));
        }
      }
      const double tolerance = dtype == DType::float64   ? 1e-12
                               : dtype == DType::float32 ? 4e-6
                               : dtype == DType::float16 ? 0x1p-10
                                                         : 0x1p-8;
      const double smallest = dtype == DType::float16 ? 0x1p-24 : 1e-30;
      EXPECT_TRUE(all_close(softmax(x), Tensor::from_vector(expected, x.shape()), tolerance, smallest)) << n;
      EXPECT_TRUE(all_close(log_softmax(x), Tensor::from_vector(expected_log, x.shape()), tolerance, tolerance)) << n;
      EXPECT_EQ(softmax(x).dtype(), dtype);
    }
  const Tensor x = random_tensor({3, 4, 5}, device());
  const Tensor y = softmax(x, 1);
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_TRUE(all_close(y, transpose(softmax(contiguous(transpose(x, 1, 2))), 1, 2)));
  EXPECT_TRUE(all_close(log_softmax(permute(x, {2, 0, 1}), 0), permute(log_softmax(x, 2), {2, 0, 1})));
}

TEST_P(Reduce, LogSoftmaxOfLargeNumbers) {
  for (const std::int64_t n : {7, 1000, 5003, 40000}) {
    const Tensor x = random_tensor({3, n}, device(), DType::float32, 1e5, 1);
    EXPECT_TRUE(all_close(log_softmax(x), log_softmax(to_data(x, DType::float64)), 4e-6, 4e-6)) << n;
  }
}

TEST_P(Reduce, SoftmaxOfMaskedRows) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = to_data(Tensor::from_vector(Values{-inf, 0, -inf, 0, 1e4, 1e4, -inf, -1e4}, {2, 4}, device()), DType::float32);
  EXPECT_EQ(softmax(x).to_vector<double>(), (Values{0, 0.5, 0, 0.5, 0.5, 0.5, 0, 0}));
}

TEST_P(Reduce, Cumsum) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::int32, DType::boolean})
    for (const Shape& shape : kShapes) {
      const Tensor x = to(random_tensor(shape, device(), DType::float64, 0.5, 1), dtype);
      const auto values = x.to_vector<double>();
      std::vector<long double> sums(values.begin(), values.end());
      const std::int64_t n = shape[1], inner = shape[2];
      for (std::int64_t i = 0; i < x.numel(); ++i)
        if (i / inner % n > 0) sums[static_cast<std::size_t>(i)] += sums[static_cast<std::size_t>(i - inner)];
      const Values expected(sums.begin(), sums.end());
      // Relative to the largest sum on the way. In float64 each of n additions rounds, and the errors add up like a random walk.
      const double scale = static_cast<double>(n) * 0.5 + 3 * std::sqrt(static_cast<double>(n));
      const double tolerance = dtype == DType::float64    ? 0x1p-53 * (4 + std::sqrt(static_cast<double>(n)))
                               : dtype == DType::float32  ? 2e-7
                               : dtype == DType::bfloat16 ? 0x1p-8
                                                          : 0;
      const Tensor y = cumsum(x, 1);
      EXPECT_EQ(y.dtype(), is_floating(dtype) ? dtype : DType::int64);
      EXPECT_TRUE(all_close(y, Tensor::from_vector(expected, shape), tolerance, scale * tolerance))
          << dtype_name(dtype) << " " << shape.str();
    }
  const Tensor x = random_tensor({4, 5}, device());
  EXPECT_TRUE(all_close(cumsum(transpose(x, 0, 1), 0), transpose(cumsum(x, 1), 0, 1)));
}

TEST_P(Reduce, Gradients) {
  const auto check = [](const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
    const auto function = [&](const Tensors& inputs) { return Tensors{f(inputs[0])}; };
    EXPECT_TRUE(autograd::gradcheck(function, {x}));
    EXPECT_TRUE(autograd::gradgradcheck(function, {x}));
  };
  const Tensor x = random_leaf({3, 4, 2}, device());
  for (const Case& c : kCases)
    for (const Dims& dims : {Dims{}, Dims{1}, Dims{0, 2}})
      for (const bool keepdim : {false, true}) check([&](const Tensor& t) { return c.op(t, dims, keepdim); }, x);
  check([](const Tensor& t) { return var(t, {1}, false, 0); }, x);
  check([](const Tensor& t) { return sum(transpose(t, 0, 1), {0}); }, x);
  for (const std::int64_t dim : {0, 1, 2}) {
    check([&](const Tensor& t) { return softmax(t, dim); }, x);
    check([&](const Tensor& t) { return log_softmax(t, dim); }, x);
    check([&](const Tensor& t) { return cumsum(t, dim); }, x);
  }
  check([](const Tensor& t) { return sum_to(t, {4, 1}); }, x);
  check([](const Tensor& t) { return sum_to(t, {3, 1, 1}); }, x);
  check([](const Tensor& t) { return sum_to(t, {}); }, x);
}

TEST_P(Reduce, TiesShareTheGradient) {
  Tensor x = Tensor::from_vector(Values{1, 5, 5, 2, 5, 0}, device()).set_requires_grad();
  (max(x) * 6.0).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, 2, 2, 0, 2, 0}));
}

TEST_P(Reduce, SoftmaxBackwardInEveryType) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t n : {3, 64, 1000, 4100}) {
      const Tensor values = random_tensor({6, n}, device(), dtype), weights = random_tensor({6, n}, device(), dtype);
      for (const auto op : {softmax, log_softmax}) {
        Tensor x = values.detach().set_requires_grad(), exact = to_data(values, DType::float64).set_requires_grad();
        op(x, -1).backward(weights);
        op(exact, -1).backward(to_data(weights, DType::float64));
        const double tolerance = dtype == DType::float32 ? 1e-6 : dtype == DType::float16 ? 0x1p-9 : 0x1p-6;  // y is rounded too
        EXPECT_LT(relative_error(x.grad(), exact.grad()), tolerance) << n;
      }
    }
}

TEST_P(Reduce, SameBitsEveryTime) {
  const Tensor x = random_tensor({200, 3000}, device(), DType::float32);
  for (const Dims& dims : {Dims{}, Dims{0}, Dims{1}}) EXPECT_EQ(sum(x, dims).to_vector<float>(), sum(x, dims).to_vector<float>());
}

TEST(ReduceThreads, ResultsDoNotDependOnTheirNumber) {
  const Tensor x = random_tensor({300, 1000}, kCPU, DType::float32), flat = reshape(x, {-1});
  const auto results = [&] {
    std::vector<float> all;
    for (const Tensor& y :
         {sum(flat), var(flat), logsumexp(flat), sum(x, {0}), sum(x, {1}), var(x, {0}), cumsum(flat, 0), cumsum(x, 0)}) {
      const auto values = y.to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto expected = results();
  for (const int n : {2, 3, 7}) {
    omp_set_num_threads(n);
    EXPECT_EQ(results(), expected) << n << " threads";
  }
  omp_set_num_threads(threads);
}

TEST_P(Reduce, Errors) {
  const Tensor x = zeros({2, 3}, {DType::float32, device()}), none = zeros({2, 0}, {DType::float32, device()});
  EXPECT_TRUE(throws_with<IndexError>([&] { sum(x, {2}); }, "sum: dimension 2"));
  EXPECT_TRUE(throws_with<IndexError>([&] { mean(x, {-3}); }, "mean: dimension -3"));
  EXPECT_TRUE(throws_with<ValueError>([&] { sum(x, {1, -1}); }, "sum: dimension -1 is named twice"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { max(none); }, "max: x is [2, 0]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { amin(none, {1}); }, "amin: x is [2, 0]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { argmax(none); }, "argmax: x is [2, 0]"));
  EXPECT_TRUE(throws_with<IndexError>([&] { argmax(x, 5); }, "argmax: dimension 5"));
  EXPECT_TRUE(throws_with<IndexError>([&] { softmax(x, 2); }, "softmax: dimension 2"));
  EXPECT_TRUE(throws_with<IndexError>([&] { cumsum(x, -3); }, "cumsum: dimension -3"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { sum_to(x, {2}); }, "sum_to: [2]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { sum_to(x, {1, 2, 3}); }, "sum_to: [1, 2, 3]"));
}

}  // namespace
}  // namespace glade
