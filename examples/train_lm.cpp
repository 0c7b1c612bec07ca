// train_lm: trains a language model of linear attention on text, byte by byte, or on the tokens that tokenize makes.
//
//   train_lm --data text.txt --save model.h5      and then      generate --checkpoint model.h5 --prompt "In the beginning"
#include <fmt/format.h>
#include <glade/glade.h>

#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "lm/data.h"
#include "lm/options.h"
#include "lm/progress.h"
#include "lm/step_profile.h"

using namespace glade;
namespace models = nn::models;
namespace optim = nn::optim;

namespace {

/// The configuration that the options and, for what they leave open, the checkpoint to resume from or else the defaults
/// ask for, as JSON. CheckpointError where the checkpoint holds another model.
template <class Config>
std::string configure(const lm::Options& options, const lm::Defaults& defaults, std::int64_t vocab_size,
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
      throw CheckpointError(fmt::format("{} holds another model: the options ask for {} {}", resumed->path, option, *given));
    field = given.value_or(field);
  };
  choose("a vocabulary of", config.vocab_size, std::optional(vocab_size));
  choose("--layers", config.num_hidden_layers, options.layers);
  choose("--hidden", config.hidden_size, options.hidden);
  choose("--heads", config.num_heads, options.heads);
  if (options.dtype) {
    std::string dtype(dtype_name(config.dtype));
    choose("--dtype", dtype, options.dtype);
    config.dtype = dtype_from_name(dtype);
  }
  return config.to_json();
}

/// With new weights, or those of the checkpoint to resume from.
std::unique_ptr<models::CausalLM> make_model(const lm::Options& options, const lm::Defaults& defaults, std::int64_t vocab_size,
                                             const nn::Checkpoint* resumed) {
  const auto make = options.model == "gla" ? configure<models::GLAConfig> : configure<models::LightningConfig>;
  return models::make_causal_lm(make(options, defaults, vocab_size, resumed));
}

/// Of activations.
DType dtype_of(const models::CausalLM& model, const lm::Options& options) {
  return options.model == "gla" ? models::GLAConfig::from_json(model.config_json()).dtype
                                : models::LightningConfig::from_json(model.config_json()).dtype;
}

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
  void step();
  /// The loss of a step on batches of {inputs, targets, cu_seqlens, share in the loss} one after the other.
  Tensors train(const Tensors& batches);
  void validate();
  void save();
  void print_memory() const;
  /// The share of the run that is behind: of its steps, or of its time.
  double done() const;
  bool finished() const;

  /// The checkpoint that --resume asks for.
  static std::optional<nn::CheckpointFile> open_resumed(const lm::Options& options);

  const lm::Options options_;
  const Device device_;
  const lm::Defaults& defaults_;
  const std::int64_t seq_len_, sequences_, steps_;
  const lm::Data data_;
  const std::vector<nn::data::Batch> validation_;
  nn::data::Loader loader_;
  std::unique_ptr<models::CausalLM> model_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<optim::LRScheduler> scheduler_;
  std::optional<optim::LossScaler> scaler_;  // for float16
  std::optional<lm::Progress> progress_;
  std::optional<nn::CheckpointSaver> saver_;
  std::optional<lm::StepProfile> profile_;
  std::int64_t step_ = 0;
  GraphedFunction graphed_{device_, [this](const Tensors& batches) { return train(batches); }};
};

std::optional<nn::CheckpointFile> Training::open_resumed(const lm::Options& options) {
  if (options.resume.empty()) return std::nullopt;
  if (options.resume != "auto") return nn::CheckpointFile(options.resume);
  return nn::open_newest_checkpoint(options.save, [](const std::string& error) {
    fmt::print(stderr, "train_lm: passing over a damaged checkpoint: {}\n", error);
  });
}

Training::Training(const lm::Options& options)
    : options_(options),
      device_(Device::parse(options.device)),
      defaults_(device_.is_cuda() ? lm::kCudaDefaults : lm::kCpuDefaults),
      seq_len_(options.seq_len.value_or(defaults_.seq_len)),
      sequences_(options.batch.value_or(defaults_.batch)),
      steps_(options.steps.value_or(defaults_.steps)),
      data_(options.data, seq_len_, options.packed),
      validation_(data_.validation_batches(sequences_, device_)),
      loader_(data_.tokens(), {.batch_size = sequences_,
                               .seq_len = seq_len_,
                               .packed = options.packed,
                               .seed = options.seed,
                               .end = data_.training_size(),
                               .device = device_}) {
  const std::optional<nn::CheckpointFile> resumed = open_resumed(options);
  const nn::Checkpoint* header = resumed ? &resumed->header() : nullptr;
  if (!options.save.empty()) saver_.emplace(options.save, options.keep);
  manual_seed(options.seed);
  model_ = make_model(options, defaults_, data_.tokens()->vocab_size(), header);
  model_->to(device_);
  model_->model.recompute = options.recompute;
  optimizer_.emplace(model_->named_parameters(),
                     optim::AdamWOptions{.lr = options.lr, .beta2 = 0.95, .weight_decay = options.weight_decay});

  if (dtype_of(*model_, options) == DType::float16) scaler_.emplace(device_);

  progress_.emplace(options.log, resumed.has_value(), seq_len_ * sequences_ * options.accumulate, data_.unit());
  const std::int64_t warmup = std::min(options.warmup, steps_);
  scheduler_.emplace(*optimizer_, [this, warmup, by_steps = optim::warmup_cosine_lr(warmup, steps_)](std::int64_t step) {
    if (options_.minutes && step >= warmup)  // the cosine follows the time
      step = warmup + static_cast<std::int64_t>(done() * static_cast<double>(steps_ - warmup));
    return by_steps(step);
  });
  if (resumed) {
    if (!header->random.contains("default") || !header->data.contains("position"))
      throw CheckpointError(
          fmt::format("{}: not written by train_lm: it has no random state or no position in the data", header->path));
    resumed->restore(*model_, &*optimizer_, &*scheduler_);
    default_generator().set_state(header->random.at("default"));
    loader_.load_state_dict(header->data);
    nn::StateDict scale;
    for (const auto& [name, x] : header->data)
      if (name.starts_with(kLossScale)) scale.emplace(name.substr(std::strlen(kLossScale)), x);
    if (scaler_ && !scale.empty()) scaler_->load_state_dict(scale);
    step_ = header->step;
    fmt::print("resuming from {} after step {}\n", header->path, step_);
  }
  if (!options.profile.empty()) profile_.emplace(options.profile, device_);

  double parameters = 0;
  for (const Tensor& x : model_->parameters()) parameters += static_cast<double>(x.numel());
  fmt::print("{} model of {:.2f} million parameters on {}; {:.2f} million {}s to train on, {:.2f} for validation\n",
             options.model, parameters / 1e6, device_.name(), static_cast<double>(data_.training_size()) / 1e6, data_.unit(),
             static_cast<double>(data_.validation_size()) / 1e6);
  std::fflush(stdout);
}

int Training::run() {
  lm::catch_interrupts();
  const auto every = [this](std::int64_t interval) { return interval > 0 && step_ % interval == 0; };
  while (!finished() && lm::interrupted() == 0) {
    if (profile_) profile_->next_step();
    step();
    if (saver_) saver_->check();
    if (every(options_.eval_every) && !finished()) validate();
    if (every(options_.save_every) && !finished()) save();
  }
  if (profile_) profile_->finish();
  const int signal = lm::interrupted();
  if (signal == 0) validate();
  save();
  if (saver_) saver_->wait();
  fmt::print("{} after step {}, {:.1f} s\n", signal == 0 ? "finished" : "interrupted", step_, progress_->seconds());
  if (device_.is_cuda()) print_memory();
  return signal == 0 ? 0 : 128 + signal;
}

void Training::print_memory() const {
  Tensors state;
  for (const auto& [name, x] : optimizer_->state_dict()) state.push_back(x);
  fmt::print("{}", cuda::memory_summary(device_.index, {{"parameters", model_->parameters()}, {"optimizer", state}}));
}

bool Training::finished() const { return done() >= 1 || (options_.stop_at > 0 && step_ >= options_.stop_at); }

void Training::step() {
  std::vector<nn::data::Batch> batches;
  double counted = 0;
  phase("data", [&] {
    for (std::int64_t i = 0; i < options_.accumulate; ++i)
      counted += static_cast<double>(batches.emplace_back(loader_.next()).counted);
  });
  Tensors arguments;
  for (const nn::data::Batch& batch : batches)
    arguments.insert(arguments.end(), {batch.inputs, batch.targets, batch.cu_seqlens,
                                       full({}, static_cast<double>(batch.counted) / counted, {DType::float32, device_})});
  // Where packed documents begin is read on the host, which a graph cannot do; and in a replay there are no ranges.
  const Tensor loss = (options_.packed || options_.eager || profile_ ? train(arguments) : graphed_(arguments))[0];
  const double learning_rate = options_.lr * scheduler_->factor();
  scheduler_->step();
  ++step_;
  progress_->add(step_, done(), learning_rate, loss);
}

Tensors Training::train(const Tensors& batches) {
  Tensor loss;  // as of one batch of all their sequences: every target counts the same
  for (auto batch = batches.begin(); batch != batches.end(); batch += 4) {
    Tensor part = phase("forward", [&] { return model_->loss(batch[0], batch[1], batch[2]); });
    if (batches.size() > 4) part = part * batch[3];
    phase("backward", [&] { (scaler_ ? scaler_->scale(part) : part).backward(); });
    loss = loss.defined() ? loss + part.detach() : part.detach();
  }
  phase("optimizer", [&] {
    optimizer_->step({.max_norm = options_.grad_clip, .scaler = scaler_ ? &*scaler_ : nullptr});
    optimizer_->zero_grad();
  });
  return {loss};
}

void Training::validate() {
  progress_->flush();
  NoGradGuard no_grad;
  model_->eval();
  double sum = 0, tokens = 0;
  for (const nn::data::Batch& batch : validation_) {
    const auto n = static_cast<double>(batch.counted);
    sum += n * model_->loss(batch.inputs, batch.targets, batch.cu_seqlens).item<double>();
    tokens += n;
  }
  model_->train();
  progress_->add_validation(step_, sum / tokens);
}

void Training::save() {
  progress_->flush();  // stops at a loss that is not finite, before the last good checkpoint is replaced
  if (!saver_) return;
  nn::Checkpoint checkpoint;
  checkpoint.step = step_;
  checkpoint.config = model_->config_json();
  checkpoint.model = model_->state_dict();
  checkpoint.optimizer = optimizer_->state_dict();
  checkpoint.scheduler = scheduler_->state_dict();
  checkpoint.random["default"] = default_generator().state();
  checkpoint.data = loader_.state_dict();
  if (scaler_)
    for (const auto& [name, x] : scaler_->state_dict()) checkpoint.data.emplace(kLossScale + name, x);
  saver_->save(checkpoint);
}

double Training::done() const {
  const double share = options_.minutes ? progress_->seconds() / (60 * *options_.minutes)
                                        : static_cast<double>(step_) / static_cast<double>(steps_);
  return std::min(share, 1.0);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a language model of linear attention on text or tokens.", "train_lm");
  lm::Options options;
  lm::add_options(app, options);
  return lm::run(app, argc, argv, [&] {
    lm::check_outputs(options);
    return Training(options).run();
  });
}
