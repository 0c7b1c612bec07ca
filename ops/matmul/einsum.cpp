#include <glade/ops/matmul/einsum.h>

#include <algorithm>
#include <cctype>

#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

/// A tensor whose dimensions are named by letters. Those of "..." are digits, counted from the last one.
struct Term {
  Tensor x;
  std::string labels;
};

bool has(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

std::string dots(std::int64_t count) {
  std::string labels;
  for (std::int64_t i = count - 1; i >= 0; --i) labels.push_back(static_cast<char>('0' + i));
  return labels;
}

/// `text` with digits for its "...", which are `count` dimensions.
std::string expand_dots(const std::string& text, std::int64_t count) {
  const std::size_t at = text.find("...");
  return at == std::string::npos ? text : text.substr(0, at) + dots(count) + text.substr(at + 3);
}

struct Equation {
  std::vector<std::string> inputs;
  std::string output;
};

/// The equation for operands of these dimensions, with digits for dots.
Equation parse(const std::string& text, const Tensors& operands) {
  std::string equation = text;
  std::erase(equation, ' ');
  for (const char c : equation)
    if (!std::isalpha(static_cast<unsigned char>(c)) && !has(",.->", c))
      fail<ValueError>("einsum: '{}': '{}' is no letter", text, c);
  const std::size_t arrow = equation.find("->");
  Equation result;
  std::string input;
  for (const char c : equation.substr(0, arrow) + ',') {
    if (c == ',') result.inputs.push_back(std::exchange(input, ""));
    else input.push_back(c);
  }
  if (result.inputs.size() != operands.size())
    fail<ValueError>("einsum: '{}' has {} operands, got {}", text, result.inputs.size(), operands.size());
  std::int64_t most_dots = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    std::string& labels = result.inputs[i];
    const bool has_dots = labels.find("...") != std::string::npos;
    const std::int64_t rest = operands[i].ndim() - static_cast<std::int64_t>(labels.size()) + (has_dots ? 3 : 0);
    if (has_dots ? rest < 0 : rest != 0)
      fail<ShapeError>("einsum: '{}' has other dimensions than operand {}, which is {}", labels, i, operands[i].shape());
    if (has_dots) most_dots = std::max(most_dots, rest);
    labels = expand_dots(labels, rest);
  }
  if (arrow != std::string::npos) {
    result.output = expand_dots(equation.substr(arrow + 2), most_dots);
  } else {
    std::string all;
    for (const std::string& labels : result.inputs) all += labels;
    std::string once = all;
    std::erase_if(once, [&](char c) { return !std::isalpha(static_cast<unsigned char>(c)) || std::ranges::count(all, c) != 1; });
    std::ranges::sort(once);
    result.output = dots(most_dots) + once;
  }
  std::vector<std::string> terms = result.inputs;
  terms.push_back(result.output);
  for (const std::string& labels : terms)
    if (labels.find_first_of(".->") != std::string::npos)
      fail<ValueError>("einsum: '{}': expected letters, ... once a term, and ->", text);
  for (const char c : result.output)
    if (std::ranges::count(result.output, c) > 1 || std::ranges::none_of(result.inputs, [c](const auto& l) { return has(l, c); }))
      fail<ValueError>("einsum: '{}': the result's '{}' is not one dimension of the operands", text, c);
  return result;
}

/// Makes one dimension of two that have one label: those off the diagonal count as 0 and are summed away.
void take_diagonals(Term& term) {
  for (std::size_t i = 0; i < term.labels.size(); ++i) {
    const std::size_t j = term.labels.find(term.labels[i], i + 1);
    if (j == std::string::npos) continue;
    const std::int64_t n = term.x.size(static_cast<std::int64_t>(i));
    if (term.x.size(static_cast<std::int64_t>(j)) != n)
      fail<ShapeError>("einsum: dimensions '{}' of x {} have two sizes", term.labels[i], term.x.shape());
    Shape shape(std::vector<std::int64_t>(term.labels.size(), 1));
    shape[static_cast<int>(i)] = shape[static_cast<int>(j)] = n;
    term.x = sum(term.x * reshape(eye(n, term.x.options()), shape), {static_cast<std::int64_t>(j)});
    term.labels.erase(j, 1);
    --i;  // there may be a third
  }
}

/// Sums over the dimensions whose labels nobody needs.
void sum_out(Term& term, const std::string& needed) {
  Dims gone;
  for (std::size_t i = 0; i < term.labels.size(); ++i)
    if (!has(needed, term.labels[i])) gone.push_back(static_cast<std::int64_t>(i));
  if (gone.empty()) return;
  term.x = sum(term.x, gone);
  std::erase_if(term.labels, [&](char c) { return !has(needed, c); });
}

/// The term with its dimensions in the order of `labels`, which may have more: those get the size 1.
Tensor arranged(const Term& term, const std::string& labels) {
  std::vector<std::int64_t> order;
  Shape shape;
  for (const char c : labels) {
    const std::size_t at = term.labels.find(c);
    if (at != std::string::npos) order.push_back(static_cast<std::int64_t>(at));
    shape.push_back(at == std::string::npos ? 1 : term.x.size(static_cast<std::int64_t>(at)));
  }
  return reshape(permute(term.x, order), shape);
}

std::int64_t product_of(const Shape& shape, std::size_t begin, std::size_t end) {
  std::int64_t product = 1;
  for (std::size_t i = begin; i < end; ++i) product *= shape[static_cast<int>(i)];
  return product;
}

/// Two terms as a batched matrix product: labels of both that are needed are its batch, those not needed are summed over.
Term contract(const Term& a, const Term& b, const std::string& needed) {
  std::string batch, summed, rows, columns;
  for (const char c : a.labels) (!has(b.labels, c) ? rows : has(needed, c) ? batch : summed).push_back(c);
  for (const char c : b.labels)
    if (!has(a.labels, c)) columns.push_back(c);
  Tensor x = arranged(a, batch + rows + summed), y = arranged(b, batch + summed + columns);
  Shape shape;  // of the result, by batch + rows + columns; sizes of 1 broadcast
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::int64_t m = x.shape()[static_cast<int>(i)], n = y.shape()[static_cast<int>(i)];
    if (m != n && m != 1 && n != 1) fail<ShapeError>("einsum: dimension '{}' has the sizes {} and {}", batch[i], m, n);
    shape.push_back(m == 1 ? n : m);
  }
  const std::size_t nb = batch.size(), nr = rows.size(), ns = summed.size(), nc = columns.size();
  Shape x_shape = x.shape(), y_shape = y.shape();
  for (std::size_t i = 0; i < ns; ++i) {
    std::int64_t &m = x_shape[static_cast<int>(nb + nr + i)], &n = y_shape[static_cast<int>(nb + i)];
    if (m != n && m != 1 && n != 1) fail<ShapeError>("einsum: dimension '{}' has the sizes {} and {}", summed[i], m, n);
    m = n = std::max(m, n) * (m != 0 && n != 0);
  }
  for (std::size_t i = 0; i < nb; ++i) x_shape[static_cast<int>(i)] = y_shape[static_cast<int>(i)] = shape[static_cast<int>(i)];
  const std::int64_t B = product_of(shape, 0, nb), M = product_of(x_shape, nb, nb + nr),
                     K = product_of(x_shape, nb + nr, nb + nr + ns), N = product_of(y_shape, nb + ns, nb + ns + nc);
  for (std::size_t i = 0; i < nr; ++i) shape.push_back(x_shape[static_cast<int>(nb + i)]);
  for (std::size_t i = 0; i < nc; ++i) shape.push_back(y_shape[static_cast<int>(nb + ns + i)]);
  x = reshape(expand(x, x_shape), {B, M, K});
  y = reshape(expand(y, y_shape), {B, K, N});
  return {reshape(ns == 0 ? x * y : matmul(x, y), shape), batch + rows + columns};
}

}  // namespace

Tensor einsum(const std::string& equation, const Tensors& operands) {
  if (operands.empty()) fail<ValueError>("einsum: no operands");
  const Equation parsed = parse(equation, operands);
  DType dtype = operands[0].dtype();
  for (const Tensor& x : operands) dtype = promote(dtype, x.dtype());
  if (!is_floating(dtype)) fail<DTypeError>("einsum: the operands are {}: expected floating point", dtype);
  std::vector<Term> terms;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    terms.push_back({to(operands[i], dtype), parsed.inputs[i]});
    take_diagonals(terms.back());
  }
  Term result = terms[0];
  for (std::size_t i = 0; i < terms.size(); ++i) {
    std::string needed = parsed.output;  // by what comes after this term, and the result
    for (std::size_t j = i + 1; j < terms.size(); ++j) needed += terms[j].labels;
    if (i > 0) {
      sum_out(terms[i], needed + result.labels);
      sum_out(result, needed + terms[i].labels);
      result = contract(result, terms[i], needed);
    } else if (terms.size() == 1) sum_out(result, needed);
  }
  return arranged(result, parsed.output);
}

}  // namespace glade
