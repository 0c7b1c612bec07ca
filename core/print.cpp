// Printing tensors the way NumPy does.
#include <algorithm>
#include <cmath>
#include <ostream>

#include <glade/core/format.h>
#include <glade/core/tensor.h>

namespace glade {

namespace {

constexpr std::int64_t kThreshold = 1000;  // more elements than this are summarised
constexpr std::int64_t kEdge = 3;          // entries shown at either end of a summarised dimension

class Printer {
 public:
  explicit Printer(const Tensor& x) : shape_(x.shape()), strides_(x.shape().contiguous_strides()), values_(x.to_vector<double>()), dtype_(x.dtype()) {
    summarise_ = x.numel() > kThreshold;
    double largest = 0, smallest = INFINITY;
    bool integers = true;
    for (const double value : values_) {
      if (!std::isfinite(value)) continue;
      if (value != 0) smallest = std::min(smallest, std::abs(value));
      largest = std::max(largest, std::abs(value));
      integers = integers && value == std::floor(value);
    }
    scientific_ = is_floating(dtype_) && (largest >= 1e8 || (smallest < 1e-4 && smallest != INFINITY));
    integers_ = integers;
    for (const double value : values_) width_ = std::max(width_, format(value).size());
  }

  std::string str() const {
    std::string text;
    append(text, 0, 0);
    return text;
  }

 private:
  std::string format(double value) const {
    if (dtype_ == DType::boolean) return value != 0 ? "true" : "false";
    if (is_integral(dtype_)) return fmt::format("{}", static_cast<std::int64_t>(value));
    if (!std::isfinite(value)) return fmt::format("{}", value);
    if (scientific_) return fmt::format("{:.4e}", value);
    return integers_ ? fmt::format("{:.0f}.", value) : fmt::format("{:.4f}", value);
  }

  void append(std::string& text, int dim, std::int64_t at) const {
    if (dim == shape_.ndim()) {
      text += fmt::format("{:>{}}", format(values_[static_cast<std::size_t>(at)]), width_);
      return;
    }
    const bool last = dim + 1 == shape_.ndim();
    // Rows of a matrix are on lines of their own, matrices a blank line apart.
    const std::string separator = last ? ", " : fmt::format(",{:\n>{}}{:>{}}", "", shape_.ndim() - dim - 1, "", dim + 1);
    text += '[';
    for (std::int64_t i = 0; i < shape_[dim]; ++i) {
      if (i > 0) text += separator;
      if (summarise_ && shape_[dim] > 2 * kEdge && i == kEdge) {
        text += "..." + separator;
        i = shape_[dim] - kEdge;
      }
      append(text, dim + 1, at + i * strides_[dim]);
    }
    text += ']';
  }

  Shape shape_;
  Strides strides_;
  std::vector<double> values_;
  DType dtype_;
  bool summarise_ = false, scientific_ = false, integers_ = false;
  std::size_t width_ = 0;
};

}  // namespace

std::string Tensor::str() const {
  if (!defined()) return "tensor(undefined)";
  return fmt::format("{}\n(shape={}, dtype={}, device={})", Printer(*this).str(), shape(), dtype(), device());
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.str(); }

}  // namespace glade
