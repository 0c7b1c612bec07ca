// train_throughput: tokens a second of whole training steps (forward, backward, clipping, AdamW) of language models, on random
// tokens.
//
//   train_throughput --size 374M --batch 8 --seq-len 2048      and, beside fla's models: compare_train_fla.py
//   mpirun -np 4 train_throughput ...                          data parallel, the same batch on every rank: weak scaling
//   mpirun -np 4 train_throughput --shard 3 --size 7B ...      the same, with parameters, gradients and state divided
//   mpirun -np 4 train_throughput --sequence-parallel ...      sequences of four times --seq-len tokens, a part on every rank
#include <fmt/format.h>
#include <glade/glade.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

using namespace glade;
namespace models = nn::models;
namespace optim = nn::optim;

namespace {

constexpr double kPeakFlops = 989e12;  // of an H200 in bfloat16, dense

struct Options {
  std::string size = "374M", model = "gla", dtype = "bfloat16", device = "cuda";
  std::string reduce_dtype = "float32";
  bool eager = false, recompute = false, sequence_parallel = false, no_communication = false;
  int shard = 0;
  std::optional<int> max_ctas;
  std::optional<std::int64_t> bucket_mb;
  bool no_copy_engines = false;
  std::int64_t batch = 8, seq_len = 2048, steps = 20, warmup = 5;
};

struct Size {
  std::int64_t hidden, layers, heads, vocabulary, kv_heads = 0;  // kv_heads: of GLA with as many keys as values
};
const std::map<std::string, Size> kSizes{{"11M", {384, 6, 6, 256}},      {"134M", {768, 12, 4, 32000}},
                                         {"374M", {1024, 24, 4, 32000}}, {"1.3B", {2048, 24, 4, 32000}},
                                         {"2.7B", {2560, 32, 5, 32000}}, {"7B", {4096, 32, 32, 32000, 8}}};

template <class Config>
std::unique_ptr<models::CausalLM> make_model(const Options& options) {
  const Size& size = kSizes.at(options.size);
  Config config;
  config.hidden_size = size.hidden;
  config.num_hidden_layers = size.layers;
  config.num_heads = size.heads;
  config.vocab_size = size.vocabulary;
  config.expand_k = 0.5;  // so that models of both kinds have the same size
  if constexpr (requires { config.num_kv_heads; })
    if (size.kv_heads > 0) {
      config.num_kv_heads = size.kv_heads;
      config.expand_k = 1;
    }
  config.dtype = dtype_from_name(options.dtype);
  return models::make_causal_lm(config.to_json());
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int run(const Options& options) {
  const double start = seconds();
  manual_seed(0);
  const ProcessGroup world = ProcessGroup::world();
  const Device device = world.device(options.device);
  const auto model =
      options.model == "gla" ? make_model<models::GLAConfig>(options) : make_model<models::LightningConfig>(options);
  model->to(device);
  model->model.recompute = options.recompute;
  if (options.sequence_parallel) model->set_sequence_group(world.split(0));  // whose states do not queue behind gradients
  std::optional<std::size_t> bucket_bytes;
  if (options.bucket_mb) bucket_bytes = static_cast<std::size_t>(*options.bucket_mb) << 20;
  nn::distributed::DataParallel parallel(*model, world,
                                         {.shard = options.shard,
                                          .bucket_bytes = bucket_bytes,
                                          .reduce_dtype = dtype_from_name(options.reduce_dtype),
                                          .copy_engines = !options.no_copy_engines,
                                          .max_ctas = options.max_ctas});
  parallel.set_communicating(!options.no_communication);
  optim::AdamW optimizer(parallel.divide({{model->named_parameters(), 1e-4, 0.01}}));
  double parameters = 0;
  for (const Tensor& x : model->parameters()) parameters += static_cast<double>(x.numel());
  const auto vocabulary = static_cast<double>(kSizes.at(options.size).vocabulary);
  const Tensor tokens = to(uniform({options.batch, options.seq_len + 1}, 0, vocabulary, {DType::float32, device}), DType::int64);
  const Tensor inputs = contiguous(slice(tokens, 1, 0, options.seq_len)), targets = contiguous(slice(tokens, 1, 1, std::nullopt));

  const auto train = [&](const Tensors& batch) {
    const Tensor loss = model->loss(batch[0], batch[1]);
    loss.backward();
    parallel.wait();
    parallel.step(optimizer, {.max_norm = 1});
    optimizer.zero_grad();
    return Tensors{loss.detach()};
  };
  GraphedFunction graphed(device, train);
  const auto step = [&] {
    return (options.eager || options.shard == 3 ? train({inputs, targets}) : graphed({inputs, targets}))[0];
  };
  const double first_loss = step().item<double>(), first_step = seconds() - start;
  Tensor loss;
  std::vector<double> times;
  for (std::int64_t i = -options.warmup; i < options.steps; ++i) {
    const double begin = seconds();
    loss = step();
    loss.item<double>();
    if (i >= 0) times.push_back(seconds() - begin);
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  const Tensor slowest =
      full({1}, times[times.size() / 2], {DType::float64, kCPU});  // ranks that do not wait for one another differ
  world.all_reduce({slowest}, ReduceOp::max).wait();
  const double time = slowest.item<double>(), rate = static_cast<double>(world.size() * options.batch * options.seq_len) / time;
  const cuda::MemoryStats memory = device.is_cuda() ? cuda::memory_stats(device.index) : cuda::MemoryStats{};
  ProcessGroup::shutdown();
  if (world.rank() > 0) return 0;
  fmt::print(
      "{}{}{} {} {}x{} {}: {:.0f} tokens/s, MFU {:.1f} %, step {:.2f} ms, peak {:.2f} GiB, after a step {:.2f} GiB, "
      "first step after {:.2f} s, loss {:.4f} -> {:.4f}\n",
      world.size() > 1 ? fmt::format("{} ranks, shard {}, ", world.size(), parallel.shard()) : "",
      options.sequence_parallel ? "shared sequences, " : "", options.model, options.size, options.batch, options.seq_len,
      options.dtype, rate, 100 * 6 * parameters * rate / world.size() / kPeakFlops, 1e3 * time,
      static_cast<double>(memory.peak_allocated) / (1 << 30), static_cast<double>(memory.allocated) / (1 << 30), first_step,
      first_loss, loss.item<double>());
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Times training steps of language models.", "train_throughput");
  Options o;
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--size", o.size, "Parameters")->check(CLI::IsMember(kSizes))->capture_default_str();
  app.add_option("--model", o.model, "gla or lightning")->check(CLI::IsMember({"gla", "lightning"}))->capture_default_str();
  app.add_option("--dtype", o.dtype, "Of activations")->capture_default_str();
  app.add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--batch", o.batch, "Sequences of a step on each rank")->check(positive)->capture_default_str();
  app.add_option("--seq-len", o.seq_len, "Tokens of a sequence")->check(positive)->capture_default_str();
  app.add_option("--steps", o.steps, "Steps to time")->check(positive)->capture_default_str();
  app.add_option("--warmup", o.warmup, "Steps before them")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_flag("--eager", o.eager, "Without a CUDA graph");
  app.add_flag("--recompute", o.recompute, "Keep only the inputs of layers, and compute the rest again in backward");
  app.add_option("--shard", o.shard,
                 "What the ranks divide: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("--bucket-mb", o.bucket_mb, "Megabytes of gradients in a collective, with shards 0 to 2")->check(positive);
  app.add_flag("--no-copy-engines", o.no_copy_engines, "Average gradients by NCCL's thread blocks");
  app.add_option("--max-ctas", o.max_ctas, "NCCL's thread blocks beside backward; 0: as many as it chooses")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--reduce-dtype", o.reduce_dtype, "What gradients travel as")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_flag("--no-communication", o.no_communication, "Every rank steps by its own gradients: what the rest of a step takes");
  app.add_flag("--sequence-parallel", o.sequence_parallel, "All ranks share each sequence, with --seq-len of its tokens each");
  CLI11_PARSE(app, argc, argv);
  if (o.no_communication && o.shard > 0) throw ValueError("--no-communication is for --shard 0");
  return run(o);
} catch (const std::exception& error) {
  fmt::print(stderr, "train_throughput: {}\n", error.what());
  return 1;
}
