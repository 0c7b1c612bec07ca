#include <glade/ops/linear_attention/linear_attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include <glade/autograd/aside.h>
#include <glade/autograd/gradient_matrix.h>
#include <glade/autograd/node.h>
#include <glade/core/accumulate.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/kernels.h>
#include <glade/ops/packed/packed.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

constexpr std::int64_t kLargestHead = 512;

DType state_dtype(const Tensor& query) { return query.dtype() == DType::float64 ? DType::float64 : DType::float32; }

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
  if (options.g_gamma.defined())
    check_shape("g_gamma", options.g_gamma, options.g_gamma.ndim() == 1 ? Shape{heads} : Shape{sequences, heads}, query);
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

/// Where the sequences lie.
struct Sequences {
  std::int64_t count, length;  ///< length: of the longest
  Tensor cu_seqlens;           ///< int64 on the query's device, or undefined
};

Sequences find_sequences(const Tensor& query, const Tensor& cu_seqlens) {
  if (!cu_seqlens.defined()) return {query.shape()[0], query.shape()[1], {}};
  const std::int64_t batch = query.ndim() == 4 ? query.shape()[0] : 1;
  const auto [boundaries, on_device] = packed_sequences("recurrent", cu_seqlens, "query", query, batch, query.size(-3));
  Sequences sequences{static_cast<std::int64_t>(boundaries.size()) - 1, 0, on_device};
  for (std::size_t i = 1; i < boundaries.size(); ++i)
    sequences.length = std::max(sequences.length, boundaries[i] - boundaries[i - 1]);
  return sequences;
}

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
  if (options.checkpoint_interval < 1)
    fail<ValueError>("recurrent: checkpoint_interval is {}: expected at least 1", options.checkpoint_interval);
  Sequences sequences = find_sequences(query, options.cu_seqlens);
  check_gates(query, value, options, sequences.count);
  return sequences;
}

bool is_per_channel(const Tensor& g, const Tensor& query) { return g.defined() && g.ndim() == query.ndim(); }

/// Row-major and, on CUDA, from a multiple of 16 bytes on, as the chunk form's copies are.
Tensor row_major(const Tensor& x) {
  constexpr std::uintptr_t kAlignment = 16;
  const Tensor rows = contiguous_data(x);
  const bool aligned = rows.device().is_cpu() || reinterpret_cast<std::uintptr_t>(rows.raw_data()) % kAlignment == 0;
  return aligned ? rows : clone(rows.detach());
}
Tensor row_major(const Tensor& x, DType dtype) { return x.defined() ? row_major(to_data(x, dtype)) : x; }

/// Checked arguments in the form that the kernels take: gates of one dtype, a per-channel g added to gk.
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
  r.initial_state = row_major(options.initial_state, state);
  r.cu_seqlens = sequences.cu_seqlens;
  r.sequences = sequences.count;
  r.length = sequences.length;
  r.heads = query.size(-2);
  r.kv_heads = key.size(-2);
  r.K = query.size(-1);
  r.V = value.size(-1);
  r.tokens = query.ndim() == 4 ? query.shape()[0] * query.shape()[1] : query.shape()[0];
  r.scale = options.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(r.K)));
  r.reverse = options.reverse;
  r.checkpoint_interval = options.checkpoint_interval;
  r.sizes = options.sizes;
  return r;
}

bool use_chunk(Algorithm algorithm, bool backward, const KernelSizes& sizes, const Recurrence& r) {
  const RecurrenceShape shape = RecurrenceShape::of(r);
  // The fused passes divide the final state's gradient by the scale, as they scale all that they add to it.
  constexpr double kLeastScale = 1e-30;
  const bool vanishes = backward && std::abs(r.scale) < kLeastScale && chunk_in_passes(shape);
  if (algorithm == Algorithm::automatic) algorithm = vanishes ? Algorithm::recurrent : pick_algorithm(shape, backward);
  const bool chunk = algorithm == Algorithm::chunk;
  const char* obstacle = !chunk ? nullptr : vanishes ? "a softmax_scale of 0 on this GPU" : chunk_obstacle(shape);
  if (!obstacle) obstacle = sizes_obstacle(shape, chunk, sizes);
  if (obstacle) fail<ValueError>("recurrent: algorithm {} does not take {}", chunk ? "chunk" : "recurrent", obstacle);
  return chunk;
}

Shape output_shape(const Tensor& query, const Tensor& value) {
  Shape shape = query.shape();
  shape[query.ndim() - 1] = value.size(-1);
  return shape;
}

Tensor sum_over_sequences(const Tensor& x, bool shared) { return shared ? sum(x, {0}) : x; }

/// Gradients of query, key, value, g, g_gamma, gk, gv and initial_state.
Tensors backward(const Node& node, const Tensors& gradients, const Tensor& query, const Tensor& key, const Tensor& value,
                 const RecurrentOptions& options, const Sequences& sequences, const Tensor& states) {
  if (GradMode::enabled()) throw AutogradError("recurrent: has no second derivative (create_graph)");
  Recurrence r = canonical(query, key, value, options, sequences);
  r.states = states;
  const bool per_channel = is_per_channel(options.g, query);
  auto wanted = [&](std::size_t input, const Tensor& like) { return node.needs_grad(input) ? empty_like(like) : Tensor(); };
  // The passes of the chunk form write rows with gaps, but for heads that are shared.
  const bool gaps = options.algorithm == Algorithm::chunk && r.group() == 1 && chunk_in_passes(RecurrenceShape::of(r));
  auto wanted_rows = [&](std::size_t input, const Tensor& like) {
    return gaps && node.needs_grad(input) ? autograd::empty_gradient(like) : wanted(input, like);
  };
  const Tensor grad_o = gradients[0].defined() ? row_major(gradients[0]) : Tensor();
  const Tensor grad_state = gradients[1].defined() ? contiguous_data(gradients[1]) : Tensor();
  autograd::start_aside();  // few blocks, each for long
  const bool chunk = options.algorithm == Algorithm::chunk;
  auto compute = [&](const RecurrenceGradients& some) {
    if (chunk) GLADE_DISPATCH(query.device(), chunk_backward, r, grad_o, grad_state, some);
    else GLADE_DISPATCH(query.device(), recurrent_backward, r, grad_o, grad_state, some);
  };
  RecurrenceGradients grads;
  grads.q = wanted_rows(0, query);
  grads.k = wanted_rows(1, key);
  if (!per_channel) grads.g = wanted(3, r.g);
  if (node.needs_grad(4)) grads.g_gamma = empty({r.sequences, r.heads}, r.g_gamma.options());
  if (node.needs_grad(5) || (per_channel && node.needs_grad(3))) grads.gk = empty_like(r.gk);
  grads.gv = wanted(6, r.gv);
  // The value's gradient comes last where it can: its memory then serves for what the others leave for each other.
  bool separately = false;
  if (chunk && query.device().is_cuda()) GLADE_DISPATCH_CUDA(chunk_computes_values_separately, r, separately);
  if (separately) compute(grads);
  RecurrenceGradients rest = separately ? RecurrenceGradients() : grads;
  rest.v = grads.v = wanted_rows(2, value);
  if (node.needs_grad(7))
    rest.initial_state = grads.initial_state = empty({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), query.device()});
  compute(rest);

  auto as_input = [](const Tensor& grad, const Tensor& input) { return grad.defined() ? to_data(grad, input.dtype()) : grad; };
  Tensors result{grads.q, grads.k, grads.v};
  result.push_back(node.needs_grad(3) ? as_input(per_channel ? grads.gk : grads.g, options.g) : Tensor());
  result.push_back(node.needs_grad(4) ? as_input(sum_over_sequences(grads.g_gamma, options.g_gamma.ndim() == 1), options.g_gamma)
                                      : Tensor());
  result.push_back(node.needs_grad(5) ? as_input(grads.gk, options.gk) : Tensor());
  result.push_back(as_input(grads.gv, options.gv));
  result.push_back(node.needs_grad(7) ? as_input(sum_over_sequences(grads.initial_state, options.initial_state.ndim() == 3),
                                                 options.initial_state)
                                      : Tensor());
  return result;
}

}  // namespace

const char* chunk_obstacle(const RecurrenceShape& shape) {
  if (shape.value_gate) return "gv";
  if (shape.device.is_cpu()) return nullptr;
  const char* obstacle = nullptr;
  if (shape.sequences > kMostBlocks) obstacle = "more than 65535 sequences";
  if (shape.heads > kMostBlocks) obstacle = "more than 65535 heads";
  GLADE_DISPATCH_CUDA(chunk_obstacle, shape, obstacle);
  return obstacle;
}

bool chunk_in_passes(const RecurrenceShape& shape) {
  bool yes = false;
  if (shape.device.is_cuda()) GLADE_DISPATCH_CUDA(chunk_in_passes, shape, yes);
  return yes;
}

const char* sizes_obstacle(const RecurrenceShape& shape, bool chunk, const KernelSizes& sizes) {
  if (sizes.warps == 0 && sizes.sequence_split == 0) return nullptr;
  if (shape.device.is_cpu()) return "sizes of kernels, which only those on CUDA have";
  if (sizes.warps != 0 && chunk) return "a number of warps: the chunk kernels are compiled for one";
  if (sizes.warps != 0 && sizes.warps != 2 && sizes.warps != 4) return "a number of warps other than 2 and 4";
  if (sizes.sequence_split < 0) return "a negative sequence_split";
  return !chunk || sizes.sequence_split <= 1 || chunk_in_passes(shape)
             ? nullptr
             : "a sequence_split in the chunk form on this GPU, in this dtype or for these head sizes";
}

Algorithm pick_algorithm(const RecurrenceShape& shape, bool backward) {
  if (chunk_obstacle(shape)) return Algorithm::recurrent;
  // Measured (docs/linear_attention.md): on the CPU single steps are as fast while a head's state is small.
  const std::int64_t size = shape.K * shape.V, heads = shape.sequences * shape.heads;
  bool pays = shape.length >= 64;
  if (shape.device.is_cpu()) {
    pays = shape.length >= 32 && size >= 2048;
  } else if (chunk_in_passes(shape)) {
    // Backward consists of three passes instead of one, which few heads hardly use the GPU for; with gates a channel, of walks to
    // the chunks' borders and all chunks at once, if heads are small.
    pays = shape.length >= (!backward || heads >= 64 ? 2 : shape.key_gate && shape.K <= 128 ? 1 : 8);
  } else if (size < 65536 && shape.key_gate) {
    // Gates a channel are expensive in these kernels, above all forward; the recurrent form spreads them over more of the GPU.
    const bool few = (shape.K + 63) / 64 * ((shape.V + 63) / 64) * heads < 64;
    pays = pays && backward && (shape.dtype == DType::float32 || !few);
  }
  return pays ? Algorithm::chunk : Algorithm::recurrent;
}

std::pair<Tensor, Tensor> recurrent(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const RecurrentOptions& options) {
  const Sequences sequences = check(query, key, value, options);
  Recurrence r = canonical(query, key, value, options, sequences);
  const bool chunk = use_chunk(options.algorithm, false, options.sizes, r),
             backward_chunk = use_chunk(options.backward_algorithm.value_or(options.algorithm), true, options.backward_sizes, r);
  Tensor o = empty(output_shape(query, value), query.options());
  Tensor final_state = empty({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), query.device()});
  if (chunk && backward_chunk &&
      autograd::any_requires_grad({&query, &key, &value, &options.g, &options.g_gamma, &options.gk, &options.initial_state}))
    GLADE_DISPATCH(query.device(), reserve_chunk_states, r);
  if (chunk) GLADE_DISPATCH(query.device(), chunk_forward, r, o, final_state);
  else GLADE_DISPATCH(query.device(), recurrent_forward, r, o, final_state);

  const std::array<SavedTensor, 9> saved{
      query, key, value, options.g, options.g_gamma, options.gk, options.gv, options.initial_state, sequences.cu_seqlens};
  RecurrentOptions settings;  // without the tensors, which would hide changes in place
  settings.softmax_scale = options.softmax_scale;
  settings.reverse = options.reverse;
  settings.checkpoint_interval = options.checkpoint_interval;
  settings.algorithm = backward_chunk ? Algorithm::chunk : Algorithm::recurrent;
  settings.sizes = options.backward_sizes;
  autograd::record("recurrent", {&o, &final_state},
                   {&query, &key, &value, &options.g, &options.g_gamma, &options.gk, &options.gv, &options.initial_state},
                   [saved, settings, states = r.states, count = sequences.count, length = sequences.length](
                       const Node& node, const Tensors& gradients) {
                     RecurrentOptions opened = settings;
                     opened.g = saved[3].get();
                     opened.g_gamma = saved[4].get();
                     opened.gk = saved[5].get();
                     opened.gv = saved[6].get();
                     opened.initial_state = saved[7].get();
                     return backward(node, gradients, saved[0].get(), saved[1].get(), saved[2].get(), opened,
                                     {count, length, saved[8].get()}, states);
                   });
  return {o, final_state};
}

std::pair<Tensor, Tensor> recurrent_gla(const Tensor& query, const Tensor& key, const Tensor& value,
                                        const RecurrentOptions& options) {
  if (options.gk.defined() || options.gv.defined())
    fail<ValueError>("recurrent_gla: {} is given: expected the gates g and g_gamma alone", options.gk.defined() ? "gk" : "gv");
  return recurrent(query, key, value, options);
}

Tensor lightning_g_gamma(std::int64_t num_heads, std::int64_t layer_idx, std::int64_t num_layers, Device device, DType dtype) {
  if (num_heads < 1) fail<ValueError>("lightning_g_gamma: num_heads is {}: expected at least 1", num_heads);
  if (layer_idx < 0 || layer_idx >= num_layers)
    fail<ValueError>("lightning_g_gamma: layer_idx is {}: expected 0 <= layer_idx < num_layers, which is {}", layer_idx,
                     num_layers);
  if (!is_floating(dtype)) fail<DTypeError>("lightning_g_gamma: dtype is {}: expected a floating-point type", dtype);
  const double slope =
      -8.0 / static_cast<double>(num_heads) * (1 - static_cast<double>(layer_idx) / static_cast<double>(num_layers));
  return arange(0, num_heads, 1, {dtype, device}) * slope;  // computed there: a copy would make the host wait
}

std::pair<Tensor, Tensor> lightning_attn(const Tensor& query, const Tensor& key, const Tensor& value, std::int64_t layer_idx,
                                         std::int64_t num_layers, const RecurrentOptions& options) {
  const std::pair<const char*, const Tensor*> gates[] = {
      {"g", &options.g}, {"g_gamma", &options.g_gamma}, {"gk", &options.gk}, {"gv", &options.gv}};
  for (const auto& [name, x] : gates)
    if (x->defined()) fail<ValueError>("lightning_attn: {} is given, but the decay follows from layer_idx", name);
  if (!query.defined() || query.ndim() < 3) return recurrent(query, key, value, options);  // which says what is wrong
  RecurrentOptions with_decay = options;
  with_decay.g_gamma = lightning_g_gamma(query.size(-2), layer_idx, num_layers, query.device(), state_dtype(query));
  return recurrent(query, key, value, with_decay);
}

Tensor recurrent_step_(const Tensor& state, const Tensor& query, const Tensor& key, const Tensor& value,
                       const RecurrentOptions& options, const Tensor& out) {
  if (autograd::any_requires_grad({&state, &query, &key, &value, &options.g, &options.g_gamma, &options.gk, &options.gv, &out}))
    throw AutogradError("recurrent_step_: is not recorded: an argument requires a gradient; use recurrent, or a NoGradGuard");
  if (options.initial_state.defined())
    throw ValueError("recurrent_step_: initial_state is given, but the sequences start from state");
  if (!state.defined()) throw ValueError("recurrent_step_: state is undefined");
  RecurrentOptions from_state = options;
  from_state.initial_state = state;
  const Sequences sequences = check(query, key, value, from_state);
  if (state.ndim() != 4 || !state.is_contiguous())
    fail<ShapeError>("recurrent_step_: state is {}: expected a row-major [sequences, heads, K, V]", state.shape());
  if (state.dtype() != state_dtype(query))
    fail<DTypeError>("recurrent_step_: state is {}: expected {} with query {}", state.dtype(), state_dtype(query), query.dtype());
  Tensor o = out;
  if (out.defined()) {
    check_same_device("recurrent_step_", {{"query", &query}, {"out", &out}});
    if (!(out.shape() == output_shape(query, value)) || !out.is_contiguous())
      fail<ShapeError>("recurrent_step_: out is {}: expected a row-major {}", out.shape(), output_shape(query, value));
    if (out.dtype() != query.dtype()) fail<DTypeError>("recurrent_step_: out is {}, query is {}", out.dtype(), query.dtype());
    out.storage()->bump_version();
  } else {
    o = empty(output_shape(query, value), query.options());
  }
  GLADE_DISPATCH(query.device(), recurrent_forward, canonical(query, key, value, from_state, sequences), o, state);
  state.storage()->bump_version();
  return o;
}

}  // namespace glade
