// train_lm: trains a language model of linear attention on text, byte by byte, or on the tokens that tokenize makes.
//
//   train_lm --data text.txt --save model.h5      and then      generate --checkpoint model.h5 --prompt "In the beginning"
#include <fmt/format.h>
#include <glade/glade.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "lm/data.h"
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
  if (options.dtype) {
    std::string dtype(dtype_name(config.dtype));
    choose("--dtype", dtype, options.dtype);
    config.dtype = dtype_from_name(dtype);
  }
  return config.to_json();
}

/// The kind of attention. CheckpointError where the checkpoint to resume from has another one.
std::string model_type(const lm::Options& options, const nn::Checkpoint* resumed) {
  const auto config = nlohmann::json::parse(resumed != nullptr ? resumed->config : "{}", nullptr, false);
  const std::string saved = config.is_object() ? config.value("model_type", "") : "";
  if (!saved.empty() && options.model && saved != *options.model)
    throw CheckpointError(fmt::format("{}: the run was made with --model {}, not {}", resumed->path, saved, *options.model));
  return saved.empty() ? options.model.value_or("gla") : saved;
}

/// With new weights.
std::unique_ptr<models::CausalLM> make_model(const lm::Options& options, const lm::DeviceDefaults& defaults,
                                             std::int64_t vocab_size, const nn::Checkpoint* resumed) {
  const bool is_gla = model_type(options, resumed) == "gla";
  const auto make = is_gla ? configure<models::GLAConfig> : configure<models::LightningConfig>;
  return models::make_causal_lm(make(options, defaults, vocab_size, resumed));
}

/// A text of the model's configuration.
std::string config_field(const models::CausalLM& model, const char* name) {
  return nlohmann::json::parse(model.config_json()).at(name).get<std::string>();
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
  /// Calls `check`, which throws where a save has failed: training goes on.
  void check_save(const std::function<void()>& check);
  /// Goes on from a checkpoint.
  void restore(const nn::CheckpointFile& file);
  void print_model();
  void print_memory() const;
  /// The share of the run that is behind: of its steps, or of its time.
  double done() const;
  bool finished() const;

  /// The checkpoint that --resume asks for.
  static std::optional<nn::CheckpointFile> open_resumed(const lm::Options& options);

  const lm::Options options_;
  const Device device_;
  const lm::DeviceDefaults& defaults_;
  std::optional<nn::CheckpointFile> resumed_;  // while the training is prepared
  lm::RunSettings settings_;
  const lm::Run run_;
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
  std::int64_t step_ = 0, validated_step_ = -1;
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
      resumed_(open_resumed(options)),
      settings_(resumed_ ? &resumed_->header() : nullptr),
      run_(options, defaults_, settings_),
      data_(options.data, run_.seq_len, run_.packed),
      validation_(data_.validation_batches(run_.batch, device_)),
      loader_(data_.tokens(), {.batch_size = run_.batch,
                               .seq_len = run_.seq_len,
                               .packed = run_.packed,
                               .seed = run_.seed,
                               .end = data_.training_size(),
                               .device = device_}) {
  if (!options.save.empty() || resumed_) settings_.fix_data(*data_.tokens());
  if (!options.save.empty()) saver_.emplace(options.save, options.keep);
  manual_seed(run_.seed);
  model_ = make_model(options, defaults_, data_.tokens()->vocab_size(), resumed_ ? &resumed_->header() : nullptr);
  model_->to(device_);
  model_->model.recompute = options.recompute;
  optimizer_.emplace(model_->named_parameters(),
                     optim::AdamWOptions{.lr = run_.lr, .beta2 = 0.95, .weight_decay = run_.weight_decay});
  if (config_field(*model_, "dtype") == "float16") scaler_.emplace(device_);

  progress_.emplace(options.log, resumed_.has_value(), run_.seq_len * run_.batch * run_.accumulate, data_.unit());
  const std::int64_t warmup = std::min(run_.warmup, run_.steps);
  scheduler_.emplace(*optimizer_, [this, warmup, by_steps = optim::warmup_cosine_lr(warmup, run_.steps)](std::int64_t step) {
    if (run_.minutes > 0 && step >= warmup)  // the cosine follows the time
      step = warmup + static_cast<std::int64_t>(done() * static_cast<double>(run_.steps - warmup));
    return by_steps(step);
  });
  if (resumed_) restore(*resumed_);
  resumed_.reset();
  if (!options.profile.empty()) profile_.emplace(options.profile, device_);
  print_model();
}

void Training::restore(const nn::CheckpointFile& file) {
  const nn::Checkpoint& header = file.header();
  if (!header.random.contains("default") || !header.data.contains("position"))
    throw CheckpointError(
        fmt::format("{}: not written by train_lm: it has no random state or no position in the data", header.path));
  file.restore(*model_, &*optimizer_, &*scheduler_);
  default_generator().set_state(header.random.at("default"));
  loader_.load_state_dict(header.data);
  nn::StateDict scale;
  for (const auto& [name, x] : header.data)
    if (name.starts_with(kLossScale)) scale.emplace(name.substr(std::strlen(kLossScale)), x);
  if (scaler_ && !scale.empty()) scaler_->load_state_dict(scale);
  step_ = header.step;
  if (const std::string changes = settings_.changes(); !changes.empty()) fmt::print(stderr, "train_lm: {}\n", changes);
  progress_->print(fmt::format("resuming from {} after step {}", header.path, step_));
}

void Training::print_model() {
  double parameters = 0;
  for (const Tensor& x : model_->parameters()) parameters += static_cast<double>(x.numel());
  progress_->print(fmt::format(
      "{} model of {:.2f} million parameters on {}; {:.2f} million {}s to train on, {:.2f} for validation",
      config_field(*model_, "model_type"), parameters / 1e6, device_.name(), static_cast<double>(data_.training_size()) / 1e6,
      data_.unit(), static_cast<double>(data_.validation_size()) / 1e6));
}

int Training::run() {
  lm::catch_interrupts();
  const auto every = [this](std::int64_t interval) { return interval > 0 && step_ % interval == 0; };
  while (!finished() && lm::interrupted() == 0) {
    if (profile_) profile_->next_step();
    step();
    if (saver_) check_save([this] { saver_->check(); });
    if (every(options_.eval_every) && !finished()) validate();
    if (every(options_.save_every) && !finished()) save();
  }
  progress_->flush();
  progress_->erase();
  if (profile_) profile_->finish();
  const int signal = lm::interrupted();
  if (signal == 0) validate();
  save();
  if (saver_) saver_->wait();
  progress_->finish();
  progress_->print(
      fmt::format("{} after step {}, {:.1f} s", signal == 0 ? "finished" : "interrupted", step_, progress_->seconds()));
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
    for (std::int64_t i = 0; i < run_.accumulate; ++i)
      counted += static_cast<double>(batches.emplace_back(loader_.next()).counted);
  });
  Tensors arguments;
  for (const nn::data::Batch& batch : batches)
    arguments.insert(arguments.end(), {batch.inputs, batch.targets, batch.cu_seqlens,
                                       full({}, static_cast<double>(batch.counted) / counted, {DType::float32, device_})});
  // Where packed documents begin is read on the host, which a graph cannot do; and in a replay there are no ranges.
  const Tensor loss = (run_.packed || options_.eager || profile_ ? train(arguments) : graphed_(arguments))[0];
  const double learning_rate = run_.lr * scheduler_->factor();
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
    optimizer_->step({.max_norm = run_.grad_clip, .scaler = scaler_ ? &*scaler_ : nullptr});
    optimizer_->zero_grad();
  });
  return {loss};
}

void Training::validate() {
  if (std::exchange(validated_step_, step_) == step_) return;
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
  checkpoint.data.insert(settings_.state_dict().begin(), settings_.state_dict().end());
  if (scaler_)
    for (const auto& [name, x] : scaler_->state_dict()) checkpoint.data.emplace(kLossScale + name, x);
  check_save([this] { saver_->wait(); });
  saver_->save(checkpoint);
}

void Training::check_save(const std::function<void()>& check) {
  try {
    check();
  } catch (const CheckpointError& error) {
    progress_->print(fmt::format("not saved, and tried again at the next save: {}", error.what()));
  }
}

double Training::done() const {
  const double share = run_.minutes > 0 ? progress_->seconds() / (60 * run_.minutes)
                                        : static_cast<double>(step_) / static_cast<double>(run_.steps);
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
