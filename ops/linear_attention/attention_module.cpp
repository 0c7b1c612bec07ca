#include <glade/ops/linear_attention/attention_module.h>

#include <algorithm>

#include <glade/autograd/node.h>
#include <glade/core/format.h>
#include <glade/ops/activation/activation.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/arguments.h>
#include <glade/ops/linear_attention/plan_rules.h>
#include <glade/ops/random/random.h>

namespace glade {

using tuning::Pass;

namespace {

constexpr std::int64_t kShortestSegment = 256;
constexpr std::int64_t kLong = 1024;  // tokens from which the chunk form is many times as fast as the recurrent

/// Of all sequences, on average: what tunings are stored by.
std::int64_t mean_length(const AttentionProblem& p) { return p.all_tokens() / std::max<std::int64_t>(p.sequences, 1); }

/// With the facts of its GPU, which a problem made by hand may lack.
AttentionProblem with_gpu(AttentionProblem p) {
  if (p.device.is_cuda() && p.gpu.multiprocessors == 0) p.gpu = AttentionProblem::gpu_of(p.device);
  return p;
}

void check_platform(const char* name, Platform platform, Device device) {
  if (platform == Platform::automatic || device.is_cuda() == (platform == Platform::cuda)) return;
  fail<DeviceError>("{}: platform is {}, but query is on {}: move the tensors, or leave the platform to them", name,
                    platform == Platform::cuda ? "cuda" : "cpu", device);
}

const char* gate_names(const AttentionProblem& p) {
  static constexpr const char* kNames[] = {
      "none", "g",    "g_gamma",    "g g_gamma",    "gk",    "g gk",    "g_gamma gk",    "g g_gamma gk",
      "gv",   "g gv", "g_gamma gv", "g g_gamma gv", "gk gv", "g gk gv", "g_gamma gk gv", "g g_gamma gk gv"};
  return kNames[p.g + 2 * p.g_gamma + 4 * p.gk + 8 * p.gv];
}

}  // namespace

AttentionPlan linear_attention::plan_call(AttentionProblem problem, const RecurrentOptions& options) {
  AttentionConfig forward{options.algorithm, 0, options.sizes.warps, options.sizes.sequence_split};
  AttentionConfig backward{options.backward_algorithm.value_or(options.algorithm), options.checkpoint_interval.value_or(0),
                           options.backward_sizes.warps, options.backward_sizes.sequence_split};
  const AttentionConfig open{.checkpoint_interval = options.checkpoint_interval.value_or(0)};
  if (forward != AttentionConfig() || backward != open) return plan(problem, forward, backward, "recurrent");

  const RecurrentAttention module;
  const auto tuned = [&](Pass pass, AttentionConfig& config) {
    problem.pass = pass;
    const auto choice = module.choose(problem);
    if (choice.source == tuning::Source::heuristic) return;  // which is the plan's own choice
    // Problems with one key may differ in what kernels can compute.
    if (config_obstacle(problem, choice.cfg, pass == Pass::backward)) return;
    config = choice.cfg;
    if (pass == Pass::backward && options.checkpoint_interval) config.checkpoint_interval = *options.checkpoint_interval;
  };
  tuned(Pass::forward, forward);
  if (problem.gradients.any()) tuned(Pass::backward, backward);
  problem.pass = Pass::forward;
  return plan(problem, forward, backward, "recurrent");
}

void AttentionModule::describe(const AttentionProblem& problem, tuning::Key& key) const {
  const AttentionProblem p = with_gpu(problem);
  key.add("length", tuning::bucket(mean_length(p)))
      .add("sequences", tuning::bucket(p.sequences))
      .add("heads", tuning::bucket(p.heads));
  key.add("K", tuning::bucket(p.K)).add("V", tuning::bucket(p.V)).add("gates", gate_names(p));
  key.add("shared_heads", p.kv_heads < p.heads).add("packed", p.packed);
  const bool backward = p.pass == Pass::backward;
  key.add("chunk", chunk_obstacle(p, backward) == nullptr).add("sm90", takes_chunk_sm90(p, backward));
}

AttentionConfig AttentionModule::heuristic_cfg(const AttentionProblem& problem) const {
  AttentionProblem p = with_gpu(problem);
  const Algorithm algorithm = pick_algorithm(p, p.pass == Pass::backward);
  if (p.pass == Pass::backward && !p.gradients.any())  // those of sample()
    p.gradients = {.q = true, .k = true, .v = true, .g = p.g, .gk = p.gk, .gv = p.gv};
  if (algorithm == Algorithm::chunk || !may_have_zeros(p)) return {.algorithm = algorithm};  // most calls need no plan for it
  return {.algorithm = plan(p).has_zeros() ? Algorithm::chunk : algorithm};                  // which pays with channels of zeros
}

AttentionConfig AttentionModule::reference_cfg(const AttentionProblem&) const { return {.algorithm = Algorithm::recurrent}; }

std::vector<AttentionConfig> AttentionModule::candidate_cfgs(const AttentionProblem& given) const {
  const AttentionProblem problem = with_gpu(given);
  std::vector<AttentionConfig> candidates{{.algorithm = Algorithm::recurrent}};
  const bool cuda = problem.device.is_cuda(), backward = problem.pass == Pass::backward;
  const bool chunk = chunk_obstacle(problem, backward) == nullptr;
  const auto add = [&](const AttentionConfig& cfg) {
    if (!config_obstacle(problem, cfg, backward)) candidates.push_back(cfg);
  };
  const bool fast = chunk && (!cuda || takes_chunk_sm90(problem, backward));
  if (!fast || problem.length < kLong) {  // else chunk wins by far
    for (const std::int64_t interval : {64, 256})
      if (backward && interval < 2 * problem.length) add({.algorithm = Algorithm::recurrent, .checkpoint_interval = interval});
    if (cuda && problem.length > 1) add({.algorithm = Algorithm::recurrent, .warps = 2});
    for (const std::int64_t split : {1, 4, 16})
      if (cuda && split * kShortestSegment <= problem.length && problem.length >= kLong)
        add({.algorithm = Algorithm::recurrent, .sequence_split = split});
  }
  if (!chunk) return candidates;
  add({.algorithm = Algorithm::chunk});
  for (const std::int64_t split : {1, 2, 4, 8, 16})
    if (cuda && 2 * split * kChunkTokens <= problem.length) add({.algorithm = Algorithm::chunk, .sequence_split = split});
  return candidates;
}

void AttentionModule::check_cfg(const AttentionProblem& given, const AttentionConfig& cfg) const {
  const AttentionProblem problem = with_gpu(given);
  const bool backward = problem.pass == Pass::backward;
  const Algorithm algorithm = algorithm_of(problem, cfg, backward);
  const bool chunk = algorithm == Algorithm::chunk;
  if (const char* obstacle = config_obstacle(problem, cfg, backward))
    fail<ValueError>("{}: cfg: algorithm {} does not take {}", name(), algorithm_name(algorithm), obstacle);
  if (cfg.checkpoint_interval < 0)
    fail<ValueError>("{}: cfg: checkpoint_interval is {}: expected at least 0", name(), cfg.checkpoint_interval);
  if (chunk && cfg.checkpoint_interval != 0)
    fail<ValueError>("{}: cfg: checkpoint_interval is {}: the chunk kernels keep the states at intervals of their own", name(),
                     cfg.checkpoint_interval);
  if (problem.length == 1 && !problem.packed && !chunk && (cfg.warps != 0 || cfg.sequence_split != 0))
    fail<ValueError>("{}: cfg: warps is {} and sequence_split {}: single tokens have a kernel of their own, without them", name(),
                     cfg.warps, cfg.sequence_split);
}

Tensors AttentionModule::sample(const AttentionProblem& p, Generator& generator) const {
  const TensorOptions wide{DType::float32, p.device};
  const auto random = [&](const Shape& shape) { return to_data(normal(shape, 0, 1, wide, generator), p.dtype); };
  const auto gate = [&](const Shape& shape) {  // as in trained models
    return to_data(logsigmoid(normal(shape, 0, 1, wide, generator)) / 16, p.float_gates ? DType::float32 : p.dtype);
  };
  // Packed sequences all have the mean length, by which tunings are kept.
  const std::int64_t length = p.packed ? std::max<std::int64_t>(mean_length(p), 1) : p.length;
  const std::int64_t B = p.packed ? 1 : p.sequences, T = p.packed ? p.sequences * length : length;
  Tensors inputs{random({B, T, p.heads, p.K}), random({B, T, p.kv_heads, p.K}), random({B, T, p.kv_heads, p.V})};
  inputs.push_back(p.g ? gate({B, T, p.heads}) : Tensor());
  inputs.push_back(p.gk ? gate({B, T, p.heads, p.K}) : Tensor());
  inputs.push_back(p.gv ? gate({B, T, p.heads, p.V}) : Tensor());
  if (p.pass == Pass::backward)
    for (Tensor& x : inputs)
      if (x.defined()) x.set_requires_grad();
  inputs.push_back(p.g_gamma ? lightning_g_gamma(p.heads, 1, 8, p.device, p.dtype == DType::float64 ? p.dtype : DType::float32)
                             : Tensor());
  inputs.push_back(p.packed ? arange(0, T + 1, length) : Tensor());
  return inputs;
}

namespace {

/// Both passes by `cfg`.
void set_config(RecurrentOptions& arguments, const AttentionConfig& cfg, Algorithm forward, Algorithm backward) {
  arguments.algorithm = forward;
  arguments.backward_algorithm = backward;
  arguments.sizes = arguments.backward_sizes = {cfg.warps, cfg.sequence_split};
  if (cfg.checkpoint_interval != 0) arguments.checkpoint_interval = cfg.checkpoint_interval;
}

}  // namespace

Tensors AttentionModule::run(const AttentionProblem& problem, const AttentionConfig& cfg, const Tensors& inputs) const {
  RecurrentOptions arguments;
  arguments.g = inputs[3];
  arguments.gk = inputs[4];
  arguments.gv = inputs[5];
  arguments.g_gamma = inputs[6];
  arguments.cu_seqlens = inputs[7];
  arguments.return_state = problem.pass == Pass::forward;
  set_config(arguments, cfg, cfg.algorithm, cfg.algorithm);
  const auto [o, state] = recurrent(inputs[0], inputs[1], inputs[2], arguments);
  return arguments.return_state ? Tensors{o, state} : Tensors{o};
}

std::pair<Tensor, Tensor> AttentionModule::apply(const Tensor& query, const Tensor& key, const Tensor& value,
                                                 RecurrentOptions arguments, Platform platform,
                                                 const std::optional<AttentionConfig>& cfg) const {
  const auto is_rows = [](const Tensor& x) { return x.defined() && (x.ndim() == 3 || x.ndim() == 4); };
  if (is_rows(query) && is_rows(key) && is_rows(value)) {  // else recurrent says what is wrong
    check_platform(name(), platform, query.device());
    if (cfg) {
      AttentionProblem problem = AttentionProblem::of(query, key, value, arguments, Pass::forward);
      const auto algorithm = [&](Pass pass) {
        problem.pass = pass;
        check_cfg(problem, *cfg);
        return algorithm_of(problem, *cfg, pass == Pass::backward);
      };
      const Algorithm forward = algorithm(Pass::forward);
      const bool differentiable = autograd::any_requires_grad(
          {&query, &key, &value, &arguments.g, &arguments.g_gamma, &arguments.gk, &arguments.gv, &arguments.initial_state});
      set_config(arguments, *cfg, forward, differentiable ? algorithm(Pass::backward) : forward);
    }
  }
  return recurrent(query, key, value, arguments);
}

namespace {

std::pair<Tensor, Tensor> apply_options(const AttentionModule& module, const Tensor& query, const Tensor& key,
                                        const Tensor& value, RecurrentOptions arguments, const AttentionOptions& options) {
  arguments.softmax_scale = options.softmax_scale;
  arguments.reverse = options.reverse;
  arguments.return_state = options.return_state;
  return module.apply(query, key, value, std::move(arguments), options.platform, options.cfg);
}

}  // namespace

std::pair<Tensor, Tensor> RecurrentAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                                         const Tensor& g, const Tensor& g_gamma, const Tensor& gk,
                                                         const Tensor& gv, const Tensor& initial_state, const Tensor& cu_seqlens,
                                                         const AttentionOptions& options) const {
  RecurrentOptions arguments;
  arguments.g = g;
  arguments.g_gamma = g_gamma;
  arguments.gk = gk;
  arguments.gv = gv;
  arguments.initial_state = initial_state;
  arguments.cu_seqlens = cu_seqlens;
  return apply_options(*this, query, key, value, std::move(arguments), options);
}

std::pair<Tensor, Tensor> GLAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g,
                                                  const Tensor& g_gamma, const Tensor& initial_state, const Tensor& cu_seqlens,
                                                  const AttentionOptions& options) const {
  RecurrentOptions arguments;
  arguments.g = g;
  arguments.g_gamma = g_gamma;
  arguments.initial_state = initial_state;
  arguments.cu_seqlens = cu_seqlens;
  return apply_options(*this, query, key, value, std::move(arguments), options);
}

std::pair<Tensor, Tensor> recurrent_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g,
                                              const Tensor& g_gamma, const Tensor& gk, const Tensor& gv,
                                              const Tensor& initial_state, const Tensor& cu_seqlens,
                                              const AttentionOptions& options) {
  return RecurrentAttention()(query, key, value, g, g_gamma, gk, gv, initial_state, cu_seqlens, options);
}

std::pair<Tensor, Tensor> gla_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g,
                                        const Tensor& g_gamma, const Tensor& initial_state, const Tensor& cu_seqlens,
                                        const AttentionOptions& options) {
  return GLAttention()(query, key, value, g, g_gamma, initial_state, cu_seqlens, options);
}

}  // namespace glade
