#include <glade/ops/linear_attention/linear_attention.h>

#include <array>
#include <vector>

#include <glade/autograd/node.h>
#include <glade/autograd/running_pass.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/composite/composite.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/linear_attention/arguments.h>
#include <glade/ops/linear_attention/attention_module.h>
#include <glade/ops/linear_attention/exchange.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

using namespace linear_attention;
using autograd::Node;
using autograd::SavedTensor;

namespace {

Shape output_shape(const Tensor& query, const Tensor& value) {
  Shape shape = query.shape();
  shape[query.ndim() - 1] = value.size(-1);
  return shape;
}

/// The gradient of an input from that of all sequences, x [sequences, ..].
Tensor sum_over_sequences(const Tensor& x, const Tensor& input) {
  if (!x.defined() || x.shape() == input.shape()) return x;
  return input.ndim() == x.ndim() ? sum(x, {0}, true) : sum(x, {0});
}

/// What a call keeps for its backward pass, beside its arguments.
struct Kept {
  AttentionPlan plan;
  RecurrentOptions settings;  ///< without the tensors, which would hide changes in place
  std::int64_t sequences, longest;
  Tensor of_kernels;           ///< Recurrence::kept
  std::optional<Exchange> at;  ///< where the sequences are shared with others,
  Tensor before;               ///< and the state that they gave
};

/// The state from which these tokens go on: the call's or that of the others.
Tensor exchanged_state(const Exchange& exchange, const SegmentEffect& effect, const Tensor& own, DType dtype, Tensor& last) {
  const NoGradGuard no_grad;
  const Exchange::States states = exchange.states(effect);
  last = states.last;
  if (exchange.keeps_initial_state || !states.before.defined()) return exchange.keeps_initial_state ? own : Tensor();
  return row_major(to_data(states.before, dtype));
}

/// The gradient of the final state: what the others add to it, unless the kernels ask for that themselves.
Tensor exchanged_gradient(const Kept& kept, Recurrence& r, const Tensor& grad_o, const Tensor& given) {
  const auto ask = [&kept, given](const SegmentEffect& effect) {
    const Tensor gradient = kept.at->gradient(effect.added, given);
    return gradient.defined() ? row_major(gradient) : gradient;
  };
  if (kept.plan.backward.exchanges && grad_o.defined()) {
    r.exchange = ask;
    return {};
  }
  const Algorithm algorithm = kept.settings.backward_algorithm.value_or(kept.settings.algorithm);
  return ask({gradient_before(r, algorithm, grad_o, {}), {}, {}});
}

/// Gradients of query, key, value, g, g_gamma, gk, gv and initial_state.
Tensors backward(const Node& node, const Kept& kept, const Tensors& gradients, const Tensor& query, const Tensor& key,
                 const Tensor& value, const RecurrentOptions& options, const Tensor& cu_seqlens) {
  if (GradMode::enabled())
    throw AutogradError(kept.at ? "recurrent: has no second derivative on several ranks"
                                : "recurrent: has no second derivative (create_graph)");
  Recurrence r = canonical(query, key, value, options, {kept.sequences, kept.longest, cu_seqlens});
  if (kept.at && !kept.at->keeps_initial_state) r.initial_state = kept.before;
  r.kept = kept.of_kernels;
  const Tensor grad_o = gradients[0].defined() ? row_major(gradients[0]) : Tensor();
  const Tensor grad_state = kept.at                  ? exchanged_gradient(kept, r, grad_o, gradients[1])
                            : gradients[1].defined() ? row_major(gradients[1])
                                                     : Tensor();
  GradientMemory memory;
  memory.rows = [&](GradientMemory::Rows rows, bool gaps) {
    const auto input = static_cast<std::size_t>(rows);  // of the node
    const Tensor& like = *std::array{&query, &key, &value}[input];
    return gaps ? autograd::empty_gradient_with_gaps(node, input, like) : empty_like(like);
  };
  RecurrenceGradients grads = GLADE_DISPATCH(query.device(), attention_backward, kept.plan, r, grad_o, grad_state, memory);
  if (kept.at && !kept.at->keeps_initial_state && node.needs_grad(7))
    grads.initial_state = zeros(options.initial_state.shape(), options.initial_state.options());

  const bool per_channel = is_per_channel(options.g, query);
  const auto as_input = [&](std::size_t input, const Tensor& grad, const Tensor& like) {
    return node.needs_grad(input) ? to_data(grad, like.dtype()) : Tensor();
  };
  return {grads.q,
          grads.k,
          grads.v,
          as_input(3, per_channel ? grads.gk : grads.g, options.g),
          as_input(4, sum_over_sequences(grads.g_gamma, options.g_gamma), options.g_gamma),
          as_input(5, grads.gk, options.gk),
          as_input(6, grads.gv, options.gv),
          as_input(7, sum_over_sequences(grads.initial_state, options.initial_state), options.initial_state)};
}

/// Both passes of checked arguments, whose channels are those of the plan's problem.
std::pair<Tensor, Tensor> run_planned(const AttentionPlan& plan, const Tensor& query, const Tensor& key, const Tensor& value,
                                      const RecurrentOptions& options, const Sequences& sequences,
                                      const std::optional<Exchange>& at) {
  Recurrence r = canonical(query, key, value, options, sequences);
  Tensor last;
  if (at) {
    const auto ask = [&at, &last, own = r.initial_state, dtype = r.state_dtype()](const SegmentEffect& effect) {
      return exchanged_state(*at, effect, own, dtype, last);
    };
    if (plan.forward.exchanges) r.exchange = ask;
    else r.initial_state = ask(effect_of(r, options.algorithm));
  }
  Tensor o = empty(output_shape(query, value), query.options());
  Tensor final_state;
  if (options.return_state) final_state = empty({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), query.device()});
  GLADE_DISPATCH(query.device(), attention_forward, plan, r, o, final_state);
  if (last.defined() && options.return_state) final_state = last;
  if (!plan.has_backward()) return {o, final_state};

  const std::array<SavedTensor, 9> saved{
      query, key, value, options.g, options.g_gamma, options.gk, options.gv, options.initial_state, sequences.cu_seqlens};
  RecurrentOptions settings;
  settings.softmax_scale = options.softmax_scale;
  settings.reverse = options.reverse;
  settings.algorithm = options.algorithm;
  settings.backward_algorithm = options.backward_algorithm;
  const bool given = at && !at->keeps_initial_state;
  Kept kept{plan, settings, sequences.count, sequences.length, r.kept, at, given ? r.initial_state : Tensor()};
  if (at) kept.at->states = {};  // with what it holds
  autograd::record("recurrent", {&o, &final_state},
                   {&query, &key, &value, &options.g, &options.g_gamma, &options.gk, &options.gv, &options.initial_state},
                   [saved, kept = std::move(kept)](const Node& node, const Tensors& gradients) {
                     RecurrentOptions opened = kept.settings;
                     opened.g = saved[3].get();
                     opened.g_gamma = saved[4].get();
                     opened.gk = saved[5].get();
                     opened.gv = saved[6].get();
                     opened.initial_state = saved[7].get();
                     return backward(node, kept, gradients, saved[0].get(), saved[1].get(), saved[2].get(), opened,
                                     saved[8].get());
                   },
                   {.leaves_gpu_idle = true});  // few blocks, each for long
  return {o, final_state};
}

/// The same with channels of zeros, as the plan says. A key of zeros adds nothing to the state, and values of zeros nothing but
/// zeros; so what is added stays zero, whatever its gates.
std::pair<Tensor, Tensor> run_with_zeros(const AttentionPlan& plan, const Tensor& query, const Tensor& key, const Tensor& value,
                                         const RecurrentOptions& options, const Sequences& sequences) {
  const std::int64_t more_keys = plan.problem.K - plan.K, more_values = plan.problem.V - plan.V;
  RecurrentOptions filled = options;
  const auto fill_up = [](const Tensor& x, std::int64_t more) { return x.defined() && more > 0 ? pad(x, {0, more}) : x; };
  filled.softmax_scale = scale_of(options, plan.K);
  if (is_per_channel(options.g, query)) filled.g = fill_up(options.g, more_keys);
  filled.gk = fill_up(options.gk, more_keys);
  filled.gv = fill_up(options.gv, more_values);
  if (options.initial_state.defined()) filled.initial_state = pad(options.initial_state, {0, more_values, 0, more_keys});
  const auto [o, final_state] = run_planned(plan, fill_up(query, more_keys), fill_up(key, more_keys), fill_up(value, more_values),
                                            filled, sequences, std::nullopt);
  const auto first = [](const Tensor& x, std::int64_t dim, std::int64_t size) {
    return x.size(dim) == size ? x : slice(x, dim, 0, size);
  };
  const Tensor own_o = contiguous(first(o, -1, plan.V));
  if (!final_state.defined()) return {own_o, final_state};
  return {own_o, contiguous(first(first(final_state, -2, plan.K), -1, plan.V))};
}

std::pair<Tensor, Tensor> run(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                              const std::optional<Exchange>& at) {
  const Sequences sequences = check(query, key, value, options);
  AttentionProblem problem = problem_of(query, key, value, options, sequences, wanted_gradients(query, key, value, options));
  problem.exchanges = at.has_value();
  const AttentionPlan plan = plan_call(problem, options);
  return plan.has_zeros() ? run_with_zeros(plan, query, key, value, options, sequences)
                          : run_planned(plan, query, key, value, options, sequences, at);
}

}  // namespace

std::pair<Tensor, Tensor> recurrent(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const RecurrentOptions& options) {
  return run(query, key, value, options, std::nullopt);
}

std::pair<Tensor, Tensor> linear_attention::recurrent(const Tensor& query, const Tensor& key, const Tensor& value,
                                                      const RecurrentOptions& options, const Exchange& exchange) {
  return run(query, key, value, options, exchange);
}

AttentionPlan plan(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options) {
  const Sequences sequences = check(query, key, value, options);
  return plan_call(problem_of(query, key, value, options, sequences, wanted_gradients(query, key, value, options)), options);
}

std::pair<Tensor, Tensor> recurrent_gla(const Tensor& query, const Tensor& key, const Tensor& value,
                                        const RecurrentOptions& options) {
  if (options.gv.defined()) throw ValueError("recurrent_gla: gv is given: expected the gates g, g_gamma and gk alone");
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
    for (const Tensor* x : {&state, &query, &key, &value, &options.g, &options.g_gamma, &options.gk, &options.gv})
      if (x->defined() && share_memory(out, *x))
        fail<ValueError>("recurrent_step_: out shares memory with another argument, which is read while it is written");
    out.storage()->bump_version();
  } else {
    o = empty(output_shape(query, value), query.options());
  }
  Recurrence r = canonical(query, key, value, from_state, sequences);
  const AttentionConfig steps{.algorithm = Algorithm::recurrent};
  const AttentionPlan steps_plan = plan(problem_of(r, {}), steps, steps, "recurrent_step_");
  GLADE_DISPATCH(query.device(), attention_forward, steps_plan, r, o, state);
  state.storage()->bump_version();
  return o;
}

}  // namespace glade
