// Printing tensors the way NumPy does (its array2string with ", " between the elements).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ostream>

#include <glade/core/format.h>
#include <glade/core/tensor.h>

namespace glade {

namespace {

constexpr std::int64_t kThreshold = 1000;  // more elements than this are summarised
constexpr std::int64_t kEdge = 3;          // entries shown at either end of a summarised dimension
constexpr std::size_t kLineWidth = 75;
constexpr int kPrecision = 8;  // digits after the point at most

/// The first and last kEdge entries of every dimension longer than both, row-major on the CPU.
Tensor edges(Tensor x) {
  for (int d = 0; d < x.ndim(); ++d) {
    if (x.size(d) <= 2 * kEdge) continue;
    Shape shape = x.shape(), half = x.shape();
    shape[d] = 2 * kEdge;
    half[d] = kEdge;
    const Tensor kept = empty(shape, x.options());
    for (const bool tail : {false, true}) {
      const std::int64_t to = tail ? kEdge : 0, from = tail ? x.size(d) - kEdge : 0;
      copy_data(kept.as_strided(half, kept.strides(), to * kept.strides()[d]),
                x.as_strided(half, x.strides(), x.offset() + from * x.strides()[d]));
    }
    x = kept;
  }
  return to_data(contiguous_data(x), kCPU);
}

/// The shortest text, of at most kPrecision digits after the point, that reads back as x.
template <class T>
std::string shortest(T x, bool scientific) {
  const double value = static_cast<double>(x);
  std::string text;
  for (int digits = 0; digits <= kPrecision; ++digits) {
    text = scientific ? fmt::format("{:#.{}e}", value, digits) : fmt::format("{:#.{}f}", value, digits);
    if (static_cast<double>(T(std::strtod(text.c_str(), nullptr))) == value) break;
  }
  const std::size_t end = std::min(text.find('e'), text.size());
  const std::size_t last = text.find_last_not_of('0', end - 1);
  return text.erase(last + 1, end - last - 1);
}

/// Points below each other: fixed notation unless the numbers are very large, very small or far apart.
template <class T>
std::vector<std::string> format_real(std::span<const T> values) {
  double largest = 0, smallest = INFINITY;
  for (const T x : values) {
    const double magnitude = std::abs(static_cast<double>(x));
    if (magnitude == 0 || !std::isfinite(magnitude)) continue;
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude);
  }
  const bool scientific = largest >= 1e8 || (largest > 0 && (smallest < 1e-4 || largest / smallest > 1000));
  std::vector<std::string> texts;
  std::size_t fraction = 0, exponent = 0;  // the most digits of each
  const auto fraction_of = [](const std::string& text) { return std::min(text.find('e'), text.size()) - text.find('.') - 1; };
  const auto exponent_of = [](const std::string& text) { return text.size() - text.find('e') - 2; };
  for (const T x : values) {
    const auto value = static_cast<double>(x);
    texts.push_back(std::isfinite(value) ? shortest(x, scientific) : std::isnan(value) ? "nan" : fmt::format("{}", value));
    if (!std::isfinite(value)) continue;
    fraction = std::max(fraction, fraction_of(texts.back()));
    if (scientific) exponent = std::max(exponent, exponent_of(texts.back()));
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!std::isfinite(static_cast<double>(values[i]))) continue;
    if (scientific) {
      texts[i] = fmt::format("{:#.{}e}", static_cast<double>(values[i]), fraction);
      texts[i].insert(texts[i].find('e') + 2, exponent - exponent_of(texts[i]), '0');
    } else {
      texts[i].append(fraction - fraction_of(texts[i]), ' ');
    }
  }
  return texts;
}

template <class T>
std::vector<std::string> format_elements(std::span<const T> values) {
  std::vector<std::string> texts;
  if constexpr (std::is_same_v<T, BoolByte>) {
    for (const bool x : values) texts.push_back(x ? " True" : "False");
  } else if constexpr (std::is_integral_v<T>) {
    for (const T x : values) texts.push_back(fmt::format("{}", x));
  } else {
    texts = format_real(values);
  }
  std::size_t width = 0;
  for (const std::string& text : texts) width = std::max(width, text.size());
  for (std::string& text : texts) text.insert(0, width - text.size(), ' ');
  return texts;
}

struct Printer {
  const std::vector<std::string>& texts;
  const Shape& full;  ///< the tensor's shape
  const Shape& kept;  ///< that of the elements shown
  const Strides strides = kept.contiguous_strides();

  std::string str(int dim = 0, std::int64_t at = 0) const {
    if (kept.empty()) return texts[0].substr(texts[0].find_first_not_of(' '));
    const std::string indent(static_cast<std::size_t>(dim) + 1, ' ');
    return '[' + (dim + 1 == kept.ndim() ? row(at, indent) : blocks(dim, at, indent)) + ']';
  }

 private:
  bool is_cut(int dim, std::int64_t i) const { return kept[dim] != full[dim] && i == kEdge; }

  /// The elements of the innermost dimension, broken into lines.
  std::string row(std::int64_t at, const std::string& indent) const {
    std::string done, line;
    const auto add = [&](const std::string& word) {
      // Room for the separator, and for the closing bracket of every dimension further out.
      if (!line.empty() && 2 * indent.size() + line.size() + word.size() > kLineWidth) {
        done += line.substr(0, line.size() - 1) + '\n' + indent;
        line.clear();
      }
      line += word;
    };
    for (std::int64_t i = 0; i < kept.back(); ++i) {
      if (i > 0) line += ", ";
      if (is_cut(kept.ndim() - 1, i)) {
        add("...");
        line += ", ";
      }
      add(texts[static_cast<std::size_t>(at + i)]);
    }
    return done + line;
  }

  /// Rows of a matrix are on lines of their own, matrices a blank line apart, and so on.
  std::string blocks(int dim, std::int64_t at, const std::string& indent) const {
    const std::string separator = ',' + std::string(static_cast<std::size_t>(kept.ndim() - dim - 1), '\n') + indent;
    std::string text;
    for (std::int64_t i = 0; i < kept[dim]; ++i) {
      if (i > 0) text += separator;
      if (is_cut(dim, i)) text += "..." + separator;
      text += str(dim + 1, at + i * strides[dim]);
    }
    return text;
  }
};

std::string values_str(const Tensor& x) {
  if (x.numel() == 0) return "[]";
  const Tensor shown = x.numel() > kThreshold ? edges(x) : to_data(contiguous_data(x), kCPU);
  return visit_all(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto texts = format_elements(std::span(stored(shown.data<T>()), static_cast<std::size_t>(shown.numel())));
    return Printer{texts, x.shape(), shown.shape()}.str();
  });
}

}  // namespace

std::string Tensor::str() const {
  if (!defined()) return "tensor(undefined)";
  return fmt::format("{}\n(shape={}, dtype={}, device={})", values_str(*this), shape(), dtype(), device());
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.str(); }

}  // namespace glade
