// Selection by masks: masked_select, masked_assign_ and nonzero, against loops over the elements.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using Numbers = std::vector<double>;

class Masks : public DeviceTest {
 protected:
  /// Flags of which about so many of a thousand hold.
  static std::vector<bool> flags(std::int64_t n, std::uint64_t of_thousand) {
    static std::mt19937_64 engine(11);
    std::vector<bool> result;
    for (std::int64_t i = 0; i < n; ++i) result.push_back(engine() % 1000 < of_thousand);
    return result;
  }
  Tensor mask_of(const std::vector<bool>& flags) const { return Tensor::from_vector(flags, device()); }
  /// 0 to 199, over and over: whole numbers that every dtype holds.
  Tensor numbers(const Shape& shape, DType dtype) const {
    Numbers values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 7 % 200);
    return to_data(to_data(Tensor::from_vector(values, shape), dtype), device());
  }
  static Numbers selected(const Numbers& x, const std::vector<bool>& flags) {
    Numbers result;
    for (std::size_t i = 0; i < flags.size(); ++i)
      if (flags[i]) result.push_back(x[i]);
    return result;
  }
  static Numbers assigned(Numbers x, const std::vector<bool>& flags, const Numbers& source) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < flags.size(); ++i)
      if (flags[i]) x[i] = source[next++];
    return x;
  }
  /// All three at a mask that begins `skipped` bytes into its memory.
  void check(const std::vector<bool>& all, std::int64_t skipped, DType dtype) const {
    const auto n = static_cast<std::int64_t>(all.size()) - skipped;
    const std::vector<bool> flags(all.begin() + skipped, all.end());
    const Tensor mask = slice(mask_of(all), 0, skipped, skipped + n), x = numbers({n}, dtype);
    const Numbers values = x.to_vector<double>(), expected = selected(values, flags);
    const Tensor chosen = masked_select(x, mask);
    ASSERT_EQ(chosen.dtype(), dtype);
    ASSERT_EQ(chosen.to_vector<double>(), expected) << n << " from " << skipped;
    Numbers places;
    for (std::size_t i = 0; i < flags.size(); ++i)
      if (flags[i]) places.push_back(static_cast<double>(i));
    ASSERT_EQ(nonzero(mask).to_vector<double>(), places) << n << " from " << skipped;
    if (expected.size() == 1) return;  // one value for all is another operation
    const Tensor source = numbers({static_cast<std::int64_t>(expected.size()) + 3}, dtype), target = clone(x);
    const Tensor part = narrow(source, 0, 3, static_cast<std::int64_t>(expected.size()));
    masked_assign_(target, mask, part);
    ASSERT_EQ(target.to_vector<double>(), assigned(values, flags, part.to_vector<double>())) << n << " from " << skipped;
  }
};
GLADE_DEVICE_TESTS(Masks);

TEST_P(Masks, OfEverySizeAndDensity) {
  for (const std::int64_t n : {1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 4095, 4096, 4097, 8191, 8192, 12288, 65537})
    for (const std::uint64_t of_thousand : {0u, 3u, 500u, 1000u})
      for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float32, DType::int64})
        check(flags(n, of_thousand), 0, dtype);
}

TEST_P(Masks, OfManyElements) {
  check(flags(3000000, 700), 0, DType::bfloat16);
  check(flags(17000001, 5), 0, DType::float32);  // more tiles than are summed at once
}

TEST_P(Masks, ThatBeginAnywhere) {
  for (const std::int64_t skipped : {1, 7, 15, 16, 17, 4095})
    for (const std::int64_t n : {1, 3, 16, 4080, 4081, 4096, 9000}) check(flags(n + skipped, 400), skipped, DType::float32);
}

TEST_P(Masks, OfRunsThatLeaveTilesEmpty) {
  std::vector<bool> some(50000, false);
  for (const std::size_t i : {0U, 4095U, 4096U, 20000U, 49999U}) some[i] = true;
  for (const DType dtype : {DType::uint8, DType::float64}) check(some, 0, dtype);
  std::vector<bool> half(50000, false);
  std::fill(half.begin() + 16384, half.begin() + 33000, true);
  for (const std::int64_t skipped : {0, 5}) check(half, skipped, DType::float16);
}

TEST_P(Masks, AndViews) {
  const std::vector<bool> chosen = flags(std::int64_t{70} * 90, 300);
  const Tensor mask = reshape(mask_of(chosen), {70, 90});
  const Tensor whole = numbers({90, 140}, DType::float32), x = transpose(slice(whole, 1, 0, 140, 2), 0, 1);  // [70, 90]
  const Numbers values = x.to_vector<double>(), expected = selected(values, chosen), before = whole.to_vector<double>();
  EXPECT_EQ(masked_select(x, mask).to_vector<double>(), expected);
  Numbers across;
  for (std::size_t j = 0; j < 90; ++j)
    for (std::size_t i = 0; i < 70; ++i)
      if (chosen[i * 90 + j]) across.push_back(values[i * 90 + j]);
  EXPECT_EQ(masked_select(transpose(x, 0, 1), transpose(mask, 0, 1)).to_vector<double>(), across);

  const auto count = static_cast<std::int64_t>(expected.size());
  const Tensor source = numbers({count, 2}, DType::float32), column = select(source, 1, 1);
  masked_assign_(x, mask, column);
  EXPECT_EQ(x.to_vector<double>(), assigned(values, chosen, column.to_vector<double>()));
  const Numbers skipped = slice(whole, 1, 1, 140, 2).to_vector<double>();  // between the columns of x
  for (std::size_t i = 0; i < 90; ++i)
    for (std::size_t j = 0; j < 70; ++j) ASSERT_EQ(skipped[i * 70 + j], before[i * 140 + 2 * j + 1]);

  // A source and a mask in the target's own memory are read before anything is written.
  const Tensor own = numbers({5000}, DType::int64), first = slice(own, 0, 0, 2500);
  std::vector<bool> odd(5000);
  for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = i % 2 == 1;
  const Numbers were = own.to_vector<double>();
  masked_assign_(own, mask_of(odd), first);
  EXPECT_EQ(own.to_vector<double>(), assigned(were, odd, Numbers(were.begin(), were.begin() + 2500)));
  const std::vector<bool> bits = flags(9000, 500);
  const Tensor holds = mask_of(bits), opposite = zeros({std::count(bits.begin(), bits.end(), true)}, holds.options());
  masked_assign_(holds, holds, opposite);
  EXPECT_EQ(nonzero(holds).size(0), 0);
}

TEST_P(Masks, ThatBroadcast) {
  const Tensor x = numbers({5, 300}, DType::int32);
  const std::vector<bool> line = flags(300, 500);
  std::vector<bool> all;
  for (int i = 0; i < 5; ++i) all.insert(all.end(), line.begin(), line.end());
  EXPECT_EQ(masked_select(x, mask_of(line)).to_vector<double>(), selected(x.to_vector<double>(), all));
  const Tensor row = numbers({300}, DType::int32);
  Numbers repeated;
  for (int i = 0; i < 5; ++i)
    for (const double value : row.to_vector<double>()) repeated.push_back(value);
  const std::vector<bool> many = flags(1500, 200);
  EXPECT_EQ(masked_select(row, reshape(mask_of(many), {5, 300})).to_vector<double>(), selected(repeated, many));
  EXPECT_EQ(masked_select(numbers({0, 4}, DType::float32), mask_of(flags(4, 500))).shape(), Shape({0}));
  EXPECT_EQ(masked_select(numbers({}, DType::float32), reshape(mask_of({true}), {})).shape(), Shape({1}));
}

TEST_P(Masks, AssignOneValue) {
  const std::vector<bool> chosen = flags(600, 500);
  for (const Shape& shape : {Shape{}, Shape{1}}) {
    const Tensor x = numbers({20, 30}, DType::float32);
    const Numbers values = x.to_vector<double>();
    masked_assign_(x, reshape(mask_of(chosen), {20, 30}), numbers(shape, DType::float32) - 5);
    EXPECT_EQ(x.to_vector<double>(), assigned(values, chosen, Numbers(600, -5)));
  }
}

TEST_P(Masks, Gradients) {
  const Tensor mask = reshape(mask_of(flags(60, 500)), {5, 12}), line = mask_of(flags(12, 500));
  const auto f = [&](const Tensors& in) {
    return Tensors{square(masked_select(in[0], mask)), square(masked_select(in[0], line)),
                   square(masked_select(select(in[0], 0, 1), mask))};
  };
  const Tensor x = random_leaf({5, 12}, device());
  EXPECT_TRUE(autograd::gradcheck(f, {x}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {x}));
  // The mask may change before backward comes.
  const Tensor changing = clone(mask), y = masked_select(x, changing);
  fill_data(changing, 0);
  x.set_grad({});
  y.backward(ones(y.shape(), y.options()));
  EXPECT_EQ(x.grad().to_vector<double>(), to_data(mask, DType::float64).to_vector<double>());
}

TEST_P(Masks, Errors) {
  const Tensor x = numbers({2, 3}, DType::float32), mask = reshape(mask_of({true, false, true, true, false, false}), {2, 3});
  const Numbers before = x.to_vector<double>();
  EXPECT_TRUE(throws_with<DTypeError>([&] { masked_assign_(x, x, x); }, "masked_assign_: mask is float32: expected bool"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { masked_assign_(x, mask_of({true, false, true}), x); },
                                      "masked_assign_: mask is [3]: expected x's shape [2, 3]"));
  for (const Shape& shape : {Shape{2}, Shape{4}, Shape{1, 3}, Shape{0}})
    EXPECT_TRUE(throws_with<ShapeError>([&] { masked_assign_(x, mask, numbers(shape, DType::float32)); },
                                        "does not broadcast to the 3 elements at which the mask holds"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { masked_assign_(numbers({2, 3}, DType::int32), mask, numbers({3}, DType::float32)); },
                                      "float32 values would be truncated in a tensor of int32"));
  EXPECT_TRUE(throws_with<AutogradError>([&] { masked_assign_(random_leaf({2, 3}, device()), mask, x); }, "masked_assign_"));
  EXPECT_EQ(x.to_vector<double>(), before);
  if (device().is_cuda()) {
    EXPECT_TRUE(throws_with<DeviceError>([&] { masked_assign_(x, to_data(mask, kCPU), x); }, "mask is on cpu"));
    EXPECT_TRUE(throws_with<DeviceError>([&] { masked_select(x, to_data(mask, kCPU)); }, "masked_select"));
  }
}

}  // namespace
}  // namespace glade
