#include <glade/core/shape.h>

#include <vector>

#include "support/testing.h"

namespace glade {
namespace {

using testing_support::throws_with;

TEST(Shape, HoldsItsSizes) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.ndim(), 3);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape.back(), 4);
  EXPECT_EQ(shape.numel(), 24);
  EXPECT_EQ(shape.str(), "[2, 3, 4]");
  EXPECT_EQ(std::vector<std::int64_t>(shape.begin(), shape.end()), (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_EQ(shape.contiguous_strides(), (Strides{12, 4, 1}));
  EXPECT_TRUE((shape == Shape{2, 3, 4}));
  EXPECT_FALSE((shape == Shape{2, 3}));
  EXPECT_FALSE((shape == Shape{2, 3, 5}));
}

TEST(Shape, NoDimensionsAndEmptyDimensions) {
  EXPECT_TRUE(Shape{}.empty());
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(Shape{}.str(), "[]");
  EXPECT_EQ((Shape{3, 0, 2}.numel()), 0);
}

TEST(Shape, InsertsAndErases) {
  Shape shape{2, 4};
  shape.insert(1, 3);
  EXPECT_EQ(shape, (Shape{2, 3, 4}));
  shape.push_back(5);
  shape.insert(0, 1);
  EXPECT_EQ(shape, (Shape{1, 2, 3, 4, 5}));
  shape.erase(0);
  shape.erase(3);
  shape.erase(1);
  EXPECT_EQ(shape, (Shape{2, 4}));
}

TEST(Shape, AtMostEightDimensions) {
  Shape shape{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(shape.numel(), 40320);
  EXPECT_TRUE(throws_with<ShapeError>([&] { shape.push_back(9); }, "at most 8 dimensions"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { shape.insert(0, 9); }, "at most 8 dimensions"));
  EXPECT_TRUE(throws_with<ShapeError>([] { Shape({1, 1, 1, 1, 1, 1, 1, 1, 1}); }, "got 9"));
  EXPECT_EQ(shape, (Shape{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(Shape, Broadcasting) {
  struct Case {
    Shape a, b, result;
  };
  const Case cases[] = {{{2, 3}, {2, 3}, {2, 3}},       {{2, 3}, {3}, {2, 3}},    {{2, 1}, {1, 3}, {2, 3}}, {{}, {4}, {4}},
                        {{5, 1, 4}, {3, 1}, {5, 3, 4}}, {{0, 3}, {1, 3}, {0, 3}}, {{1}, {0}, {0}},          {{2, 0}, {}, {2, 0}}};
  for (const Case& c : cases) {
    EXPECT_EQ(broadcast_shapes(c.a, c.b, "test"), c.result) << c.a.str() << c.b.str();
    EXPECT_EQ(broadcast_shapes(c.b, c.a, "test"), c.result) << c.a.str() << c.b.str();
  }
  for (const auto& [a, b] : {std::pair<Shape, Shape>{{2}, {3}}, {{2, 3}, {2}}, {{0}, {2}}, {{4, 1, 2}, {3, 3}}}) {
    EXPECT_TRUE(throws_with<ShapeError>([&] { broadcast_shapes(a, b, "add"); }, "add: shapes " + a.str() + " and " + b.str()));
  }
}

TEST(Shape, DimensionsCountFromTheEnd) {
  EXPECT_EQ(normalize_dim(0, 3, "test"), 0);
  EXPECT_EQ(normalize_dim(2, 3, "test"), 2);
  EXPECT_EQ(normalize_dim(-1, 3, "test"), 2);
  EXPECT_EQ(normalize_dim(-3, 3, "test"), 0);
  EXPECT_TRUE(throws_with<IndexError>([] { normalize_dim(3, 3, "sum"); }, "sum: dimension 3"));
  EXPECT_TRUE(throws_with<IndexError>([] { normalize_dim(-4, 3, "sum"); }, "sum: dimension -4"));
  EXPECT_THROW(normalize_dim(0, 0, "sum"), IndexError);
}

}  // namespace
}  // namespace glade
