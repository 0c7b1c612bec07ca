#include <glade/ops/collective/sequence_parallel.h>

#include <algorithm>
#include <array>

#include <glade/autograd/grad_mode.h>
#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/arguments.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

/// Each tensor of all ranks, [ranks, ...], by one collective. Undefined ones stay so.
Tensors gather(const Tensors& mine, const ProcessGroup& group) {
  Tensors flat;
  std::vector<std::int64_t> sizes;
  for (const Tensor& x : mine) {
    if (!x.defined()) continue;
    flat.push_back(flatten(x));
    sizes.push_back(x.numel());
  }
  const Tensor sent = contiguous_data(cat(flat));
  const Tensor received = empty({group.size(), sent.numel()}, sent.options());
  group.all_gather(received, sent).wait();
  const Tensors parts = split(received, sizes, 1);
  Tensors all(mine.size());
  for (std::size_t i = 0, part = 0; i < mine.size(); ++i) {
    if (!mine[i].defined()) continue;
    Shape shape = mine[i].shape();
    shape.insert(0, group.size());
    all[i] = reshape(parts[part++], shape);
  }
  return all;
}

/// `state` [N, H, K, V], or its gradient, times decays of its keys [N, H, K or 1] and values [N, H, V], which may be undefined.
Tensor decayed(const Tensor& state, const Tensor& keys, const Tensor& values) {
  const Tensor result = state * unsqueeze(keys, 3);
  return values.defined() ? result * unsqueeze(values, 2) : result;
}

/// Of all ranks: [ranks, ...].
struct Decays {
  Tensor keys, values;
  Tensor apply(const Tensor& state, int rank) const {
    return decayed(state, select(keys, 0, rank), values.defined() ? select(values, 0, rank) : values);
  }
};

/// The states before a rank's tokens and after those of all ranks.
struct States {
  Tensor before;  ///< undefined: zeros
  Tensor last;
  Decays decays;
};

/// The effects of all ranks, one after the other. The rank that comes first counts its initial state as an effect.
States exchange_states(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                       const ProcessGroup& group) {
  const NoGradGuard no_grad;
  const Recurrence r =
      linear_attention::canonical(query, key, value, options, linear_attention::check(query, key, value, options));
  AttentionProblem problem = linear_attention::problem_of(r, {});
  problem.states_only = true;
  const AttentionPlan effect_plan = plan(problem, {.algorithm = options.algorithm}, {}, "recurrent");
  const SegmentEffect effect = GLADE_DISPATCH(query.device(), attention_segment, effect_plan, r);

  const int first = options.reverse ? group.size() - 1 : 0;
  Tensor added = effect.added;
  if (group.rank() == first && r.initial_state.defined())
    added = added + decayed(r.initial_state, effect.key_decay, effect.value_decay);

  const Tensors all = gather({added, effect.key_decay, effect.value_decay}, group);
  States states;
  states.decays = {clone(all[1]), all[2].defined() ? clone(all[2]) : Tensor()};  // backward keeps them, but not all that came
  const int step = options.reverse ? -1 : 1;
  for (int i = 0, rank = first; i < group.size(); ++i, rank += step) {
    if (rank == group.rank()) states.before = rank == first ? options.initial_state : states.last;
    const Tensor more = select(all[0], 0, rank);
    states.last = states.last.defined() ? states.decays.apply(states.last, rank) + more : more;
  }
  return states;
}

/// The gradient of the state after a rank's tokens, from those of its outputs and of the last state on all ranks; undefined: 0.
Tensor exchange_gradients(const Tensor& grad_o, const Tensor& grad_last, const std::array<Tensor, 7>& inputs,
                          RecurrentOptions options, const Decays& decays, const ProcessGroup& group) {
  options.g = inputs[3];
  options.g_gamma = inputs[4];
  options.gk = inputs[5];
  options.gv = inputs[6];
  const auto sequences = linear_attention::check(inputs[0], inputs[1], inputs[2], options);
  const Recurrence r = linear_attention::canonical(inputs[0], inputs[1], inputs[2], options, sequences);
  Tensor added;
  if (grad_o.defined()) {
    AttentionProblem problem = linear_attention::problem_of(r, {.initial_state = true});
    problem.states_only = true;
    const Algorithm backward = options.backward_algorithm.value_or(options.algorithm);
    const AttentionPlan effect_plan = plan(problem, {.algorithm = backward}, {.algorithm = backward}, "recurrent");
    added = GLADE_DISPATCH(inputs[0].device(), attention_backward, effect_plan, r, linear_attention::row_major(grad_o), Tensor(),
                           GradientMemory())
                .initial_state;
  } else {
    added = zeros({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), inputs[0].device()});
  }
  const Tensors all = gather({added, grad_last}, group);
  Tensor gradient = all[1].defined() ? sum(all[1], {0}) : Tensor();
  const int step = options.reverse ? 1 : -1;
  for (int rank = options.reverse ? 0 : group.size() - 1; rank != group.rank(); rank += step) {
    const Tensor more = select(all[0], 0, rank);
    gradient = gradient.defined() ? decays.apply(gradient, rank) + more : more;
  }
  return gradient;
}

void refuse_packed(const char* operation, const Tensor& cu_seqlens) {
  if (cu_seqlens.defined())
    fail<ValueError>("{}: cu_seqlens is given, but packed sequences cannot be shared out over ranks", operation);
}

/// The windows before a rank's tokens and after those of all ranks, from the last inputs of each, [N, D, W - 1].
std::pair<Tensor, Tensor> exchange_windows(const Tensor& last_inputs, const Tensor& initial_state, const ProcessGroup& group) {
  const int rank = group.rank(), last = group.size() - 1;
  Tensor before, final_state;
  {
    const NoGradGuard no_grad;
    const Tensor all = gather({last_inputs}, group)[0];
    if (rank > 0) before = contiguous(select(all, 0, rank - 1));
    else before = initial_state.defined() ? initial_state.detach() : zeros(last_inputs.shape(), last_inputs.options());
    final_state = contiguous(select(all, 0, last));
  }
  autograd::record("exchange_windows", {&before, &final_state}, {&last_inputs, &initial_state},
                   [group, rank, last, options = last_inputs.options(), shape = last_inputs.shape()](const Node& node,
                                                                                                     const Tensors& gradients) {
                     if (GradMode::enabled()) throw AutogradError("short_convolution: has no second derivative on several ranks");
                     const Tensor own = gradients[0].defined() ? gradients[0] : zeros(shape, options);
                     const Tensors all = gather({own, gradients[1]}, group);
                     Tensor of_inputs;
                     if (rank < last) of_inputs = contiguous(select(all[0], 0, rank + 1));
                     else of_inputs = all[1].defined() ? sum(all[1], {0}) : zeros(shape, options);
                     const Tensor of_initial = !node.needs_grad(1) ? Tensor() : rank == 0 ? own : zeros(shape, options);
                     return Tensors{of_inputs, of_initial};
                   });
  return {before, final_state};
}

}  // namespace

std::pair<Tensor, Tensor> recurrent(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                                    const ProcessGroup& group) {
  if (group.size() == 1) return recurrent(query, key, value, options);
  refuse_packed("recurrent", options.cu_seqlens);
  States states = exchange_states(query, key, value, options, group);
  RecurrentOptions own = options;
  own.initial_state = states.before;
  const auto [own_o, own_state] = recurrent(query, key, value, own);

  // The state's gradient comes from later ranks, and needs that of the outputs first: a step between them and the recurrence.
  const bool is_first = group.rank() == (options.reverse ? group.size() - 1 : 0);
  const Tensor unused = is_first ? Tensor() : options.initial_state;
  Tensor o = own_o.detach();
  const std::array<SavedTensor, 7> saved{query, key, value, options.g, options.g_gamma, options.gk, options.gv};
  RecurrentOptions settings;  // without the tensors, which would hide changes in place
  settings.softmax_scale = options.softmax_scale;
  settings.reverse = options.reverse;
  settings.algorithm = options.algorithm;
  settings.backward_algorithm = options.backward_algorithm;
  autograd::record("exchange_states", {&o, &states.last}, {&own_o, &own_state, &unused},
                   [saved, settings, unused = unused.defined() ? unused.detach() : unused, decays = states.decays, group](
                       const Node& node, const Tensors& gradients) {
                     if (GradMode::enabled()) throw AutogradError("recurrent: has no second derivative (create_graph)");
                     std::array<Tensor, 7> inputs;
                     std::ranges::transform(saved, inputs.begin(), [](const SavedTensor& x) { return x.get(); });
                     const Tensor of_state = exchange_gradients(gradients[0], gradients[1], inputs, settings, decays, group);
                     return Tensors{gradients[0], of_state, node.needs_grad(2) ? zeros_like(unused) : Tensor()};
                   });
  return {o, states.last};
}

std::pair<Tensor, Tensor> short_convolution(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options,
                                            const ProcessGroup& group) {
  const bool is_valid = x.defined() && weight.defined() && x.ndim() == 3 && weight.ndim() == 2;
  if (group.size() == 1 || !is_valid || weight.size(1) <= 1) return short_convolution(x, weight, options);
  refuse_packed("short_convolution", options.cu_seqlens);
  const std::int64_t window = weight.size(1) - 1, tokens = x.size(1);
  const Tensor last_inputs = transpose(slice(x, 1, std::max<std::int64_t>(0, tokens - window), tokens), 1, 2);
  const auto [before, final_state] = exchange_windows(last_inputs, options.initial_state, group);
  if (tokens < window)  // after the exchange, which tells ranks that have more
    fail<ValueError>("short_convolution: x is {}: expected at least {} tokens on each of several ranks", x.shape(), window);
  ShortConvolutionOptions own = options;
  own.initial_state = before;
  return {short_convolution(x, weight, own).first, final_state};
}

}  // namespace glade
