// train_lm: trains a language model of linear attention on text, byte by byte, or on the tokens that tokenize makes.
//
//   train_lm --data text.txt --save model.h5      and then      generate --checkpoint model.h5 --prompt "In the beginning"
#include <fmt/format.h>
#include <glade/glade.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "lm/data.h"
#include "lm/model.h"
#include "lm/options.h"
#include "lm/progress.h"
#include "lm/run_settings.h"
#include "lm/step_profile.h"

using namespace glade;
namespace models = nn::models;
namespace optim = nn::optim;

namespace {

/// The configuration that the options and, for what they leave open, the checkpoint to resume from or else the defaults
/// ask for, as JSON. CheckpointError where the checkpoint holds another model.
template <class Config>
std::string configure(const lm::Options& options, const lm::DeviceDefaults& defaults, std::int64_t vocab_size,
                      const nn::Checkpoint* resumed) {
  Config config;
  config.num_hidden_layers = defaults.layers;
  config.hidden_size = defaults.hidden;
  config.num_heads = defaults.heads;
  config.dtype = defaults.dtype;
  if (resumed != nullptr) {
    try {
      config = Config::from_json(resumed->config);
    } catch (const ValueError& error) {
      throw CheckpointError(fmt::format("{}: {}", resumed->path, error.what()));
    }
  }
  const auto choose = [&](const char* option, auto& field, const auto& given) {
    if (resumed != nullptr && given && field != *given)
      throw CheckpointError(fmt::format("{}: the run was made with {} {}, not {}", resumed->path, option, field, *given));
    field = given.value_or(field);
  };
  choose("a vocabulary of", config.vocab_size, std::optional(vocab_size));
  choose("--layers", config.num_hidden_layers, options.layers);
  choose("--hidden", config.hidden_size, options.hidden);
  choose("--heads", config.num_heads, options.heads);
  if constexpr (requires { config.use_short_conv; }) {
    std::int64_t size = resumed == nullptr ? defaults.short_conv : config.use_short_conv ? config.conv_size : 0;
    choose("--short-conv", size, options.short_conv);
    config.use_short_conv = size > 0;
    if (size > 0) config.conv_size = size;
  } else if (options.short_conv.value_or(0) > 0) {
    throw lm::UsageError("--short-conv is for --model gla");
  }
  if (options.dtype) {
    std::string dtype(dtype_name(config.dtype));
    choose("--dtype", dtype, options.dtype);
    config.dtype = dtype_from_name(dtype);
  }
  // 0.02 at a width of 1024; narrower models learn faster from larger weights.
  if (resumed == nullptr) config.initializer_range = 0.64 / std::sqrt(static_cast<double>(config.hidden_size));
  return config.to_json();
}

/// The kind of attention. CheckpointError where the checkpoint to resume from has another one.
std::string model_type(const lm::Options& options, const nn::Checkpoint* resumed) {
  const std::string saved = resumed != nullptr ? lm::config_text(resumed->config, "model_type") : "";
  if (!saved.empty() && options.model && saved != *options.model)
    throw CheckpointError(fmt::format("{}: the run was made with --model {}, not {}", resumed->path, saved, *options.model));
  return saved.empty() ? options.model.value_or("gla") : saved;
}

/// With new weights, or to be restored from the checkpoint.
std::unique_ptr<models::CausalLM> make_model(const lm::Options& options, const lm::DeviceDefaults& defaults,
                                             std::int64_t vocab_size, const std::optional<nn::CheckpointFile>& resumed) {
  const nn::Checkpoint* const header = resumed ? &resumed->header() : nullptr;
  const bool is_gla = model_type(options, header) == "gla";
  const auto make = is_gla ? configure<models::GLAConfig> : configure<models::LightningConfig>;
  const std::string config = make(options, defaults, vocab_size, header);
  if (!resumed) return models::make_causal_lm(config);
  try {
    return models::make_causal_lm(config, resumed->model_infos());
  } catch (const ValueError& error) {
    throw CheckpointError(fmt::format("{}: {}", header->path, error.what()));
  }
}

/// How the processes divide a batch: neighbours share the tokens of each sequence, and those with the same tokens the sequences.
struct Division {
  ProcessGroup sequence, batch;

  Division(const lm::Run& run, const lm::Options& options, const ProcessGroup& world) {
    const std::int64_t neighbours = options.sequence_parallel;
    if (world.size() % neighbours != 0)
      throw lm::UsageError(fmt::format("--sequence-parallel {} does not divide {} processes", neighbours, world.size()));
    const std::int64_t others = world.size() / neighbours;
    if (options.data_parallel.value_or(others) != others)
      throw lm::UsageError(fmt::format("--data-parallel {} times --sequence-parallel {} is {}, but there are {} processes",
                                       *options.data_parallel, neighbours, *options.data_parallel * neighbours, world.size()));
    if (run.batch < others)
      throw lm::UsageError(fmt::format("--batch {} is too small for {} {}", run.batch, others,
                                       neighbours == 1 ? "processes" : "groups of processes"));
    if (run.seq_len < neighbours)
      throw lm::UsageError(fmt::format("--seq-len {} is too small for --sequence-parallel {}", run.seq_len, neighbours));
    const auto n = static_cast<int>(neighbours);
    sequence = world.split(world.rank() / n);
    batch = world.split(world.rank() % n);
  }
  /// This rank's tokens of each of its sequences; packed, of their row.
  std::pair<std::int64_t, std::int64_t> tokens(const lm::Run& run) const {
    const auto [begin, end] = batch.share(run.batch);
    return sequence.share(run.packed ? (end - begin) * run.seq_len : run.seq_len);
  }
};

constexpr const char* kLossScale = "loss_scale.";  // of its state in a checkpoint's data

/// Does the work in a range of a profile.
template <class F>
auto phase(const char* name, const F& work) {
  const ProfileRange range(RangeKind::phase, name);
  return work();
}

class Training {
 public:
  explicit Training(const lm::Options& options);
  /// To the end, or to Ctrl-C. Returns the program's exit code.
  int run();

 private:
  /// The share of the highest learning rate at each step.
  optim::LRSchedule schedule() const;
  void train_to_the_end();
  void step();
  /// The loss of a step on batches of {inputs, targets, cu_seqlens, share in the loss} one after the other.
  Tensors train(const Tensors& batches);
  void validate();
  void save();
  /// Fails, at the next agree(), where a weight is no finite number.
  void check_weights();
  /// Calls `check`, which throws where a save has failed: training goes on.
  void check_save(const std::function<void()>& check);
  /// These two go on from a checkpoint: the weights, before they are divided, and the rest.
  void restore_model(const nn::CheckpointFile& file);
  void restore(const nn::CheckpointFile& file);
  /// The lines that rank 0 shows.
  void print(const std::string& line);
  void print_model();
  void print_memory() const;
  /// Tells all ranks what only some know: that a signal came, rank 0's clock, and that rank 0 cannot go on, which ends all.
  void agree();
  /// Rank 0 shows and logs the steps so far. All ranks stop at a loss that is not finite.
  void flush();
  /// Work of rank 0 whose failure ends all ranks at the next agree().
  void on_rank_0(const std::function<void(lm::Progress&)>& work);
  /// The share of the run that is behind: of its steps, or of its time.
  double done() const;
  bool finished() const;

  /// The checkpoint that --resume asks for; rank 0 chooses.
  static std::optional<nn::CheckpointFile> open_resumed(const lm::Options& options, const ProcessGroup& world);

  const lm::Options options_;
  const ProcessGroup world_ = ProcessGroup::world();
  const Device device_;
  const lm::DeviceDefaults& defaults_;
  std::optional<nn::CheckpointFile> resumed_;  // while the training is prepared
  lm::RunSettings settings_;
  const double seconds_before_;  // of training, before the checkpoint
  const lm::Run run_;
  const lm::Data data_;
  const Division division_;
  const std::vector<nn::data::Batch> validation_;
  nn::data::Loader loader_;
  std::unique_ptr<models::CausalLM> model_;
  std::optional<nn::distributed::DataParallel> parallel_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<optim::LRScheduler> scheduler_;
  std::optional<optim::LossScaler> scaler_;  // for float16
  std::optional<nn::distributed::Saver> saver_;
  std::optional<lm::Progress> progress_;  // these two on rank 0 alone
  std::optional<lm::StepProfile> profile_;
  std::int64_t step_ = 0, validated_step_ = -1;
  int signal_ = 0;       // that came to any rank
  double seconds_ = 0;   // of this process, by rank 0's clock
  std::string failure_;  // of rank 0
  GraphedFunction graphed_{device_, [this](const Tensors& batches) { return train(batches); }};
};

std::optional<nn::CheckpointFile> Training::open_resumed(const lm::Options& options, const ProcessGroup& world) {
  if (options.resume.empty()) {
    const auto others = options.save.empty() ? std::vector<std::string>() : nn::numbered_checkpoints(options.save);
    if (!others.empty() && world.rank() == 0)  // of higher steps, perhaps, which would pass for the newest of this run
      throw lm::UsageError(fmt::format("--save {}: there is {} of another run: give --resume auto or another name, or remove it",
                                       options.save, others.back()));
    return std::nullopt;
  }
  if (options.resume != "auto") return nn::CheckpointFile(options.resume);
  std::optional<nn::CheckpointFile> newest;
  if (world.rank() == 0)
    newest = nn::open_newest_checkpoint(options.save, [](const std::string& error) {
      fmt::print(stderr, "train_lm: passing over a damaged checkpoint: {}\n", lm::printable(error));
    });
  const std::string path = world.broadcast(newest ? newest->header().path : std::string());
  if (world.rank() > 0 && !path.empty()) newest.emplace(path);
  return newest;
}

Training::Training(const lm::Options& options)
    : options_(options),
      device_(world_.device(options.device)),
      defaults_(device_.is_cuda() ? lm::kCudaDefaults : lm::kCpuDefaults),
      resumed_(open_resumed(options, world_)),
      settings_(resumed_ ? &resumed_->header() : nullptr),
      seconds_before_(settings_.seconds_before()),
      run_(options, defaults_, settings_),
      data_(options.data, run_.seq_len, run_.packed),
      division_(run_, options, world_),
      validation_(data_.validation_batches(run_.batch, device_, division_.batch, division_.sequence)),
      loader_(data_.tokens(), {.batch_size = run_.batch,
                               .seq_len = run_.seq_len,
                               .share = division_.batch.share(run_.batch),
                               .packed = run_.packed,
                               .seed = run_.seed,
                               .end = data_.training_size(),
                               .device = device_,
                               .tokens = division_.tokens(run_)}) {
  if (!options.save.empty() || resumed_) settings_.fix_data(*data_.tokens());
  const bool is_first = world_.rank() == 0;
  manual_seed(run_.seed);
  model_ = make_model(options, defaults_, data_.tokens()->vocab_size(), resumed_);
  model_->to(device_);
  model_->model.recompute = options.recompute;
  model_->set_sequence_group(division_.sequence);
  if (resumed_) restore_model(*resumed_);
  const DType reduce_dtype = dtype_from_name(options.reduce_dtype);
  parallel_.emplace(*model_, world_, nn::distributed::DataParallelOptions{.shard = options.shard, .reduce_dtype = reduce_dtype});
  if (!options.save.empty()) saver_.emplace(*parallel_, options.save, options.keep);
  optimizer_.emplace(parallel_->divide(optim::decay_matrices(model_->named_parameters(), run_.lr, run_.weight_decay)),
                     optim::AdamWOptions{.beta2 = 0.95});
  if (lm::config_text(model_->config_json(), "dtype") == "float16") scaler_.emplace(device_);

  const auto resumed_step = resumed_ ? std::optional(resumed_->header().step) : std::nullopt;
  if (is_first) progress_.emplace(options.log, resumed_step, run_.seq_len * run_.batch * run_.accumulate, data_.unit());
  scheduler_.emplace(*optimizer_, schedule());
  if (resumed_) restore(*resumed_);
  resumed_.reset();
  if (!options.profile.empty() && is_first) profile_.emplace(options.profile, device_);
  print_model();
}

optim::LRSchedule Training::schedule() const {
  const std::int64_t steps = run_.steps, warmup = std::min(run_.warmup, steps), decay = std::min(steps / 5, steps - warmup);
  optim::LRSchedule by_steps =
      run_.schedule == "wsd" ? optim::warmup_stable_decay_lr(warmup, decay, steps) : optim::warmup_cosine_lr(warmup, steps);
  if (run_.minutes == 0) return by_steps;
  return [=, this](std::int64_t step) {  // what comes after the warmup follows the time
    return by_steps(step < warmup ? step : warmup + static_cast<std::int64_t>(done() * static_cast<double>(steps - warmup)));
  };
}

void Training::restore_model(const nn::CheckpointFile& file) {
  const nn::Checkpoint& header = file.header();
  if (!header.random.contains("default") || !header.data.contains("position"))
    throw CheckpointError(
        fmt::format("{}: not written by train_lm: it has no random state or no position in the data", header.path));
  file.restore(*model_);
  default_generator().set_state(header.random.at("default"));
}

void Training::restore(const nn::CheckpointFile& file) {
  const nn::Checkpoint& header = file.header();
  nn::distributed::restore(file, *parallel_, *optimizer_, &*scheduler_);
  loader_.load_state_dict(header.data);
  nn::StateDict scale;
  for (const auto& [name, x] : header.data)
    if (name.starts_with(kLossScale)) scale.emplace(name.substr(std::strlen(kLossScale)), x);
  if (scaler_ && !scale.empty()) scaler_->load_state_dict(scale);
  step_ = header.step;
  if (const std::string changes = settings_.changes(); !changes.empty() && progress_)
    fmt::print(stderr, "train_lm: {}\n", changes);
  print(fmt::format("resuming from {} after step {}", header.path, step_));
}

void Training::print_model() {
  double parameters = 0;
  for (const Tensor& x : model_->parameters()) parameters += static_cast<double>(x.numel());
  const std::string others = world_.size() > 1 ? fmt::format(" and {} more processes", world_.size() - 1) : "";
  print(fmt::format("{} model of {:.2f} million parameters on {}{}; {:.2f} million {}s to train on, {:.2f} for validation",
                    lm::config_text(model_->config_json(), "model_type"), parameters / 1e6, device_.name(), others,
                    static_cast<double>(data_.training_size()) / 1e6, data_.unit(),
                    static_cast<double>(data_.validation_size()) / 1e6));
}

int Training::run() {
  lm::catch_interrupts();
  train_to_the_end();
  if (saver_) saver_->wait();
  on_rank_0([](lm::Progress& progress) { progress.finish(); });
  agree();
  print(fmt::format("{} after step {}, {:.1f} s", signal_ == 0 ? "finished" : "interrupted", step_, seconds_));
  ProcessGroup::shutdown();  // before any process ends with the signal's exit code, at which the launcher may kill this one
  if (device_.is_cuda() && progress_) print_memory();
  return signal_ == 0 ? 0 : 128 + signal_;
}

void Training::train_to_the_end() {
  const auto every = [this](std::int64_t interval) { return interval > 0 && step_ % interval == 0; };
  for (agree(); !finished() && signal_ == 0; agree()) {
    if (profile_) profile_->next_step();
    step();
    if (saver_) check_save([this] { saver_->check(); });
    if (every(options_.eval_every) && !finished()) validate();
    if (every(options_.save_every) && !finished()) save();
  }
  flush();
  if (progress_) progress_->erase();
  if (profile_) profile_->finish();
  if (signal_ == 0) validate();
  save();
}

void Training::agree() {
  const Tensor known = Tensor::from_vector(
      std::vector{static_cast<double>(lm::interrupted()), progress_ ? progress_->seconds() : 0, failure_.empty() ? 0.0 : 1.0});
  world_.all_reduce({known}, ReduceOp::max).wait();
  const auto values = known.to_vector<double>();
  signal_ = static_cast<int>(values[0]);
  seconds_ = values[1];
  if (values[2] == 0) return;
  if (progress_) {
    progress_->erase();
    fmt::print(stderr, "train_lm: {}\n", lm::printable(failure_));
  }
  ProcessGroup::shutdown();  // after the message: the launcher may kill this process as soon as another one ends
  throw lm::Silent();
}

void Training::on_rank_0(const std::function<void(lm::Progress&)>& work) {
  try {
    if (progress_) work(*progress_);
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

void Training::flush() {
  on_rank_0([](lm::Progress& progress) { progress.flush(); });
  agree();
}

void Training::print(const std::string& line) {
  if (progress_) progress_->print(line);
}

void Training::print_memory() const {
  Tensors parameters, state;
  for (const optim::ParameterGroup& group : optimizer_->groups())
    for (const auto& [name, x] : group.parameters) parameters.push_back(x);
  for (const auto& [name, x] : optimizer_->state_dict()) state.push_back(x);
  fmt::print("{}", cuda::memory_summary(device_.index, {{"parameters", parameters}, {"optimizer", state}}));
}

bool Training::finished() const { return done() >= 1 || (options_.stop_at > 0 && step_ >= options_.stop_at); }

void Training::step() {
  std::vector<nn::data::Batch> batches;
  const Tensor counted = zeros({}, {DType::float64, kCPU});  // targets of all ranks
  phase("data", [&] {
    for (std::int64_t i = 0; i < run_.accumulate; ++i)
      *counted.data<double>() += static_cast<double>(batches.emplace_back(loader_.next()).counted);
    world_.all_reduce({counted}).wait();
  });
  const double average = counted.item<double>() / world_.size();
  Tensors arguments;
  for (const nn::data::Batch& batch : batches)
    arguments.insert(arguments.end(), {batch.inputs, batch.targets, batch.cu_seqlens,
                                       full({}, static_cast<double>(batch.counted) / average, {DType::float32, device_})});
  // Where packed documents begin is read on the host, which a graph cannot do; and in a replay there are no ranges.
  // Parameters that are gathered for every layer have other memory in every step.
  const bool is_eager = run_.packed || options_.eager || options_.shard == 3 || !options_.profile.empty();
  const Tensor loss = (is_eager ? train(arguments) : graphed_(arguments))[0];
  const double learning_rate = run_.lr * scheduler_->factor();
  scheduler_->step();
  ++step_;
  on_rank_0([&](lm::Progress& progress) { progress.add(step_, done(), learning_rate, loss); });
}

Tensors Training::train(const Tensors& batches) {
  Tensor loss;  // as of one batch of all their sequences: every target counts the same
  for (auto batch = batches.begin(); batch != batches.end(); batch += 4) {
    Tensor part = phase("forward", [&] { return model_->loss(batch[0], batch[1], batch[2]); });
    if (batches.size() > 4 || world_.size() > 1) part = part * batch[3];
    parallel_->set_communicating(batch + 4 == batches.end());
    phase("backward", [&] { (scaler_ ? scaler_->scale(part) : part).backward(); });
    loss = loss.defined() ? loss + part.detach() : part.detach();
  }
  parallel_->wait({loss});
  phase("optimizer", [&] {
    parallel_->step(*optimizer_, {.max_norm = run_.grad_clip, .scaler = scaler_ ? &*scaler_ : nullptr});
    optimizer_->zero_grad();
  });
  return {loss};
}

void Training::validate() {
  if (std::exchange(validated_step_, step_) == step_) return;
  flush();
  NoGradGuard no_grad;
  model_->eval();
  double sum = 0, tokens = 0;
  for (const nn::data::Batch& batch : validation_) {
    const auto n = static_cast<double>(batch.counted);
    const Tensor loss = model_->loss(batch.inputs, batch.targets, batch.cu_seqlens);
    if (n > 0) sum += n * loss.item<double>();
    tokens += n;
  }
  model_->train();
  const Tensor totals = Tensor::from_vector(std::vector{sum, tokens});
  world_.all_reduce({totals}).wait();
  const auto of_all = totals.to_vector<double>();
  on_rank_0([&](lm::Progress& progress) { progress.add_validation(step_, of_all[0] / of_all[1]); });
}

void Training::check_weights() {
  const NoGradGuard no_grad;
  Tensor total = zeros({}, {DType::float32, device_});  // of differences that are 0, or nan for a weight that is not finite
  for (const optim::ParameterGroup& group : optimizer_->groups())
    for (const auto& [name, x] : group.parameters) total = total + sum(x - x);
  world_.all_reduce({total}).wait();
  on_rank_0([&](lm::Progress&) {
    if (total.item<float>() != 0)
      throw std::runtime_error(fmt::format("the weights after step {} are not finite: try a smaller --lr", step_));
  });
}

void Training::save() {
  if (saver_) check_weights();  // the last loss is of those before the last step
  flush();                      // stops at what is not finite, before the last good checkpoint is replaced
  if (!saver_) return;
  nn::Checkpoint checkpoint;
  checkpoint.step = step_;
  checkpoint.config = model_->config_json();
  checkpoint.scheduler = scheduler_->state_dict();
  checkpoint.random["default"] = default_generator().state();
  checkpoint.data = loader_.state_dict();
  if (run_.minutes > 0) settings_.set_seconds(seconds_before_ + seconds_);
  checkpoint.data.insert(settings_.state_dict().begin(), settings_.state_dict().end());
  if (scaler_)
    for (const auto& [name, x] : scaler_->state_dict()) checkpoint.data.emplace(kLossScale + name, x);
  check_save([this] { saver_->wait(); });
  saver_->save(checkpoint, *model_, *optimizer_);
}

void Training::check_save(const std::function<void()>& check) {
  try {
    check();
  } catch (const CheckpointError& error) {
    print(fmt::format("not saved, and tried again at the next save: {}", error.what()));
  }
}

double Training::done() const {
  const double share = run_.minutes > 0 ? (seconds_before_ + seconds_) / (60 * run_.minutes)
                                        : static_cast<double>(step_) / static_cast<double>(run_.steps);
  return std::min(share, 1.0);
}

}  // namespace

int main(int argc, char** argv) {
  return lm::run_train_lm(argc, argv, [](const lm::Options& options) { return Training(options).run(); });
}
