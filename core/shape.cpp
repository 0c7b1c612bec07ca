#include <glade/core/shape.h>

#include <glade/core/format.h>

namespace glade {

Shape::Shape(std::span<const std::int64_t> sizes) {
  if (sizes.size() > kMaxDims) fail<ShapeError>("a shape has at most {} dimensions, got {}", kMaxDims, sizes.size());
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  ndim_ = static_cast<int>(sizes.size());
}

void Shape::push_back(std::int64_t size) { insert(ndim_, size); }

void Shape::insert(int position, std::int64_t size) {
  if (ndim_ == kMaxDims) fail<ShapeError>("a shape has at most {} dimensions, got {}", kMaxDims, ndim_ + 1);
  std::copy_backward(begin() + position, end(), sizes_.begin() + ndim_ + 1);
  sizes_[static_cast<std::size_t>(position)] = size;
  ++ndim_;
}

void Shape::erase(int position) {
  std::copy(begin() + position + 1, end(), sizes_.begin() + position);
  --ndim_;
}

std::int64_t Shape::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t size : *this) product *= size;
  return product;
}

Shape Shape::contiguous_strides() const {
  Shape strides = *this;
  std::int64_t step = 1;
  for (int d = ndim_ - 1; d >= 0; --d) {
    strides[d] = step;
    step *= (*this)[d];
  }
  return strides;
}

std::string Shape::str() const { return fmt::format("[{}]", fmt::join(begin(), end(), ", ")); }

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* operation) {
  if (a == b) return a;
  const Shape& longer = a.ndim() >= b.ndim() ? a : b;
  const Shape& shorter = a.ndim() >= b.ndim() ? b : a;
  Shape result = longer;
  for (int i = 1; i <= shorter.ndim(); ++i) {
    std::int64_t& size = result[longer.ndim() - i];
    const std::int64_t other = shorter[shorter.ndim() - i];
    if (size == other || other == 1) continue;
    if (size != 1) fail<ShapeError>("{}: shapes {} and {} do not broadcast", operation, a, b);
    size = other;
  }
  return result;
}

int normalize_dim(std::int64_t dim, int ndim, const char* operation) {
  if (dim < -ndim || dim >= ndim)
    fail<IndexError>("{}: dimension {} is out of range for a tensor of {} dimensions", operation, dim, ndim);
  return static_cast<int>(dim < 0 ? dim + ndim : dim);
}

}  // namespace glade
