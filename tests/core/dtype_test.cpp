#include <glade/core/dtype.h>

#include <vector>

#include "support/testing.h"

namespace glade {
namespace {

using testing_support::throws_with;

constexpr DType kAll[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16,
                          DType::int64,   DType::int32,   DType::uint8,    DType::boolean};

TEST(DType, SizesNamesAndKinds) {
  struct Expected {
    DType dtype;
    std::size_t size;
    const char* name;
    bool floating;
  };
  const Expected table[] = {{DType::float64, 8, "float64", true},   {DType::float32, 4, "float32", true},
                            {DType::bfloat16, 2, "bfloat16", true}, {DType::float16, 2, "float16", true},
                            {DType::int64, 8, "int64", false},      {DType::int32, 4, "int32", false},
                            {DType::uint8, 1, "uint8", false},      {DType::boolean, 1, "bool", false}};
  for (const Expected& row : table) {
    EXPECT_EQ(dtype_size(row.dtype), row.size) << row.name;
    EXPECT_EQ(dtype_name(row.dtype), row.name);
    EXPECT_EQ(dtype_from_name(row.name), row.dtype);
    EXPECT_EQ(is_floating(row.dtype), row.floating) << row.name;
    EXPECT_EQ(is_integral(row.dtype), !row.floating) << row.name;
  }
  EXPECT_TRUE(throws_with<ValueError>([] { dtype_from_name("float8"); }, "float8"));
}

TEST(DType, VisitorsGiveTheCppType) {
  for (const DType dtype : kAll) {
    visit_all(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      EXPECT_EQ(dtype_of<T>(), dtype);
      EXPECT_EQ(sizeof(T), dtype_size(dtype));
    });
    const auto same = [&](auto tag) { return dtype_of<typename decltype(tag)::type>() == dtype; };
    if (is_floating(dtype)) {
      EXPECT_TRUE(visit_floating(dtype, same));
    } else {
      EXPECT_TRUE(throws_with<DTypeError>([&] { visit_floating(dtype, same); }, std::string(dtype_name(dtype))));
    }
    if (dtype == DType::int64 || dtype == DType::int32) {
      EXPECT_TRUE(visit_index(dtype, same));
    } else {
      EXPECT_TRUE(throws_with<DTypeError>([&] { visit_index(dtype, same); }, std::string(dtype_name(dtype))));
    }
  }
}

TEST(DType, PromotionTable) {
  constexpr DType d = DType::float64, f = DType::float32, b = DType::bfloat16, h = DType::float16, l = DType::int64,
                  i = DType::int32, u = DType::uint8, o = DType::boolean;
  const DType table[8][8] = {
      //          d  f  b  h  l  i  u  o
      /* d */ {d, d, d, d, d, d, d, d},
      /* f */ {d, f, f, f, f, f, f, f},
      /* b */ {d, f, b, f, b, b, b, b},
      /* h */ {d, f, f, h, h, h, h, h},
      /* l */ {d, f, b, h, l, l, l, l},
      /* i */ {d, f, b, h, l, i, i, i},
      /* u */ {d, f, b, h, l, i, u, u},
      /* o */ {d, f, b, h, l, i, u, o},
  };
  for (int row = 0; row < 8; ++row)
    for (int column = 0; column < 8; ++column)
      EXPECT_EQ(promote(kAll[row], kAll[column]), table[row][column]) << dtype_name(kAll[row]) << ' ' << dtype_name(kAll[column]);
}

TEST(Scalar, NeverWidensATensorWithinItsKind) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(Scalar(0.5).promoted(dtype), is_floating(dtype) ? dtype : DType::float32) << dtype_name(dtype);
    EXPECT_EQ(Scalar(2).promoted(dtype), dtype == DType::boolean ? DType::int64 : dtype) << dtype_name(dtype);
    EXPECT_EQ(Scalar(true).promoted(dtype), dtype) << dtype_name(dtype);
  }
}

TEST(Scalar, ConvertsToEveryType) {
  EXPECT_EQ(Scalar(2.75).to<double>(), 2.75);
  EXPECT_EQ(Scalar(2.75).to<std::int32_t>(), 2);
  EXPECT_EQ(Scalar(-2.75).to<std::int64_t>(), -2);
  EXPECT_EQ(Scalar(0.25).to<bool>(), true);
  EXPECT_EQ(Scalar(0).to<bool>(), false);
  EXPECT_EQ(static_cast<float>(Scalar(0.1).to<bfloat16>()), static_cast<float>(bfloat16(0.1f)));
  const std::int64_t large = (std::int64_t{1} << 53) + 1;  // no double holds it
  EXPECT_EQ(Scalar(large).to<std::int64_t>(), large);
  EXPECT_EQ(Scalar(true).to<float>(), 1.0f);
}

}  // namespace
}  // namespace glade
