#include <glade/ops/attention/scaled_dot_product.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <glade/autograd/recompute.h>
#include <glade/core/format.h>
#include <glade/ops/activation/activation.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {
namespace {

constexpr const char* kName = "scaled_dot_product_attention";
constexpr std::int64_t kBlockScores = std::int64_t{1} << 22;  // elements that a block of rows may have
constexpr std::int64_t kKeptScores = std::int64_t{1} << 18;   // so few are kept for backward rather than computed again

/// Heads of a query in groups [n, kv_heads, group, rows, e], and keys and values [n, kv_heads, keys, e].
struct Sizes {
  std::int64_t n = 1, heads, kv_heads, rows, keys, e, v;
  std::int64_t group() const { return heads / kv_heads; }
};

std::int64_t heads_of(const Tensor& x) { return x.ndim() > 2 ? x.size(-3) : 1; }

Sizes check(const Tensor& query, const Tensor& key, const Tensor& value, const ScaledDotProductOptions& options) {
  check_same_device(kName, {{"query", &query}, {"key", &key}, {"value", &value}, {"mask", &options.mask}});
  if (!is_floating(query.dtype()) || key.dtype() != query.dtype() || value.dtype() != query.dtype())
    fail<DTypeError>("{}: query is {}, key {} and value {}, expected one floating-point type", kName, query.dtype(), key.dtype(),
                     value.dtype());
  const int dims = query.ndim();
  if (dims < 2 || key.ndim() != dims || value.ndim() != dims)
    fail<ShapeError>("{}: query is {}, key {} and value {}, expected equal numbers of dimensions, at least two", kName,
                     query.shape(), key.shape(), value.shape());
  Sizes s{.heads = heads_of(query),
          .kv_heads = heads_of(key),
          .rows = query.size(-2),
          .keys = key.size(-2),
          .e = query.size(-1),
          .v = value.size(-1)};
  for (int d = 0; d + 3 < dims; ++d) {
    s.n *= query.size(d);
    if (key.size(d) != query.size(d) || value.size(d) != query.size(d))
      fail<ShapeError>("{}: query is {}, key {} and value {}, expected equal sizes before the heads", kName, query.shape(),
                       key.shape(), value.shape());
  }
  if (key.size(-1) != s.e)
    fail<ShapeError>("{}: key is {}, expected a last size of {} as query {}", kName, key.shape(), s.e, query.shape());
  if (value.size(-2) != s.keys || heads_of(value) != s.kv_heads)
    fail<ShapeError>("{}: value is {}, expected the heads and rows of key {}", kName, value.shape(), key.shape());
  if (s.kv_heads == 0 || s.heads % s.kv_heads != 0)
    fail<ShapeError>("{}: key has {} heads, expected a divisor of query's {}", kName, s.kv_heads, s.heads);
  if (!(options.dropout >= 0 && options.dropout <= 1))
    fail<ValueError>("{}: dropout is {}, expected a value in [0, 1]", kName, options.dropout);
  return s;
}

void check_mask(const Tensor& query, const Sizes& s, const Tensor& mask) {
  if (!mask.defined()) return;
  if (mask.requires_grad()) fail<AutogradError>("{}: the mask requires a gradient, which is not computed; detach it", kName);
  if (mask.dtype() != DType::boolean && !is_floating(mask.dtype()))
    fail<DTypeError>("{}: the mask is {}, expected bool or floating point", kName, mask.dtype());
  Shape scores = query.shape();
  scores[scores.ndim() - 1] = s.keys;
  if (mask.ndim() > scores.ndim() || !(broadcast_shapes(mask.shape(), scores, kName) == scores))
    fail<ShapeError>("{}: the mask is {}, expected a shape that broadcasts to {}", kName, mask.shape(), scores);
}

/// Rows [first, last) of the query, which see at most the first `keys` keys.
struct Block {
  std::int64_t first, last, keys;
  std::int64_t rows() const { return last - first; }
};

/// Of the given mask, what is added to the scores of a block: [n, kv_heads, group, rows, keys].
Tensor mask_of_block(const Tensor& mask, const Sizes& s, const Shape& query, const Block& block, DType dtype) {
  Tensor part = mask;
  if (part.ndim() >= 2 && part.size(-2) != 1) part = slice(part, -2, block.first, block.last);
  if (part.ndim() >= 1 && part.size(-1) != 1) part = slice(part, -1, 0, block.keys);
  if (part.dtype() == DType::boolean) {
    const TensorOptions options{dtype, mask.device()};
    part = where(part, zeros({}, options), full({}, -std::numeric_limits<double>::infinity(), options));
  }
  Shape shape = query;
  shape[shape.ndim() - 2] = block.rows();
  shape[shape.ndim() - 1] = block.keys;
  return reshape(expand(to(part, dtype), shape), {s.n, s.kv_heads, s.group(), block.rows(), block.keys});
}

/// -inf where a key comes after the query, else 0: [rows, keys].
Tensor causal_mask(const Block& block, const TensorOptions& options) {
  const TensorOptions positions{DType::int64, options.device};
  const Tensor queries = unsqueeze(arange(block.first, block.last, 1, positions), 1);
  const Tensor keys = arange(0, block.keys, 1, positions);
  return where(keys > queries, full({}, -std::numeric_limits<double>::infinity(), options), zeros({}, options));
}

/// The attention of a block: q [n, kv_heads, group, rows, e], k and v [n, kv_heads, keys, ...] give [n, kv_heads, group, rows,
/// v].
Tensor attend(const Sizes& s, const Block& block, const ScaledDotProductOptions& options, const Shape& query, const Tensor& q,
              const Tensor& k, const Tensor& v) {
  const Shape scores_shape{s.n, s.kv_heads, s.group(), block.rows(), block.keys};
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(s.e)));
  const Tensor together = reshape(q * scale, {s.n, s.kv_heads, s.group() * block.rows(), s.e});
  Tensor scores = reshape(matmul(together, transpose(k, -2, -1)), scores_shape);
  if (options.is_causal && block.keys > block.first + 1) scores = scores + causal_mask(block, scores.options());
  if (options.mask.defined()) scores = scores + mask_of_block(options.mask, s, query, block, scores.dtype());
  const Tensor weights = dropout(softmax(scores, -1), options.dropout);
  const Tensor out = matmul(reshape(weights, {s.n, s.kv_heads, s.group() * block.rows(), block.keys}), v);
  return reshape(out, {s.n, s.kv_heads, s.group(), block.rows(), s.v});
}

/// Rows of a block: so that its scores take a fixed amount of memory, but not fewer than 16.
std::int64_t rows_of_block(const Sizes& s) {
  const std::int64_t row = std::max<std::int64_t>(1, s.n * s.heads * s.keys);
  return std::max<std::int64_t>(16, kBlockScores / row / 16 * 16);
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const ScaledDotProductOptions& options) {
  const Sizes s = check(query, key, value, options);
  check_mask(query, s, options.mask);
  Shape result = query.shape();
  result[result.ndim() - 1] = s.v;
  if (result.numel() == 0) return reshape(query * 0, result);
  const Tensor q = reshape(query, {s.n, s.kv_heads, s.group(), s.rows, s.e});
  const Tensor k = reshape(key, {s.n, s.kv_heads, s.keys, s.e}), v = reshape(value, {s.n, s.kv_heads, s.keys, s.v});
  const bool is_small = s.n * s.heads * s.rows * s.keys <= kKeptScores;
  const std::int64_t step = rows_of_block(s);
  Tensors blocks;
  for (std::int64_t first = 0; first < s.rows; first += step) {
    const std::int64_t last = std::min(first + step, s.rows);
    const Block block{first, last, options.is_causal ? std::min(s.keys, last) : s.keys};
    const auto function = [s, block, options, shape = query.shape()](const Tensors& in) {
      return Tensors{attend(s, block, options, shape, in[0], in[1], in[2])};
    };
    const Tensors inputs{slice(q, 3, first, last), slice(k, 2, 0, block.keys), slice(v, 2, 0, block.keys)};
    blocks.push_back(is_small ? function(inputs)[0] : autograd::recompute(function, inputs, {})[0]);
  }
  return reshape(blocks.size() == 1 ? blocks[0] : cat(blocks, 3), result);
}

}  // namespace glade
