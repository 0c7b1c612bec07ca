#pragma once
// Sizes of a tensor's dimensions: a fixed-capacity vector, so that no operation allocates for them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace glade {

inline constexpr int kMaxDims = 8;  ///< The most dimensions that a tensor can have.

/// Sizes, or steps, of up to kMaxDims dimensions.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  /// ShapeError for more than kMaxDims dimensions.
  explicit Shape(std::span<const std::int64_t> sizes);

  int ndim() const { return ndim_; }         ///< The number of dimensions; 0 for a scalar.
  bool empty() const { return ndim_ == 0; }  ///< Whether it is a scalar's: no dimensions, and not no elements.
  std::int64_t operator[](int i) const { return sizes_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return sizes_[static_cast<std::size_t>(i)]; }
  const std::int64_t* begin() const { return sizes_.data(); }  ///< The first size; sizes lie in a row, as for a range-based for.
  const std::int64_t* end() const { return sizes_.data() + ndim_; }                  ///< Behind the last size.
  std::int64_t back() const { return sizes_[static_cast<std::size_t>(ndim_ - 1)]; }  ///< The last size; there must be one.
  /// ShapeError beyond kMaxDims dimensions.
  void push_back(std::int64_t size);
  /// Puts a size before position `position`. ShapeError beyond kMaxDims dimensions.
  void insert(int position, std::int64_t size);
  void erase(int position);  ///< Leaves a dimension out.

  /// The product of the sizes: 1 for no dimensions.
  std::int64_t numel() const;
  /// Row-major strides, in elements.
  Shape contiguous_strides() const;
  /// "[2, 3]"
  std::string str() const;

  bool operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  std::array<std::int64_t, kMaxDims> sizes_{};
  int ndim_ = 0;
};

using Strides = Shape;  ///< Steps between neighbours along each dimension, in elements; 0 repeats an element.

/// The shape that a and b broadcast to (NumPy's rule); ShapeError, naming `operation`, where they do not.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* operation);

/// `dim` counted from the end where negative; IndexError, naming `operation`, outside [-ndim, ndim).
int normalize_dim(std::int64_t dim, int ndim, const char* operation);

}  // namespace glade
