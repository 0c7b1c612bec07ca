#include <glade/ops/linear_attention/arguments.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include <glade/autograd/grad_mode.h>
#include <glade/core/accumulate.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/packed/packed.h>
#include <glade/ops/shape/shape.h>

namespace glade::linear_attention {

namespace {

constexpr std::int64_t kLargestHead = 512;

void check_shape(const char* name, const Tensor& x, const Shape& expected, const Tensor& query) {
  if (!(x.shape() == expected))
    fail<ShapeError>("recurrent: {} is {}: expected {} with query {}", name, x.shape(), expected, query.shape());
}

void check_gate_dtype(const char* name, const Tensor& x, const Tensor& query) {
  if (x.dtype() != query.dtype() && x.dtype() != state_dtype(query))
    fail<DTypeError>("recurrent: {} is {}: expected {} with query {}", name, x.dtype(),
                     fmt::join(std::set{query.dtype(), state_dtype(query)}, " or "), query.dtype());
}

/// Query, key and value against each other.
void check_rows(const Tensor& query, const Tensor& key, const Tensor& value, bool packed) {
  const std::pair<const char*, const Tensor*> rows[] = {{"query", &query}, {"key", &key}, {"value", &value}};
  for (const auto& [name, x] : rows) {
    if (!x->defined()) fail<ValueError>("recurrent: {} is undefined", name);
    if (x->ndim() != 4 && !(packed && x->ndim() == 3))
      fail<ShapeError>(
          "recurrent: {} is {}: expected [batch, tokens, heads, channels], or [tokens, heads, channels] with cu_seqlens", name,
          x->shape());
    if (x->ndim() != query.ndim())
      fail<ShapeError>("recurrent: {} is {}, query is {}: expected the same number of dimensions", name, x->shape(),
                       query.shape());
    if (!is_floating(x->dtype())) fail<DTypeError>("recurrent: {} is {}: expected a floating-point tensor", name, x->dtype());
    if (x->dtype() != query.dtype()) fail<DTypeError>("recurrent: {} is {}, query is {}", name, x->dtype(), query.dtype());
    if (x->size(-1) < 1 || x->size(-1) > kLargestHead)
      fail<ShapeError>("recurrent: {} is {}: a head's size is {}, expected 1 to {}", name, x->shape(), x->size(-1), kLargestHead);
    if (x->size(-2) < 1) fail<ShapeError>("recurrent: {} is {}: expected at least one head", name, x->shape());
    for (int d = 0; d < x->ndim() - 2; ++d)
      if (x->shape()[d] != query.shape()[d])
        fail<ShapeError>("recurrent: {} is {}, query is {}: expected the same batch and tokens", name, x->shape(), query.shape());
  }
  if (key.size(-1) != query.size(-1))
    fail<ShapeError>("recurrent: key is {}, query is {}: head sizes {} and {} differ", key.shape(), query.shape(), key.size(-1),
                     query.size(-1));
  if (value.size(-2) != key.size(-2))
    fail<ShapeError>("recurrent: value is {}, key is {}: {} and {} heads", value.shape(), key.shape(), value.size(-2),
                     key.size(-2));
  if (query.size(-2) % key.size(-2) != 0)
    fail<ShapeError>("recurrent: query is {}, key is {}: {} query heads are no multiple of {} key heads", query.shape(),
                     key.shape(), query.size(-2), key.size(-2));
}

void check_gates(const Tensor& query, const Tensor& value, const RecurrentOptions& options, std::int64_t sequences) {
  Shape per_head = query.shape(), per_value = query.shape();
  per_head.erase(query.ndim() - 1);
  per_value[query.ndim() - 1] = value.size(-1);
  const std::int64_t heads = query.size(-2), K = query.size(-1), V = value.size(-1);
  if (options.g.defined()) check_shape("g", options.g, options.g.ndim() == query.ndim() ? query.shape() : per_head, query);
  if (options.gk.defined()) check_shape("gk", options.gk, query.shape(), query);
  if (options.gv.defined()) check_shape("gv", options.gv, per_value, query);
  if (const Tensor& gamma = options.g_gamma; gamma.defined()) {
    const bool for_all = options.cu_seqlens.defined() && gamma.ndim() == 2 && gamma.size(0) == 1;  // [B, H] with B = 1
    check_shape("g_gamma", gamma, gamma.ndim() == 1 ? Shape{heads} : Shape{for_all ? 1 : sequences, heads}, query);
  }
  const Tensor& state = options.initial_state;
  if (state.defined() && state.ndim() == 4 && state.shape()[0] != sequences)
    fail<ShapeError>("recurrent: initial_state is {}: {} states for {} sequences", state.shape(), state.shape()[0], sequences);
  if (state.defined())
    check_shape("initial_state", state, state.ndim() == 3 ? Shape{heads, K, V} : Shape{sequences, heads, K, V}, query);
  const std::pair<const char*, const Tensor*> gates[] = {
      {"g", &options.g}, {"g_gamma", &options.g_gamma}, {"gk", &options.gk}, {"gv", &options.gv}, {"initial_state", &state}};
  for (const auto& [name, x] : gates)
    if (x->defined()) check_gate_dtype(name, *x, query);
}

Sequences find_sequences(const Tensor& query, const Tensor& cu_seqlens) {
  if (!cu_seqlens.defined()) return {query.shape()[0], query.shape()[1], {}};
  const std::int64_t batch = query.ndim() == 4 ? query.shape()[0] : 1;
  const auto [boundaries, on_device] = packed_sequences("recurrent", cu_seqlens, "query", query, batch, query.size(-3));
  Sequences sequences{static_cast<std::int64_t>(boundaries.size()) - 1, 0, on_device};
  for (std::size_t i = 1; i < boundaries.size(); ++i)
    sequences.length = std::max(sequences.length, boundaries[i] - boundaries[i - 1]);
  return sequences;
}

}  // namespace

Sequences check(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options) {
  check_rows(query, key, value, options.cu_seqlens.defined());
  check_same_device("recurrent", {{"query", &query},
                                  {"key", &key},
                                  {"value", &value},
                                  {"g", &options.g},
                                  {"g_gamma", &options.g_gamma},
                                  {"gk", &options.gk},
                                  {"gv", &options.gv},
                                  {"initial_state", &options.initial_state}});
  if (options.checkpoint_interval.value_or(1) < 1)
    fail<ValueError>("recurrent: checkpoint_interval is {}: expected at least 1", *options.checkpoint_interval);
  Sequences sequences = find_sequences(query, options.cu_seqlens);
  check_gates(query, value, options, sequences.count);
  return sequences;
}

/// On CUDA from a multiple of 16 bytes on, as the copies of the chunk kernels are.
Tensor row_major(const Tensor& x) {
  constexpr std::uintptr_t kAlignment = 16;
  const Tensor rows = contiguous_data(x);
  const bool aligned = rows.device().is_cpu() || reinterpret_cast<std::uintptr_t>(rows.raw_data()) % kAlignment == 0;
  return aligned ? rows : glade::clone(rows.detach());
}
namespace {
Tensor row_major(const Tensor& x, DType dtype) { return x.defined() ? linear_attention::row_major(to_data(x, dtype)) : x; }
}  // namespace

Recurrence canonical(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                     const Sequences& sequences) {
  Recurrence r;
  const DType dtype = query.dtype(), state = state_dtype(query);
  r.q = row_major(query);
  r.k = row_major(key);
  r.v = row_major(value);
  const bool per_channel = is_per_channel(options.g, query), both = per_channel && options.gk.defined();
  const bool narrow = !both && std::ranges::all_of(std::array{options.g, options.gk, options.gv},
                                                   [&](const Tensor& x) { return !x.defined() || x.dtype() == dtype; });
  const DType gate = narrow ? dtype : state;
  r.gk = row_major(options.gk, gate);
  r.gv = row_major(options.gv, gate);
  if (both) {
    r.gk = empty(query.shape(), {gate, query.device()});
    add_data(r.gk, row_major(options.g, gate), row_major(options.gk, gate));
  } else {
    (per_channel ? r.gk : r.g) = row_major(options.g, gate);
  }
  r.g_gamma = row_major(options.g_gamma, state);
  if (r.g_gamma.defined() && r.g_gamma.ndim() == 2 && r.g_gamma.size(0) != sequences.count)
    r.g_gamma = reshape(r.g_gamma.detach(), {r.g_gamma.size(1)});  // [1, H]: the decay of all packed sequences
  r.initial_state = row_major(options.initial_state, state);
  r.cu_seqlens = sequences.cu_seqlens;
  r.sequences = sequences.count;
  r.length = sequences.length;
  r.heads = query.size(-2);
  r.kv_heads = key.size(-2);
  r.K = query.size(-1);
  r.V = value.size(-1);
  r.tokens = query.ndim() == 4 ? query.shape()[0] * query.shape()[1] : query.shape()[0];
  r.scale = scale_of(options, r.K);
  r.reverse = options.reverse;
  return r;
}

double scale_of(const RecurrentOptions& options, std::int64_t K) {
  return options.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(K)));
}

namespace {
bool is_zero_scale(double scale) {
  constexpr double kLeastScale = 1e-30;
  return std::abs(scale) < kLeastScale;
}
}  // namespace

AttentionProblem::Gradients wanted_gradients(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const RecurrentOptions& options) {
  AttentionProblem::Gradients wanted;
  if (!GradMode::enabled()) return wanted;
  const auto wants = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  const bool per_channel = is_per_channel(options.g, query);
  wanted.q = wants(query);
  wanted.k = wants(key);
  wanted.v = wants(value);
  wanted.g = wants(options.g) && !per_channel;
  wanted.g_gamma = wants(options.g_gamma);
  wanted.gk = wants(options.gk) || (wants(options.g) && per_channel);
  wanted.gv = wants(options.gv);
  wanted.initial_state = wants(options.initial_state);
  return wanted;
}

AttentionProblem problem_of(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                            const Sequences& sequences, const AttentionProblem::Gradients& gradients) {
  AttentionProblem p = AttentionProblem::of(query, key, value, options, tuning::Pass::forward);
  p.sequences = sequences.count;
  p.length = sequences.length;
  p.zero_scale = is_zero_scale(scale_of(options, p.K));
  p.gradients = gradients;
  return p;
}

AttentionProblem problem_of(const Recurrence& r, const AttentionProblem::Gradients& gradients) {
  AttentionProblem p;
  p.device = r.q.device();
  p.dtype = r.q.dtype();
  p.sequences = r.sequences;
  p.length = r.length;
  p.tokens = r.tokens;
  p.heads = r.heads;
  p.kv_heads = r.kv_heads;
  p.K = r.K;
  p.V = r.V;
  p.g = r.g.defined();
  p.g_gamma = r.g_gamma.defined();
  p.gk = r.gk.defined();
  p.gv = r.gv.defined();
  p.float_gates =
      std::ranges::any_of(std::array{r.g, r.gk, r.gv}, [&](const Tensor& x) { return x.defined() && x.dtype() != p.dtype; });
  p.packed = r.cu_seqlens.defined();
  p.reverse = r.reverse;
  p.zero_scale = is_zero_scale(r.scale);
  p.gradients = gradients;
  p.gpu = AttentionProblem::gpu_of(p.device);
  return p;
}

}  // namespace glade::linear_attention
