// Bool tensors over memory of other libraries, where true may be any byte but 0.
#include <glade/ops/composite/composite.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/sort/sort.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class BoolBytes : public DeviceTest {
 protected:
  static constexpr std::int64_t kRows = 7, kColumns = 41;  // no whole vectors

  /// The same values twice: with bytes from 0 to 255, and with 0 and 1 alone.
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    bytes_.resize(kRows * kColumns);
    std::vector<bool> values;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = i % 3 == 0 ? 0 : static_cast<std::uint8_t>(2 * i + i % 5);
      values.push_back(bytes_[i] != 0);
    }
    wild_ = to_data(Tensor::from_blob(bytes_.data(), {kRows, kColumns}, {DType::boolean, kCPU}), device());
    tame_ = to_data(Tensor::from_vector(values, {kRows, kColumns}), device());
  }

  /// That f(wild) and f(tame) are the same.
  template <class F>
  void expect_same(const char* name, const F& f) const {
    const Tensor wild = f(wild_), tame = f(tame_);
    ASSERT_EQ(wild.dtype(), tame.dtype()) << name;
    ASSERT_EQ(wild.shape(), tame.shape()) << name;
    EXPECT_EQ(wild.to_vector<double>(), tame.to_vector<double>()) << name;
  }

  std::vector<std::uint8_t> bytes_;
  Tensor wild_, tame_;
};
GLADE_DEVICE_TESTS(BoolBytes);

TEST_P(BoolBytes, ChooseAsTrueDoes) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::uint8}) {
    const Tensor x = to_data(random_tensor({kRows, kColumns}, device(), DType::float64, 9, 2), dtype), zero = zeros_like(x);
    expect_same("where", [&](const Tensor& m) { return where(m, x, zero); });
    expect_same("where transposed",
                [&](const Tensor& m) { return where(transpose(m, 0, 1), transpose(x, 0, 1), zeros({}, x.options())); });
    expect_same("masked_fill", [&](const Tensor& m) { return masked_fill(x, m, 3); });
    expect_same("masked_fill by a row", [&](const Tensor& m) { return masked_fill(x, select(m, 0, 1), 3); });
    expect_same("masked_select", [&](const Tensor& m) { return masked_select(x, m); });
  }
  expect_same("where of bools", [&](const Tensor& m) { return where(m, m, tame_); });
  expect_same("nonzero", [](const Tensor& m) { return nonzero(m); });
  expect_same("nonzero of a column", [](const Tensor& m) { return nonzero(select(m, 1, 2)); });
}

TEST_P(BoolBytes, HaveTheLogicOfTrue) {
  const Tensor other = tame_ ^ full({}, true, tame_.options()), shifted = roll(tame_, {1}, {1});
  expect_same("and", [&](const Tensor& m) { return m & shifted; });
  expect_same("or", [&](const Tensor& m) { return m | other; });
  expect_same("xor", [&](const Tensor& m) { return m ^ shifted; });
  expect_same("not", [](const Tensor& m) { return ~m; });
  expect_same("eq", [&](const Tensor& m) { return m == tame_; });
  expect_same("ne", [&](const Tensor& m) { return shifted != m; });
  expect_same("less", [&](const Tensor& m) { return m < shifted; });
  expect_same("with a number", [](const Tensor& m) { return m == true; });
  expect_same("logical_and", [&](const Tensor& m) { return logical_and(m, shifted); });
  expect_same("arithmetic", [&](const Tensor& m) { return m + zeros({}, {DType::int64, device()}); });
  for (const DType dtype :
       {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::int32, DType::uint8})
    expect_same("converted", [&](const Tensor& m) { return to(m, dtype); });
}

TEST_P(BoolBytes, CountAsOne) {
  for (const Dims& dims : {Dims{}, Dims{0}, Dims{1}}) {
    expect_same("sum", [&](const Tensor& m) { return sum(m, dims); });
    expect_same("prod", [&](const Tensor& m) { return prod(m, dims); });
    expect_same("any", [&](const Tensor& m) { return any(m, dims); });
    expect_same("all", [&](const Tensor& m) { return all(m, dims); });
    expect_same("amax", [&](const Tensor& m) { return amax(m, dims); });
    expect_same("amin", [&](const Tensor& m) { return amin(m, dims); });
    expect_same("count_nonzero", [&](const Tensor& m) { return count_nonzero(m, dims); });
  }
  for (const std::int64_t dim : {0, 1}) {
    expect_same("argmax", [&](const Tensor& m) { return argmax(m, dim); });
    expect_same("argmin", [&](const Tensor& m) { return argmin(m, dim); });
    expect_same("cumsum", [&](const Tensor& m) { return cumsum(m, dim); });
    expect_same("argsort", [&](const Tensor& m) { return argsort(m, dim); });
    expect_same("sort", [&](const Tensor& m) { return sort(m, dim, true).values; });
  }
  EXPECT_TRUE(equal(wild_, tame_));
  EXPECT_EQ(wild_.str(), tame_.str());
  EXPECT_EQ(select(select(wild_, 0, 0), 0, 2).item<std::int64_t>(), 1);
  EXPECT_EQ(wild_.to_vector<bool>(), tame_.to_vector<bool>());
}

}  // namespace
}  // namespace glade
