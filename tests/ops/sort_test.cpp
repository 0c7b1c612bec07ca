#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/sort/sort.h>

#include <limits>
#include <numeric>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;

Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

class Sort : public DeviceTest {};
GLADE_DEVICE_TESTS(Sort);

/// The positions of the elements in their order, NaN above all.
Integers order_of(const Values& v, bool descending) {
  Integers order(v.size());
  std::iota(order.begin(), order.end(), 0);
  const auto less = [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
    const double a = v[static_cast<std::size_t>(i)], b = v[static_cast<std::size_t>(j)];
    return descending ? less(b, a) : less(a, b);
  });
  return order;
}

TEST_P(Sort, EveryTypeAndSize) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::int32,
                            DType::uint8, DType::boolean})
    for (const std::int64_t n : {1, 2, 17, 33, 256, 257, 1000, 1025, 4096, 4097})
      for (const std::int64_t rows : {1, 3})
        for (const bool descending : {false, true}) {
          const Tensor x = to_data(abs(random_tensor({rows, n}, device(), DType::float64, 0, 40)), dtype);
          const auto [values, indices] = sort(x, 1, descending);
          EXPECT_EQ(indices.dtype(), DType::int64);
          EXPECT_TRUE(all_close(argsort(x, 1, descending), indices, 0, 0));
          for (std::int64_t row = 0; row < rows; ++row) {
            const Values v = select(x, 0, row).to_vector<double>();
            const Integers expected = order_of(v, descending);
            EXPECT_EQ(integers(select(indices, 0, row)), expected) << dtype_name(dtype) << ' ' << n;
            Values sorted;
            for (const std::int64_t i : expected) sorted.push_back(v[static_cast<std::size_t>(i)]);
            EXPECT_EQ(select(values, 0, row).to_vector<double>(), sorted);
          }
        }
}

TEST_P(Sort, SpecialNumbers) {
  const double inf = std::numeric_limits<double>::infinity();
  const Values v{0.0, NAN, -inf, -0.0, 3, -NAN, inf, -2};
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
    for (const bool descending : {false, true})
      EXPECT_EQ(integers(argsort(to_data(Tensor::from_vector(v, device()), dtype), 0, descending)), order_of(v, descending));
  const Tensor ends = Tensor::from_vector(
      Integers{std::numeric_limits<std::int64_t>::max(), 0, std::numeric_limits<std::int64_t>::lowest(), -1}, device());
  EXPECT_EQ(integers(argsort(ends)), (Integers{2, 3, 1, 0}));
}

// What a GPU restores from keys, and what it cannot.
TEST_P(Sort, ValuesHaveTheBitsOfTheElements) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor some = Tensor::from_vector(Values{0.0, -0.0, -NAN, 5, -inf, NAN, -0.0, inf, -7, 0.0, 0.125}, device());
  for (const std::int64_t copies : {1, 30, 200, 500})
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
      for (const bool descending : {false, true}) {
        const Tensor x = to_data(repeat(some, {copies}), dtype);
        const Values given = x.to_vector<double>(), sorted = sort(x, 0, descending).values.to_vector<double>();
        const Integers order = order_of(given, descending);
        for (std::size_t i = 0; i < order.size(); ++i) {
          const double expected = given[static_cast<std::size_t>(order[i])];
          ASSERT_TRUE(sorted[i] == expected || (std::isnan(sorted[i]) && std::isnan(expected))) << i;
          ASSERT_EQ(std::signbit(sorted[i]), std::signbit(expected)) << i;
        }
      }
}

/// Against the CPU, whose results other tests compare with a stable sort.
TEST_P(Sort, ManyRows) {
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{500, 7}, {70, 300}, {300, 2049}, {300, 4097}, {3, 70001}})
    for (const DType dtype : {DType::float32, DType::int64, DType::uint8}) {
      const Tensor x = to_data(abs(random_tensor({rows, n}, device(), DType::float64, 0, 90)), dtype), here = to_data(x, kCPU);
      for (const bool descending : {false, true}) {
        const auto [values, indices] = sort(x, 1, descending);
        const auto expected = sort(here, 1, descending);
        EXPECT_TRUE(all_close(to_data(indices, kCPU), expected.indices, 0, 0)) << dtype_name(dtype) << ' ' << n;
        EXPECT_TRUE(all_close(to_data(values, kCPU), expected.values, 0, 0)) << dtype_name(dtype) << ' ' << n;
      }
    }
}

TEST_P(Sort, AlongEveryDimension) {
  const Tensor x = random_tensor({4, 5, 6}, device());
  for (const std::int64_t dim : {0, 1, -1}) {
    const auto [values, indices] = sort(x, dim);
    EXPECT_TRUE(all_close(values, transpose(sort(contiguous(transpose(x, dim, -1))).values, dim, -1), 0, 0));
    EXPECT_TRUE(all_close(gather(x, dim, indices), values, 0, 0));
  }
}

TEST_P(Sort, LongRows) {
  constexpr std::int64_t n = 70001;  // sorted in parallel on the CPU
  const Tensor even = random_tensor({n}, device()), ties = trunc(even * 3), narrow = even * 1e-12 + 1, equal = ones_like(even);
  const Tensor wide = even * power(10, even * 80), almost = where(gt(even, 4), even, equal);
  const Tensor outlier = where(eq(arange(0, n, 1, {even.dtype(), device()}), 5), even * 1e9, even);
  for (const Tensor& x : {even, ties, narrow, equal, wide, almost, outlier})
    for (const DType dtype : {DType::float64, DType::float32, DType::int64})
      for (const bool descending : {false, true}) {
        const Tensor numbers = dtype == DType::int64 ? to_data(clamp(x * 1000, -1e15, 1e15), dtype) : to_data(x, dtype);
        EXPECT_EQ(integers(argsort(numbers, 0, descending)), order_of(numbers.to_vector<double>(), descending))
            << dtype_name(dtype) << ' ' << descending;
      }
  EXPECT_EQ(integers(topk(even, n / 2, 0).indices), integers(slice(argsort(even, 0, true), 0, 0, n / 2)));
}

TEST_P(Sort, TopK) {
  const Tensor x = random_tensor({4, 100}, device());
  for (const std::int64_t k : {0, 1, 7, 100})
    for (const bool largest : {false, true}) {
      const auto [values, indices] = topk(x, k, 1, largest);
      const auto all = sort(x, 1, largest);
      EXPECT_TRUE(all_close(values, slice(all.values, 1, 0, k), 0, 0));
      EXPECT_TRUE(all_close(indices, slice(all.indices, 1, 0, k), 0, 0));
    }
  EXPECT_EQ(topk(x, 3, 0).values.shape(), (Shape{3, 100}));
  EXPECT_TRUE(throws_with<ValueError>([&] { topk(x, 101); }, "topk: k is 101: expected at most 100"));
  EXPECT_TRUE(throws_with<IndexError>([&] { sort(x, 2); }, "sort: dimension 2"));
}

TEST_P(Sort, FewOfManyWithTies) {
  for (const std::int64_t n : {64, 1000, 1027, 70001})
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64, DType::boolean}) {
      const Tensor ties = trunc(random_tensor({3, n}, device(), DType::float64, 0, 30)), rare = gt(ties, 28);
      const Tensor x =
          dtype == DType::boolean ? rare : to_data(is_floating(dtype) ? where(rare, ones_like(ties) * NAN, ties) : ties, dtype);
      for (const std::int64_t k : {std::int64_t{1}, std::int64_t{4}, n / 16})
        for (const bool largest : {false, true}) {
          const Tensor indices = topk(x, k, 1, largest).indices;
          for (const std::int64_t row : {0, 1, 2}) {
            Integers expected = order_of(select(x, 0, row).to_vector<double>(), largest);
            expected.resize(static_cast<std::size_t>(k));
            EXPECT_EQ(integers(select(indices, 0, row)), expected) << dtype_name(dtype) << ' ' << n << ' ' << k;
          }
        }
    }
}

TEST_P(Sort, MoreOfMany) {
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{5, 256}, {5, 257}, {5, 5000}, {2, 262145}, {64, 262145}})
    for (const std::int64_t k : {1, 256, 257}) {
      if (k > n || (rows == 64 && k > 1)) continue;
      const Tensor even = random_tensor({rows, n}, device(), DType::float32, -50, 50);
      for (const Tensor& x : {even, trunc(even / 9), even * 0.0, to_data(even * 1e6, DType::int64)}) {
        const auto [values, indices] = topk(x, k, 1);
        const auto expected = topk(to_data(x, kCPU), k, 1);
        EXPECT_TRUE(all_close(to_data(indices, kCPU), expected.indices, 0, 0)) << n << ' ' << k;
        EXPECT_TRUE(all_close(to_data(values, kCPU), expected.values, 0, 0)) << n << ' ' << k;
      }
    }
  const Tensor columns = random_tensor({3000, 11}, device());
  const auto [values, indices] = topk(columns, 8, 0, false);
  EXPECT_TRUE(all_close(indices, slice(argsort(columns, 0), 0, 0, 8), 0, 0));
  EXPECT_TRUE(all_close(values, gather(columns, 0, indices), 0, 0));
}

TEST_P(Sort, Gradients) {
  const Tensor x = random_leaf({3, 5}, device());
  for (const std::int64_t dim : {0, 1}) {
    const auto whole = [dim](const Tensors& in) { return Tensors{square(sort(in[0], dim, true).values)}; };
    const auto some = [dim](const Tensors& in) { return Tensors{square(topk(in[0], 2, dim).values)}; };
    EXPECT_TRUE(autograd::gradcheck(whole, {x}));
    EXPECT_TRUE(autograd::gradgradcheck(whole, {x}));
    EXPECT_TRUE(autograd::gradcheck(some, {x}));
  }
}

TEST_P(Sort, Empty) {
  EXPECT_EQ(sort(zeros({0, 3}, {DType::float32, device()})).values.shape(), (Shape{0, 3}));
  EXPECT_EQ(argsort(zeros({3, 0}, {DType::float32, device()})).shape(), (Shape{3, 0}));
}

}  // namespace
}  // namespace glade
