#include <glade/ops/collective/sequence_parallel.h>

#include <algorithm>
#include <array>
#include <memory>

#include <glade/autograd/grad_mode.h>
#include <glade/autograd/node.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/arguments.h>
#include <glade/ops/linear_attention/exchange.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;
using linear_attention::Exchange;

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

/// The effects of all ranks, one after the other.
States join(const SegmentEffect& mine, bool reverse, const ProcessGroup& group) {
  const Tensors all = gather({mine.added, mine.key_decay, mine.value_decay}, group);
  States states;
  states.decays = {clone(all[1]), all[2].defined() ? clone(all[2]) : Tensor()};  // backward keeps them, but not all that came
  const int first = reverse ? group.size() - 1 : 0, step = reverse ? -1 : 1;
  for (int i = 0, rank = first; i < group.size(); ++i, rank += step) {
    if (rank == group.rank()) states.before = states.last;
    const Tensor more = select(all[0], 0, rank);
    states.last = states.last.defined() ? states.decays.apply(states.last, rank) + more : more;
  }
  return states;
}

/// The gradient of the state after this rank's tokens, from what the later ranks add to it, the last of them first, and that of
/// the last state, which may be undefined. Undefined where there is none.
Tensor join_gradients(const Tensor& all_added, Tensor gradient, const Decays& decays, bool reverse, const ProcessGroup& group) {
  const int step = reverse ? 1 : -1;
  for (int rank = reverse ? 0 : group.size() - 1; rank != group.rank(); rank += step) {
    const Tensor more = select(all_added, 0, rank);
    gradient = gradient.defined() ? decays.apply(gradient, rank) + more : more;
  }
  return gradient;
}

/// Of sequences whose tokens all ranks have. The rank that comes first counts its initial state as an effect.
Exchange exchange_of(const RecurrentOptions& options, const ProcessGroup& group) {
  const bool reverse = options.reverse, is_first = group.rank() == (reverse ? group.size() - 1 : 0);
  const auto decays = std::make_shared<Decays>();
  Exchange exchange;
  exchange.keeps_initial_state = is_first;
  exchange.states = [=, first = is_first ? options.initial_state : Tensor()](SegmentEffect effect) -> Exchange::States {
    if (first.defined()) effect.added = effect.added + decayed(first, effect.key_decay, effect.value_decay);
    const States states = join(effect, reverse, group);
    *decays = states.decays;
    return {states.before, states.last};
  };
  exchange.gradient = [=](const Tensor& added, const Tensor& of_last) {
    const Tensors all = gather({added, of_last}, group);
    return join_gradients(all[0], all[1].defined() ? sum(all[1], {0}) : Tensor(), *decays, reverse, group);
  };
  return exchange;
}

/// The arguments of recurrent() that backward needs. Saved one by one, which notices changes in place.
class SavedArguments {
 public:
  SavedArguments(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options)
      : tensors_{query, key, value, options.g, options.g_gamma, options.gk, options.gv} {
    settings_.softmax_scale = options.softmax_scale;
    settings_.reverse = options.reverse;
    settings_.algorithm = options.algorithm;
    settings_.backward_algorithm = options.backward_algorithm;
  }
  struct Arguments {
    Tensor query, key, value;
    RecurrentOptions options;
  };
  Arguments get() const {
    Arguments all{tensors_[0].get(), tensors_[1].get(), tensors_[2].get(), settings_};
    all.options.g = tensors_[3].get();
    all.options.g_gamma = tensors_[4].get();
    all.options.gk = tensors_[5].get();
    all.options.gv = tensors_[6].get();
    return all;
  }

 private:
  std::array<SavedTensor, 7> tensors_;
  RecurrentOptions settings_;
};

/// Of nodes whose backward waits for other ranks: deferred gradients of weights are computed meanwhile.
autograd::NodeTraits waits_for_ranks() { return {.leaves_gpu_idle = true}; }

void refuse_second_derivative(const char* operation) {
  if (GradMode::enabled()) throw AutogradError(std::string(operation) + ": has no second derivative on several ranks");
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
  autograd::record(
      "exchange_windows", {&before, &final_state}, {&last_inputs, &initial_state},
      [group, rank, last, options = last_inputs.options(), shape = last_inputs.shape()](const Node& node,
                                                                                        const Tensors& gradients) {
        refuse_second_derivative("short_convolution");
        const Tensor own = gradients[0].defined() ? gradients[0] : zeros(shape, options);
        const Tensors all = gather({own, gradients[1]}, group);
        Tensor of_inputs;
        if (rank < last) of_inputs = contiguous(select(all[0], 0, rank + 1));
        else of_inputs = all[1].defined() ? sum(all[1], {0}) : zeros(shape, options);
        const Tensor of_initial = !node.needs_grad(1) ? Tensor() : rank == 0 ? own : zeros(shape, options);
        return Tensors{of_inputs, of_initial};
      },
      waits_for_ranks());
  return {before, final_state};
}

// ---- packed sequences ----------------------------------------------------------------------------------------------

/// The packed sequences of which this rank has tokens. A state enters before the sequence `entry` and leaves after `exit`.
struct Packed {
  std::vector<std::int64_t> boundaries;  ///< within this rank's tokens
  std::int64_t count = 0, entry = 0, exit = 0;
  bool enters = false, leaves = false;

  Packed(const char* operation, const Tensor& cu_seqlens, std::int64_t tokens, bool reverse, const ProcessGroup& group);
  Tensor cu_seqlens() const { return Tensor::from_vector(boundaries); }
  /// Of x, which has the tokens in dimension 1.
  Tensor tokens_of(const Tensor& x, std::int64_t sequence) const {
    const auto at = static_cast<std::size_t>(sequence);
    return x.defined() ? slice(x, 1, boundaries[at], boundaries[at + 1]) : x;
  }
  /// The state enters and leaves the same sequence, which has all tokens of this rank.
  bool passes() const { return enters && leaves && count == 1; }
};

Packed::Packed(const char* operation, const Tensor& cu_seqlens, std::int64_t tokens, bool reverse, const ProcessGroup& group) {
  if (cu_seqlens.ndim() != 1 || cu_seqlens.numel() < 2)
    fail<ShapeError>("{}: cu_seqlens is {}: expected [number of sequences + 1]", operation, cu_seqlens.shape());
  boundaries = cu_seqlens.to_vector<std::int64_t>();
  count = static_cast<std::int64_t>(boundaries.size()) - 1;
  const bool is_rising = std::ranges::is_sorted(boundaries);
  if (tokens == 0 || !is_rising || boundaries.front() > 0 || boundaries[1] <= 0 || boundaries.back() < tokens ||
      boundaries[boundaries.size() - 2] >= tokens)
    fail<ValueError>(
        "{}: cu_seqlens goes from {} over {} and {} to {}: expected the sequences of this rank's {} tokens, from its "
        "first one counted",
        operation, boundaries.front(), boundaries[1], boundaries[boundaries.size() - 2], boundaries.back(), tokens);
  const bool from_before = boundaries.front() < 0;
  const bool goes_on = boundaries.back() > tokens;
  if ((from_before && group.rank() == 0) || (goes_on && group.rank() == group.size() - 1))
    fail<ValueError>("{}: cu_seqlens goes from {} to {}, outside of the tokens of all ranks: rank {} of {} has {}", operation,
                     boundaries.front(), boundaries.back(), group.rank(), group.size(), tokens);
  boundaries.front() = 0;
  boundaries.back() = tokens;
  entry = reverse ? count - 1 : 0;
  exit = reverse ? 0 : count - 1;
  enters = reverse ? goes_on : from_before;
  leaves = reverse ? from_before : goes_on;
}

/// `rows` [count, ...] with another one [1, ...] in place of row i.
Tensor with_row(const Tensor& rows, std::int64_t i, const Tensor& row) {
  Tensors parts;
  if (i > 0) parts.push_back(slice(rows, 0, 0, i));
  parts.push_back(row);
  if (i + 1 < rows.size(0)) parts.push_back(slice(rows, 0, i + 1, rows.size(0)));
  return parts.size() == 1 ? row : cat(parts);
}

Recurrence canonical(const SavedArguments::Arguments& a) {
  return linear_attention::canonical(a.query, a.key, a.value, a.options,
                                     linear_attention::check(a.query, a.key, a.value, a.options));
}

/// Those of one sequence.
SavedArguments::Arguments arguments_of(const SavedArguments::Arguments& all, const Packed& packed, std::int64_t sequence) {
  const auto part = [&](const Tensor& x) { return packed.tokens_of(x, sequence); };
  SavedArguments::Arguments one{part(all.query), part(all.key), part(all.value), all.options};
  one.options.g = part(all.options.g);
  one.options.gk = part(all.options.gk);
  one.options.gv = part(all.options.gv);
  if (Tensor& gamma = one.options.g_gamma; gamma.defined() && gamma.ndim() == 2 && gamma.size(0) > 1)
    gamma = slice(gamma, 0, sequence, sequence + 1);
  one.options.cu_seqlens = one.options.initial_state = {};
  return one;
}

/// The effect on the state at this rank's end, as far as it goes on there: `effect` of the sequence there, which begins with
/// `first`. A sequence that begins here has no use for what came before, and so a decay of zero: one state goes from rank to
/// rank, whatever the number of sequences.
SegmentEffect border_effect(SegmentEffect effect, const Tensor& first, const Packed& packed) {
  if (!packed.leaves) effect.added = zeros_like(effect.added);
  else if (!packed.passes() && first.defined())
    effect.added = effect.added + decayed(first, effect.key_decay, effect.value_decay);
  if (packed.passes()) return effect;
  effect.key_decay = zeros_like(effect.key_decay);
  if (effect.value_decay.defined()) effect.value_decay = zeros_like(effect.value_decay);
  return effect;
}

/// The state before this rank's tokens [1, H, K, V], and the decays of all ranks, by a scan of the sequence at this rank's end.
States exchange_border_states(const SavedArguments::Arguments& all, const Tensor& initial_states, const Packed& packed,
                              const ProcessGroup& group) {
  const NoGradGuard no_grad;
  const RecurrentOptions& options = all.options;
  SegmentEffect effect;
  if (packed.leaves) {
    effect = linear_attention::effect_of(canonical(arguments_of(all, packed, packed.exit)), options.algorithm);
  } else {
    const std::int64_t heads = all.query.size(2), K = all.query.size(3), V = all.value.size(3);
    const TensorOptions kind{linear_attention::state_dtype(all.query), all.query.device()};
    const bool is_per_channel = options.gk.defined() || linear_attention::is_per_channel(options.g, all.query);
    effect.added = zeros({1, heads, K, V}, kind);
    effect.key_decay = zeros({1, heads, is_per_channel ? K : 1}, kind);
    if (options.gv.defined()) effect.value_decay = zeros({1, heads, V}, kind);
  }
  const Tensor first = initial_states.defined() ? slice(initial_states, 0, packed.exit, packed.exit + 1) : initial_states;
  return join(border_effect(effect, first, packed), options.reverse, group);
}

/// Of one sequence that has all tokens of this rank.
Exchange exchange_of(const RecurrentOptions& options, const Packed& packed, const ProcessGroup& group) {
  struct Of {
    SegmentEffect own;  // whose decays are these tokens', those of all ranks are as of the border
    Decays all;
  };
  const auto decays = std::make_shared<Of>();
  Exchange exchange;
  exchange.keeps_initial_state = !packed.enters;
  exchange.states = [=, reverse = options.reverse, first = options.initial_state](const SegmentEffect& effect) {
    const States states = join(border_effect(effect, first, packed), reverse, group);
    decays->own = {{}, effect.key_decay, effect.value_decay};
    decays->all = states.decays;
    return Exchange::States{packed.enters ? states.before : Tensor(), {}};
  };
  exchange.gradient = [=, reverse = options.reverse](Tensor added, const Tensor& of_state) {
    if (!packed.enters) added = zeros_like(added);
    else if (of_state.defined()) added = added + decayed(of_state, decays->own.key_decay, decays->own.value_decay);
    const Tensor after = join_gradients(gather({added}, group)[0], {}, decays->all, reverse, group);
    if (!packed.leaves) return of_state;
    return of_state.defined() ? of_state + after : after;
  };
  return exchange;
}

std::pair<Tensor, Tensor> recurrent_packed(const Tensor& query, const Tensor& key, const Tensor& value,
                                           const RecurrentOptions& options, const ProcessGroup& group) {
  if (query.ndim() != 4)
    fail<ShapeError>("recurrent: query is {}: expected [1, tokens, heads, channels] on several ranks", query.shape());
  const Packed packed("recurrent", options.cu_seqlens, query.size(1), options.reverse, group);
  RecurrentOptions own = options;
  own.cu_seqlens = packed.cu_seqlens();
  linear_attention::check(query, key, value, own);
  const Shape states{packed.count, query.size(2), query.size(3), value.size(3)};
  if (own.initial_state.defined()) own.initial_state = expand(own.initial_state, states);
  if (packed.count == 1) {
    own.cu_seqlens = {};
    return linear_attention::recurrent(query, key, value, own, exchange_of(own, packed, group));
  }

  const States exchanged = exchange_border_states({query, key, value, own}, own.initial_state, packed, group);
  if (packed.enters) {
    const Tensor rows = own.initial_state.defined() ? own.initial_state : zeros(states, exchanged.before.options());
    own.initial_state = with_row(rows, packed.entry, exchanged.before);
  }
  own.return_state = true;  // its gradient comes from other ranks
  const auto [own_o, own_state] = recurrent(query, key, value, own);

  Tensor o = own_o.detach(), state = own_state.detach();
  autograd::record(
      "exchange_border_states", {&o, &state}, {&own_o, &own_state},
      [saved = SavedArguments(query, key, value, options), packed, group, decays = exchanged.decays, states](
          const Node&, const Tensors& gradients) {
        refuse_second_derivative("recurrent");
        const auto all = saved.get();
        const Tensor &of_o = gradients[0], &of_state = gradients[1];
        const TensorOptions kind{linear_attention::state_dtype(all.query), all.query.device()};
        Tensor added;
        if (packed.enters) {
          const Recurrence entry = canonical(arguments_of(all, packed, packed.entry));
          const Tensor rows = of_o.defined() ? linear_attention::row_major(packed.tokens_of(of_o, packed.entry)) : of_o;
          const Tensor after =
              of_state.defined() ? contiguous_data(slice(of_state, 0, packed.entry, packed.entry + 1)) : of_state;
          const Algorithm algorithm = all.options.backward_algorithm.value_or(all.options.algorithm);
          added = linear_attention::gradient_before(entry, algorithm, rows, after);
        } else {
          added = zeros({1, states[1], states[2], states[3]}, kind);
        }
        const Tensor after = join_gradients(gather({added}, group)[0], {}, decays, all.options.reverse, group);
        Tensor of_own_state = of_state;
        if (packed.leaves) {
          const Tensor rows = of_state.defined() ? of_state : zeros(states, kind);
          of_own_state = with_row(rows, packed.exit, slice(rows, 0, packed.exit, packed.exit + 1) + after);
        }
        return Tensors{of_o, of_own_state};
      },
      waits_for_ranks());
  return {o, options.return_state ? state : Tensor()};
}

/// The windows of a rank's packed sequences come from the inputs before; that of the first one perhaps from the rank before.
std::pair<Tensor, Tensor> convolve_packed(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options,
                                          const ProcessGroup& group) {
  const std::int64_t window = weight.size(1) - 1, tokens = x.size(1), channels = x.size(2);
  if (tokens < window)
    fail<ValueError>("short_convolution: x is {}: expected at least {} tokens on each of several ranks", x.shape(), window);
  const Packed packed("short_convolution", options.cu_seqlens, tokens, false, group);
  const Shape windows{packed.count, channels, window};
  if (options.initial_state.defined() && options.initial_state.shape() != windows)
    fail<ShapeError>("short_convolution: initial_state is {}: expected {}", options.initial_state.shape(), windows);
  const Tensor given = options.initial_state.defined() ? options.initial_state : zeros(windows, x.options());
  const Tensor first = slice(given, 0, packed.exit, packed.exit + 1);
  const Tensor with_first = cat({first, transpose(packed.tokens_of(x, packed.exit), 1, 2)}, 2);
  const Tensor last_inputs = slice(with_first, 2, with_first.size(2) - window, with_first.size(2));
  const Tensor before = exchange_windows(last_inputs, {}, group).first;
  // Times 0 or 1, so that backward comes to the exchange on all ranks.
  const Tensor entry = slice(given, 0, 0, 1) * (packed.enters ? 0.0 : 1.0) + before * (packed.enters ? 1.0 : 0.0);
  ShortConvolutionOptions own = options;
  own.initial_state = with_row(given, 0, entry);
  own.cu_seqlens = packed.cu_seqlens();
  return short_convolution(x, weight, own);
}

}  // namespace

Tensor share_sequences(const Tensor& cu_seqlens, std::pair<std::int64_t, std::int64_t> tokens) {
  const auto boundaries = cu_seqlens.to_vector<std::int64_t>();
  const auto [begin, end] = tokens;
  if (boundaries.size() < 2 || !std::ranges::is_sorted(boundaries) || begin < boundaries.front() || begin >= end ||
      end > boundaries.back())
    fail<ValueError>("share_sequences: tokens {} to {} of cu_seqlens {}", begin, end, cu_seqlens.shape());
  std::vector<std::int64_t> own{*(std::ranges::upper_bound(boundaries, begin) - 1) - begin};
  for (const std::int64_t boundary : boundaries)
    if (boundary > begin && (boundary < end || own.back() < end - begin)) own.push_back(boundary - begin);
  return Tensor::from_vector(own);
}

std::pair<Tensor, Tensor> recurrent(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                                    const ProcessGroup& group) {
  if (group.size() == 1) return recurrent(query, key, value, options);
  if (options.cu_seqlens.defined()) return recurrent_packed(query, key, value, options, group);
  return linear_attention::recurrent(query, key, value, options, exchange_of(options, group));
}

std::pair<Tensor, Tensor> short_convolution(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options,
                                            const ProcessGroup& group) {
  const bool is_valid = x.defined() && weight.defined() && x.ndim() == 3 && weight.ndim() == 2;
  if (group.size() == 1 || !is_valid || weight.size(1) <= 1) return short_convolution(x, weight, options);
  if (options.cu_seqlens.defined()) return convolve_packed(x, weight, options, group);
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
