#include <glade/ops/linear_attention/attention_module.h>

#include <algorithm>

#include <glade/autograd/node.h>
#include <glade/core/format.h>
#include <glade/ops/activation/activation.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/kernels.h>
#include <glade/ops/random/random.h>

namespace glade {

using tuning::Pass;

namespace {

constexpr std::int64_t kChunkSize = 64, kShortestSegment = 256;
constexpr std::int64_t kLong = 1024;  // tokens from which the chunk form is many times as fast as the recurrent

RecurrenceShape shape_of(const AttentionProblem& p) {
  return {p.device, p.dtype, p.sequences, p.length, p.heads, p.K, p.V, p.gk, p.gv};
}

Algorithm algorithm_of(const AttentionConfig& cfg, const AttentionProblem& problem) {
  return cfg.algorithm == Algorithm::automatic ? pick_algorithm(shape_of(problem), problem.pass == Pass::backward)
                                               : cfg.algorithm;
}

/// Puts a configuration for each pass into the arguments.
void set_configurations(RecurrentOptions& arguments, const AttentionConfig& forward, const AttentionConfig& backward) {
  arguments.algorithm = forward.algorithm;
  arguments.backward_algorithm = backward.algorithm;
  arguments.sizes = {forward.warps, forward.sequence_split};
  arguments.backward_sizes = {backward.warps, backward.sequence_split};
  if (backward.checkpoint_interval != 0) arguments.checkpoint_interval = backward.checkpoint_interval;
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

void AttentionConfig::visit(tuning::Fields& f) {
  f.choice("algorithm", algorithm, {"automatic", "recurrent", "chunk"});
  f.number("checkpoint_interval", checkpoint_interval);
  f.number("chunk_size", chunk_size);
  f.number("sub_chunk_size", sub_chunk_size);
  f.number("value_block", value_block);
  f.number("warps", warps);
  f.number("stages", stages);
  f.number("sequence_split", sequence_split);
}

AttentionProblem AttentionProblem::of(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const RecurrentOptions& options, Pass pass) {
  AttentionProblem p;
  p.device = query.device();
  p.dtype = query.dtype();
  p.pass = pass;
  p.packed = options.cu_seqlens.defined();
  const std::int64_t batch = query.ndim() == 4 ? query.size(0) : 1;
  p.sequences = p.packed ? options.cu_seqlens.numel() - 1 : batch;
  p.length = batch * query.size(-3) / std::max<std::int64_t>(p.sequences, 1);
  p.heads = query.size(-2);
  p.kv_heads = key.size(-2);
  p.K = query.size(-1);
  p.V = value.size(-1);
  const bool per_channel = options.g.defined() && options.g.ndim() == query.ndim();
  p.g = options.g.defined() && !per_channel;
  p.g_gamma = options.g_gamma.defined();
  p.gk = options.gk.defined() || per_channel;
  p.gv = options.gv.defined();
  return p;
}

void AttentionModule::describe(const AttentionProblem& p, tuning::Key& key) const {
  key.add("length", tuning::bucket(p.length)).add("sequences", tuning::bucket(p.sequences)).add("heads", tuning::bucket(p.heads));
  key.add("K", tuning::bucket(p.K)).add("V", tuning::bucket(p.V)).add("gates", gate_names(p));
  key.add("shared_heads", p.kv_heads < p.heads).add("packed", p.packed).add("chunk", chunk_obstacle(shape_of(p)) == nullptr);
}

AttentionConfig AttentionModule::heuristic_cfg(const AttentionProblem& problem) const {
  AttentionConfig cfg{.algorithm = pick_algorithm(shape_of(problem), problem.pass == Pass::backward)};
  // Measured: few heads fill the GPU better in smaller blocks, as long as the kernel does not split their sequences.
  const bool few = problem.sequences * problem.heads <= 64 && problem.length > 1 && problem.length < 3 * kShortestSegment;
  if (problem.device.is_cuda() && cfg.algorithm == Algorithm::recurrent && few) cfg.warps = 4;
  return cfg;
}

AttentionConfig AttentionModule::reference_cfg(const AttentionProblem&) const { return {.algorithm = Algorithm::recurrent}; }

std::vector<AttentionConfig> AttentionModule::candidate_cfgs(const AttentionProblem& problem) const {
  std::vector<AttentionConfig> candidates{{.algorithm = Algorithm::recurrent}};
  const bool cuda = problem.device.is_cuda(), backward = problem.pass == Pass::backward;
  const bool chunk = chunk_obstacle(shape_of(problem)) == nullptr;
  const auto add = [&](const AttentionConfig& cfg) {
    if (!sizes_obstacle(shape_of(problem), cfg.algorithm == Algorithm::chunk, {cfg.warps, cfg.sequence_split}))
      candidates.push_back(cfg);
  };
  const bool passes = chunk && (!cuda || chunk_in_passes(shape_of(problem)));
  if (!passes || problem.length < kLong) {  // else chunk wins by far
    for (const std::int64_t interval : {64, 256})
      if (backward && interval < 2 * problem.length) add({.algorithm = Algorithm::recurrent, .checkpoint_interval = interval});
    if (cuda && problem.length > 1)
      for (const std::int64_t warps : {2, 4}) add({.algorithm = Algorithm::recurrent, .warps = warps});
    for (const std::int64_t split : {1, 4, 16})
      if (cuda && split * kShortestSegment <= problem.length && problem.length >= kLong)
        add({.algorithm = Algorithm::recurrent, .sequence_split = split});
  }
  if (!chunk) return candidates;
  add({.algorithm = Algorithm::chunk});
  for (const std::int64_t split : {1, 2, 4, 8, 16})
    if (cuda && 2 * split * kChunkSize <= problem.length) add({.algorithm = Algorithm::chunk, .sequence_split = split});
  return candidates;
}

void AttentionModule::check_cfg(const AttentionProblem& problem, const AttentionConfig& cfg) const {
  const bool chunk = algorithm_of(cfg, problem) == Algorithm::chunk;
  const char* obstacle = chunk ? chunk_obstacle(shape_of(problem)) : nullptr;
  if (obstacle) fail<ValueError>("{}: cfg: algorithm chunk does not take {}", name(), obstacle);
  if (cfg.checkpoint_interval < 0)
    fail<ValueError>("{}: cfg: checkpoint_interval is {}: expected at least 0", name(), cfg.checkpoint_interval);
  const auto fixed = [&](const char* field, std::int64_t value, std::int64_t only, const char* why) {
    if (value != 0 && value != only) fail<ValueError>("{}: cfg: {} is {}: {}", name(), field, value, why);
  };
  if (chunk && problem.device.is_cuda())
    fixed("checkpoint_interval", cfg.checkpoint_interval, kChunkSize, "the chunk kernels keep the state before every 64 tokens");
  else if (chunk)
    fixed("checkpoint_interval", cfg.checkpoint_interval, 0, "on the CPU it follows from the head sizes in the chunk form");
  fixed("chunk_size", cfg.chunk_size, chunk ? kChunkSize : 0,
        chunk ? "the chunk kernels are compiled for 64" : "the recurrent algorithm has no chunks");
  fixed("sub_chunk_size", cfg.sub_chunk_size, 0, "the chunk kernels have no sub-chunks");
  fixed("value_block", cfg.value_block, 0, "it follows from the number of warps");
  fixed("stages", cfg.stages, 0, "the kernels are compiled for one number of stages");
  obstacle = sizes_obstacle(shape_of(problem), chunk, {cfg.warps, cfg.sequence_split});
  if (obstacle) fail<ValueError>("{}: cfg: algorithm {} does not take {}", name(), chunk ? "chunk" : "recurrent", obstacle);
  if (problem.length == 1 && !problem.packed && !chunk && (cfg.warps != 0 || cfg.sequence_split != 0))
    fail<ValueError>("{}: cfg: warps is {} and sequence_split {}: single tokens have a kernel of their own, without them", name(),
                     cfg.warps, cfg.sequence_split);
}

Tensors AttentionModule::sample(const AttentionProblem& p, Generator& generator) const {
  const TensorOptions wide{DType::float32, p.device};
  const auto random = [&](const Shape& shape) { return to_data(normal(shape, 0, 1, wide, generator), p.dtype); };
  const auto gate = [&](const Shape& shape) {  // as in trained models
    return to_data(logsigmoid(normal(shape, 0, 1, wide, generator)) / 16, p.dtype);
  };
  const std::int64_t B = p.packed ? 1 : p.sequences, T = p.packed ? p.sequences * p.length : p.length;
  Tensors inputs{random({B, T, p.heads, p.K}), random({B, T, p.kv_heads, p.K}), random({B, T, p.kv_heads, p.V})};
  inputs.push_back(p.g ? gate({B, T, p.heads}) : Tensor());
  inputs.push_back(p.gk ? gate({B, T, p.heads, p.K}) : Tensor());
  inputs.push_back(p.gv ? gate({B, T, p.heads, p.V}) : Tensor());
  if (p.pass == Pass::backward)
    for (Tensor& x : inputs)
      if (x.defined()) x.set_requires_grad();
  inputs.push_back(p.g_gamma ? lightning_g_gamma(p.heads, 1, 8, p.device, p.dtype == DType::float64 ? p.dtype : DType::float32)
                             : Tensor());
  inputs.push_back(p.packed ? arange(0, T + 1, p.length) : Tensor());
  return inputs;
}

Tensors AttentionModule::run(const AttentionProblem& problem, const AttentionConfig& cfg, const Tensors& inputs) const {
  RecurrentOptions arguments;
  arguments.g = inputs[3];
  arguments.gk = inputs[4];
  arguments.gv = inputs[5];
  arguments.g_gamma = inputs[6];
  arguments.cu_seqlens = inputs[7];
  set_configurations(arguments, cfg, cfg);
  const auto [o, state] = recurrent(inputs[0], inputs[1], inputs[2], arguments);
  return problem.pass == Pass::backward ? Tensors{o} : Tensors{o, state};
}

std::pair<Tensor, Tensor> AttentionModule::apply(const Tensor& query, const Tensor& key, const Tensor& value,
                                                 RecurrentOptions arguments, Platform platform,
                                                 const std::optional<AttentionConfig>& cfg) const {
  const auto is_rows = [](const Tensor& x) { return x.defined() && (x.ndim() == 3 || x.ndim() == 4); };
  if (is_rows(query) && is_rows(key) && is_rows(value)) {  // else recurrent says what is wrong
    check_platform(name(), platform, query.device());
    AttentionProblem problem = AttentionProblem::of(query, key, value, arguments, Pass::forward);
    if (cfg || arguments.algorithm == Algorithm::automatic) {
      const AttentionConfig forward = choose(problem, cfg).cfg;
      AttentionConfig backward = forward;
      if (autograd::any_requires_grad(
              {&query, &key, &value, &arguments.g, &arguments.g_gamma, &arguments.gk, &arguments.gv, &arguments.initial_state})) {
        problem.pass = Pass::backward;
        backward = choose(problem, cfg).cfg;
      }
      set_configurations(arguments, forward, backward);
    }
  }
  return recurrent(query, key, value, arguments);
}

namespace {

std::pair<Tensor, Tensor> apply_options(const AttentionModule& module, const Tensor& query, const Tensor& key,
                                        const Tensor& value, RecurrentOptions arguments, const AttentionOptions& options) {
  arguments.softmax_scale = options.softmax_scale;
  arguments.reverse = options.reverse;
  auto results = module.apply(query, key, value, std::move(arguments), options.platform, options.cfg);
  if (!options.return_state) results.second = Tensor();
  return results;
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
