// Tensors below the tape: creation, views, reading, printing, copies between layouts, dtypes and devices.
#include <algorithm>
#include <functional>
#include <limits>
#include <sstream>

#include "support/testing.h"

namespace glade {
namespace {

using testing_support::DeviceTest;
using testing_support::throws_with;

constexpr DType kAll[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16,
                          DType::int64,   DType::int32,   DType::uint8,    DType::boolean};

class TensorTest : public DeviceTest {};
GLADE_DEVICE_TESTS(TensorTest);

TEST_P(TensorTest, FromVectorAndBack) {
  const Tensor x = Tensor::from_vector<float>({1, 2.5f, -3, 4, 5, 6}, {2, 3}, device());
  EXPECT_EQ(x.shape(), (Shape{2, 3}));
  EXPECT_EQ(x.strides(), (Strides{3, 1}));
  EXPECT_EQ(x.dtype(), DType::float32);
  EXPECT_EQ(x.device(), device());
  EXPECT_EQ(x.ndim(), 2);
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_EQ(x.numel(), 6);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2.5f, -3, 4, 5, 6}));
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{1, 2.5, -3, 4, 5, 6}));
  EXPECT_EQ(x.to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 2, -3, 4, 5, 6}));
  EXPECT_EQ(Tensor::from_vector<std::int64_t>({7, 8}, device()).shape(), (Shape{2}));
  const std::vector<bool> flags{true, false, true};
  EXPECT_EQ(Tensor::from_vector(flags, device()).to_vector<bool>(), flags);
  EXPECT_EQ(Tensor::from_vector<bfloat16>({bfloat16(1.5f)}, device()).item<double>(), 1.5);
  EXPECT_TRUE(Tensor::from_vector<float>({}, {0, 4}, device()).to_vector<float>().empty());
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { Tensor::from_vector<float>({1, 2}, {3}, device()); }, "2 values do not fill shape [3]"));
}

TEST_P(TensorTest, CreationFillsEveryType) {
  for (const DType dtype : kAll) {
    const TensorOptions options{dtype, device()};
    EXPECT_EQ(zeros({3}, options).to_vector<double>(), std::vector<double>(3, 0)) << dtype_name(dtype);
    EXPECT_EQ(ones({5}, options).to_vector<double>(), std::vector<double>(5, 1)) << dtype_name(dtype);
    const double expected = dtype == DType::boolean ? 1 : 3;
    EXPECT_EQ(full({1001}, 3, options).to_vector<double>(), std::vector<double>(1001, expected)) << dtype_name(dtype);
    const Tensor like = zeros_like(ones({2, 2}, options));
    EXPECT_EQ(like.dtype(), dtype);
    EXPECT_EQ(like.device(), device());
    EXPECT_EQ(zeros({2, 0, 3}, options).numel(), 0);
    EXPECT_EQ(full({}, 1, options).item<double>(), 1);
  }
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(full({}, large, {DType::int64, device()}).item<std::int64_t>(), large);
  EXPECT_EQ(full({2}, -0.1, {DType::float64, device()}).to_vector<double>(), std::vector<double>(2, -0.1));
}

TEST_P(TensorTest, FillOfAViewLeavesTheRest) {
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::uint8})
    for (const double value : {0.0, 7.0}) {
      const Tensor x = ones({3, 4}, {dtype, device()});
      fill_data(x.as_strided({3, 2}, {4, 2}, 1), value);
      EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{1, value, 1, value, 1, value, 1, value, 1, value, 1, value}));
    }
}

TEST_P(TensorTest, ViewsShareMemory) {
  const Tensor x = Tensor::from_vector<float>({0, 1, 2, 3, 4, 5}, {2, 3}, device());
  const Tensor transposed = x.as_strided({3, 2}, {1, 3}, 0), last = x.as_strided({3}, {1}, 3);
  EXPECT_EQ(transposed.storage(), x.storage());
  EXPECT_EQ(transposed.to_vector<float>(), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(last.offset(), 3);
  fill_data(last, 9);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 1, 2, 9, 9, 9}));
}

TEST_P(TensorTest, KnowsWhatIsContiguous) {
  const Tensor x = zeros({24}, {DType::float32, device()});
  EXPECT_TRUE(x.as_strided({2, 3, 4}, {12, 4, 1}, 0).is_contiguous());
  EXPECT_TRUE(x.as_strided({2, 1, 4}, {4, 77, 1}, 8).is_contiguous()) << "the stride of a dimension of one element means nothing";
  EXPECT_TRUE(x.as_strided({2, 0, 4}, {1, 2, 3}, 0).is_contiguous());
  EXPECT_TRUE(x.as_strided({}, {}, 5).is_contiguous());
  EXPECT_FALSE(x.as_strided({3, 2}, {1, 3}, 0).is_contiguous());
  EXPECT_FALSE(x.as_strided({3, 2}, {0, 1}, 0).is_contiguous());
  EXPECT_FALSE(x.as_strided({3, 2}, {4, 1}, 0).is_contiguous());
  EXPECT_FALSE(x.as_strided({3}, {2}, 0).is_contiguous());
}

TEST_P(TensorTest, Item) {
  EXPECT_EQ(full({1, 1}, 2.5, {DType::float32, device()}).item<double>(), 2.5);
  EXPECT_EQ(full({}, 2.5, {DType::float32, device()}).item<std::int32_t>(), 2);
  EXPECT_TRUE(full({}, 0.5, {DType::bfloat16, device()}).item<bool>());
  EXPECT_TRUE(throws_with<ShapeError>([&] { zeros({2}, {DType::float32, device()}).item<float>(); }, "got shape [2]"));
  EXPECT_THROW(zeros({0}, {DType::float32, device()}).item<float>(), ShapeError);
  EXPECT_THROW(Tensor().item<float>(), ValueError);
}

TEST_P(TensorTest, DataChecksTheType) {
  const Tensor x = zeros({2}, {DType::float32, device()});
  EXPECT_EQ(static_cast<void*>(x.data<float>()), x.raw_data());
  EXPECT_TRUE(throws_with<DTypeError>([&] { x.data<double>(); }, "holds float32, not float64"));
  EXPECT_THROW(x.size(1), IndexError);
}

TEST(Tensor, ImpossibleSizes) {
  EXPECT_TRUE(throws_with<ShapeError>([] { empty({2, -1}); }, "[2, -1]"));
  EXPECT_THROW(empty({std::int64_t{1} << 40, std::int64_t{1} << 40}), OutOfMemoryError);
  EXPECT_THROW(empty({std::int64_t{1} << 57}), OutOfMemoryError);
}

TEST(Tensor, UndefinedOnesAreErrors) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_TRUE(none.is_same(Tensor()));
  EXPECT_EQ(none.str(), "tensor(undefined)");
  const std::function<void()> uses[] = {
      [&] { none.shape(); },
      [&] { none.size(0); },
      [&] { none.dtype(); },
      [&] { none.device(); },
      [&] { none.raw_data(); },
      [&] { none.data<float>(); },
      [&] { none.as_strided({1}, {1}, 0); },
      [&] { none.to_vector<float>(); },
  };
  for (std::size_t i = 0; i < std::size(uses); ++i) EXPECT_TRUE(throws_with<ValueError>(uses[i], "undefined")) << i;
}

TEST(Tensor, FromBlobReleasesOnce) {
  std::vector<float> memory{1, 2, 3, 4};
  int released = 0;
  {
    Tensor view;
    {
      const Tensor x = Tensor::from_blob(memory.data(), {2, 2}, {DType::float32, kCPU}, [&] { ++released; });
      EXPECT_EQ(x.data<float>(), memory.data());
      view = x.as_strided({2}, {1}, 2);
    }
    EXPECT_EQ(released, 0);
    fill_data(view, 9);
  }
  EXPECT_EQ(released, 1);
  EXPECT_EQ(memory, (std::vector<float>{1, 2, 9, 9}));
}

TEST(Tensor, PinnedMemoryIsHostMemory) {
  const Tensor x = empty_pinned({3}, DType::int64);
  EXPECT_TRUE(x.is_cpu());
  fill_data(x, 5);
  EXPECT_EQ(x.to_vector<std::int64_t>(), std::vector<std::int64_t>(3, 5));
}

// ---- copies --------------------------------------------------------------------------------------------------------

struct Layout {
  Strides strides;
  std::int64_t offset = 0;
};

// Where each element of a layout lies, in row-major order of its indices.
std::vector<std::size_t> positions(const Shape& shape, const Layout& layout) {
  std::vector<std::size_t> result;
  for (std::int64_t linear = 0; linear < shape.numel(); ++linear) {
    std::int64_t rest = linear, at = layout.offset;
    for (int d = shape.ndim() - 1; d >= 0; --d) {
      at += rest % shape[d] * layout.strides[d];
      rest /= shape[d];
    }
    result.push_back(static_cast<std::size_t>(at));
  }
  return result;
}

struct CopyCase {
  const char* name;
  Shape shape;
  Layout to, from;
};

const CopyCase kCopies[] = {
    {"contiguous", {3, 5}, {{5, 1}}, {{5, 1}}},
    {"one element", {1, 1}, {{7, 7}, 3}, {{1, 9}, 2}},
    {"unaligned", {67}, {{1}, 1}, {{1}, 3}},
    {"from transposed", {3, 5}, {{5, 1}}, {{1, 3}}},
    {"to transposed", {3, 5}, {{1, 3}}, {{5, 1}}},
    {"broadcast row", {4, 6}, {{6, 1}}, {{0, 1}}},
    {"broadcast column", {4, 6}, {{6, 1}}, {{1, 0}}},
    {"broadcast element", {5, 7}, {{7, 1}}, {{0, 0}, 4}},
    {"every second column", {4, 3}, {{6, 2}, 1}, {{3, 1}}},
    {"rows with gaps", {9, 8}, {{16, 1}, 8}, {{24, 1}, 16}},
    {"odd rows with gaps", {9, 7}, {{11, 1}, 1}, {{13, 1}, 2}},
    {"heads before time", {2, 4, 3, 8}, {{96, 24, 8, 1}}, {{96, 8, 32, 1}}},
    {"large transposed", {70, 45}, {{45, 1}}, {{1, 70}}},
    {"batch of transposed", {3, 33, 65}, {{2145, 65, 1}}, {{2145, 1, 33}}},
    {"last to first", {65, 3, 40}, {{120, 40, 1}}, {{1, 65, 195}}},
    {"transposed pairs", {33, 40, 2}, {{80, 2, 1}}, {{2, 66, 1}}},
    {"transposed with gaps", {34, 36}, {{50, 1}, 3}, {{1, 41}, 5}},
    {"eight dimensions", {2, 1, 2, 3, 1, 2, 2, 2}, {{48, 48, 24, 8, 8, 4, 2, 1}}, {{1, 2, 2, 4, 12, 12, 24, 48}}},
};

TEST_P(TensorTest, CopiesEveryLayoutBetweenEveryTwoTypes) {
  for (const CopyCase& c : kCopies) {
    const auto to = positions(c.shape, c.to), from = positions(c.shape, c.from);
    std::vector<double> source(*std::max_element(from.begin(), from.end()) + 1);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<double>(i * 7 % 101);  // in the range of every type
    const std::vector<double> target(*std::max_element(to.begin(), to.end()) + 1, 1);
    for (const DType to_dtype : kAll)
      for (const DType from_dtype : kAll) {
        const Tensor x = to_data(to_data(Tensor::from_vector(source), from_dtype), device());
        const Tensor y = to_data(to_data(Tensor::from_vector(target), to_dtype), device());
        copy_data(y.as_strided(c.shape, c.to.strides, c.to.offset), x.as_strided(c.shape, c.from.strides, c.from.offset));
        std::vector<double> expected = target;
        const bool truth = to_dtype == DType::boolean || from_dtype == DType::boolean;
        for (std::size_t i = 0; i < to.size(); ++i) expected[to[i]] = truth ? source[from[i]] != 0 : source[from[i]];
        ASSERT_EQ(y.to_vector<double>(), expected) << c.name << ", " << dtype_name(from_dtype) << " to " << dtype_name(to_dtype);
      }
  }
}

TEST_P(TensorTest, CopyBroadcastsShapes) {
  const Tensor x = zeros({2, 3}, {DType::float32, device()});
  copy_data(x, Tensor::from_vector<float>({1, 2, 3}, device()));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3, 1, 2, 3}));
  copy_data(x, Tensor::from_vector<float>({4, 5}, {2, 1}, device()));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{4, 4, 4, 5, 5, 5}));
  copy_data(x, full({}, 6, {DType::int32, device()}));
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(6, 6));
  EXPECT_TRUE(throws_with<ShapeError>([&] { copy_data(x, zeros({2}, x.options())); }, "copy"));
  EXPECT_THROW(copy_data(x, zeros({1, 2, 3}, x.options())), ShapeError);
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(6, 6));
}

TEST_P(TensorTest, ConversionsAtTheEdges) {
  const auto converted = [&](const std::vector<double>& values, DType through, DType to) {
    return to_data(to_data(to_data(Tensor::from_vector(values), device()), through), to).to_vector<double>();
  };
  const double infinity = std::numeric_limits<double>::infinity();
  using Values = std::vector<double>;
  EXPECT_EQ(converted({2.9, -2.9, 0.5}, DType::float64, DType::int32), (Values{2, -2, 0}));
  EXPECT_EQ(converted({2.9, -2.9, 0.5}, DType::bfloat16, DType::int64), (Values{2, -2, 0}));
  EXPECT_EQ(converted({255, 256, -1}, DType::float32, DType::uint8), (Values{255, 0, 255}));
  EXPECT_EQ(converted({255, 256, -1}, DType::int64, DType::uint8), (Values{255, 0, 255}));
  EXPECT_EQ(converted({0.25, -0.0, 0, infinity}, DType::float16, DType::boolean), (Values{1, 0, 0, 1}));
  EXPECT_EQ(converted({1e300, -1e300, 1e-300}, DType::float64, DType::float32), (Values{infinity, -infinity, 0}));
  EXPECT_EQ(converted({65519, 65520, 0x1p-25}, DType::float32, DType::float16), (Values{65504, infinity, 0}));
  EXPECT_EQ(converted({257, 259}, DType::int32, DType::bfloat16), (Values{256, 260}));  // ties to even
  EXPECT_EQ(converted({0.1}, DType::float64, DType::float32), (Values{static_cast<double>(0.1f)}));
  EXPECT_TRUE(std::isnan(converted({std::nan("")}, DType::float64, DType::bfloat16)[0]));
  EXPECT_TRUE(std::isnan(converted({std::nan("")}, DType::float16, DType::float64)[0]));
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(to_data(full({}, large, {DType::int64, device()}), DType::float64).item<double>(), 0x1p53);
}

// Long enough for several threads and for the vector and the tail of a kernel.
TEST_P(TensorTest, LargeConversions) {
  const std::int64_t n = (1 << 18) + 3;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1999) / 8;
  const Tensor x = Tensor::from_vector(values, device());
  const auto same = to_data(to_data(x, DType::float64), DType::float32).to_vector<float>();
  EXPECT_EQ(same, values);
  const auto rounded = to_data(x, DType::bfloat16).to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(rounded[i], static_cast<float>(bfloat16(values[i]))) << i;
  const auto shifted = to_data(x.as_strided({n - 1}, {1}, 1), DType::int32).to_vector<std::int32_t>();
  for (std::size_t i = 0; i < shifted.size(); ++i) ASSERT_EQ(shifted[i], static_cast<std::int32_t>(values[i + 1])) << i;
}

TEST_P(TensorTest, NothingIsCopiedWhereNothingChanges) {
  const Tensor x = zeros({2, 3}, {DType::float32, device()});
  EXPECT_TRUE(contiguous_data(x).is_same(x));
  EXPECT_TRUE(to_data(x, DType::float32).is_same(x));
  EXPECT_TRUE(to_data(x, device()).is_same(x));
  const Tensor transposed = x.as_strided({3, 2}, {1, 3}, 0), copy = contiguous_data(transposed);
  EXPECT_NE(copy.storage(), x.storage());
  EXPECT_TRUE(copy.is_contiguous());
}

TEST_P(TensorTest, ChangesAreCounted) {
  const Tensor x = zeros({2}, {DType::float32, device()}), view = x.as_strided({1}, {1}, 0);
  const std::uint64_t before = x.storage()->version();
  fill_data(view, 1);
  EXPECT_EQ(x.storage()->version(), before + 1);
  copy_data(x, ones({2}));
  EXPECT_EQ(x.storage()->version(), before + 2);
  x.to_vector<float>();
  EXPECT_EQ(x.storage()->version(), before + 2);
}

TEST(Tensor, SameDeviceCheckNamesBothSides) {
  const Tensor x = zeros({2}), undefined;
  check_same_device("add", {{"a", &x}, {"b", &undefined}, {"c", &x}});
  float number = 0;
  const Tensor elsewhere = Tensor::from_blob(&number, {1}, {DType::float32, kCUDA}, [] {});
  EXPECT_TRUE(throws_with<DeviceError>([&] { check_same_device("add", {{"a", &x}, {"b", &undefined}, {"c", &elsewhere}}); },
                                       "add: a is on cpu, but c is on cuda:0"));
}

// ---- printing: the texts are those of numpy.array2string(x, separator=', ') --------------------------------------------

TEST_P(TensorTest, PrintsShapeTypeAndDevice) {
  const Tensor x = Tensor::from_vector<double>({1.5, -2.25, 1.0 / 3, 0, 1, 100}, {2, 3}, device());
  const std::string expected =
      "[[  1.5       ,  -2.25      ,   0.33333333],\n [  0.        ,   1.        , 100.        ]]\n"
      "(shape=[2, 3], dtype=float64, device=" +
      device().name() + ")";
  EXPECT_EQ(x.str(), expected);
  std::ostringstream stream;
  stream << x;
  EXPECT_EQ(stream.str(), expected);
}

std::string values_of(const Tensor& x) {
  const std::string text = x.str();
  return text.substr(0, text.rfind("\n(shape="));
}

template <class T>
std::string printed(const std::vector<T>& values) {
  return values_of(Tensor::from_vector(values));
}

std::vector<double> count_to(std::int64_t n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  return values;
}

TEST(TensorPrinting, Numbers) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  EXPECT_EQ(printed<double>({1.5, 2.25, nan, -infinity}), "[1.5 , 2.25,  nan, -inf]");
  EXPECT_EQ(printed<float>({1.5, -std::nanf("")}), "[1.5, nan]");
  EXPECT_EQ(printed<double>({1e-5, 1, nan}), "[1.e-05, 1.e+00,    nan]");
  EXPECT_EQ(printed<double>({1e10, 1e-100}), "[1.e+010, 1.e-100]");
  EXPECT_EQ(printed<double>({-0.0, 0.5}), "[-0. ,  0.5]");
  EXPECT_EQ(printed<float>({0.1f, 16.1f}), "[ 0.1, 16.1]");
  EXPECT_EQ(printed<float>({1.0f / 3, 2.0f / 3, 1e-7f}), "[3.3333334e-01, 6.6666669e-01, 1.0000000e-07]");
  EXPECT_EQ(printed<float16>({float16(0.1f)}), "[0.1]");
  EXPECT_EQ(printed<bfloat16>({bfloat16(0.1f), bfloat16(3.0f)}), "[0.1, 3. ]");
  EXPECT_EQ(printed<std::int64_t>({(std::int64_t{1} << 62) + 1, -1}), "[4611686018427387905,                  -1]");
  EXPECT_EQ(printed<std::uint8_t>({0, 255}), "[  0, 255]");
  EXPECT_EQ(printed<bool>({true, false}), "[ True, False]");
}

TEST(TensorPrinting, Dimensions) {
  EXPECT_EQ(values_of(full({}, 2.5)), "2.5");
  EXPECT_EQ(values_of(full({}, true, {DType::boolean, kCPU})), "True");
  EXPECT_EQ(values_of(zeros({0, 3})), "[]");
  EXPECT_EQ(values_of(to_data(Tensor::from_vector(count_to(8), {2, 2, 2}), DType::int32)),
            "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]");
  EXPECT_EQ(values_of(Tensor::from_vector(count_to(4), {2, 2}).as_strided({2, 2}, {1, 2}, 0)), "[[0., 2.],\n [1., 3.]]");
  EXPECT_EQ(Tensor().str(), "tensor(undefined)");
}

TEST(TensorPrinting, LongRowsAreBroken) {
  EXPECT_EQ(printed(count_to(30)),
            "[ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13., 14.,\n"
            " 15., 16., 17., 18., 19., 20., 21., 22., 23., 24., 25., 26., 27., 28., 29.]");
}

TEST_P(TensorTest, LargeTensorsAreSummarised) {
  const Tensor line = to_data(to_data(Tensor::from_vector(count_to(2000)), DType::int64), device());
  EXPECT_EQ(values_of(line), "[   0,    1,    2, ..., 1997, 1998, 1999]");
  const Tensor matrix = to_data(Tensor::from_vector(count_to(2048), {8, 256}), device());
  EXPECT_EQ(values_of(matrix),
            "[[0.000e+00, 1.000e+00, 2.000e+00, ..., 2.530e+02, 2.540e+02, 2.550e+02],\n"
            " [2.560e+02, 2.570e+02, 2.580e+02, ..., 5.090e+02, 5.100e+02, 5.110e+02],\n"
            " [5.120e+02, 5.130e+02, 5.140e+02, ..., 7.650e+02, 7.660e+02, 7.670e+02],\n"
            " ...,\n"
            " [1.280e+03, 1.281e+03, 1.282e+03, ..., 1.533e+03, 1.534e+03, 1.535e+03],\n"
            " [1.536e+03, 1.537e+03, 1.538e+03, ..., 1.789e+03, 1.790e+03, 1.791e+03],\n"
            " [1.792e+03, 1.793e+03, 1.794e+03, ..., 2.045e+03, 2.046e+03, 2.047e+03]]");
  EXPECT_EQ(values_of(matrix.as_strided({256, 8}, {1, 256}, 0)).substr(0, 47), "[[0.000e+00, 2.560e+02, 5.120e+02, ..., 1.280e+");
}

}  // namespace
}  // namespace glade
