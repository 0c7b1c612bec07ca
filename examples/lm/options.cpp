#include "lm/options.h"

#include <fmt/format.h>

#include "lm/command_line.h"
#include "lm/step_profile.h"

namespace lm {

namespace {

/// Of options that do not depend on the device.
struct Defaults {
  const char* model = "gla";
  std::int64_t accumulate = 1, warmup = 50;
  double weight_decay = 0.1, grad_clip = 1;
  std::uint64_t seed = 0;
};
constexpr Defaults kDefaults;

template <class T>
std::string by_device(T DeviceDefaults::*field) {
  return fmt::format("{} on the CPU, {} on CUDA", kCpuDefaults.*field, kCudaDefaults.*field);
}

/// Options that a checkpoint to resume from gives, where they are absent.
class RunOptions {
 public:
  explicit RunOptions(CLI::App& app) : app_(app) {}

  CLI::Option* size(const char* name, std::optional<std::int64_t>& value, const char* text, const std::string& otherwise) {
    return app_.add_option(name, value, text)->transform(positive_integer())->default_str(otherwise);
  }
  template <class T>
  void number(const char* name, std::optional<T>& value, const char* text, T otherwise) {
    CLI::Option* option = app_.add_option(name, value, text)->default_str(fmt::format("{}", otherwise));
    if constexpr (std::is_integral_v<T>) option->transform(count());
    else option->check(non_negative_number());
  }

 private:
  CLI::App& app_;
};

void add_run_options(CLI::App& app, Options& o) {
  RunOptions add(app);
  app.add_option("--model", o.model, "Kind of attention")
      ->check(CLI::IsMember({"gla", "lightning"}))
      ->default_str(kDefaults.model);
  add.size("--layers", o.layers, "Number of layers", by_device(&DeviceDefaults::layers));
  add.size("--hidden", o.hidden, "Size of the hidden vectors", by_device(&DeviceDefaults::hidden));
  add.size("--heads", o.heads, "Number of heads in a layer", by_device(&DeviceDefaults::heads));
  app.add_option("--short-conv", o.short_conv, "Tokens that short convolutions of queries, keys and values see, in gla; 0: none")
      ->transform(count())
      ->default_str(by_device(&DeviceDefaults::short_conv));
  app.add_option("--dtype", o.dtype, "Type of activations; float16 trains with a loss scale")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->default_str("float32 on the CPU, bfloat16 on CUDA");
  add.size("--seq-len", o.seq_len, "Tokens in a sequence", by_device(&DeviceDefaults::seq_len));
  add.size("--batch", o.batch, "Sequences in a batch", by_device(&DeviceDefaults::batch));
  add.size("--accumulate", o.accumulate, "Batches in a step, computed one after the other",
           fmt::format("{}", kDefaults.accumulate));
  app.add_flag("--packed", o.packed, "Keep documents apart: the state begins anew after every separator (in text: zero bytes)");
  app.add_option("--seed", o.seed, "Seed for the weights and the order of the data")
      ->transform(seed())
      ->default_str(fmt::format("{}", kDefaults.seed));
  CLI::Option* steps =
      add.size("--steps", o.steps, "Steps of the whole run, those before --resume included", by_device(&DeviceDefaults::steps));
  app.add_option("--minutes", o.minutes, "Minutes to train for, instead of --steps")->check(positive_number())->excludes(steps);
  app.add_option("--lr", o.lr, "Highest learning rate")
      ->check(non_negative_number())
      ->default_str(by_device(&DeviceDefaults::lr));
  add.number("--warmup", o.warmup, "Steps until the learning rate is highest", kDefaults.warmup);
  app.add_option(
         "--schedule", o.schedule,
         "Learning rate after the warmup: cosine falls to a tenth; wsd stays, and falls to 0 over the last fifth of the steps")
      ->check(CLI::IsMember(kSchedules))
      ->default_str(kSchedules.front());
  add.number("--weight-decay", o.weight_decay, "Weight decay of matrices in AdamW", kDefaults.weight_decay);
  add.number("--grad-clip", o.grad_clip, "Largest norm of the gradient; 0: no limit", kDefaults.grad_clip);
}

/// All options.
void add_options(CLI::App& app, Options& o) {
  const auto add_count = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->transform(count())->capture_default_str();
  };
  app.add_option("--data", o.data, "Text, or token files (see tokenize), to train on; the last twentieth is kept for validation")
      ->required()
      ->type_name("FILE");
  add_run_options(app, o);
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N")->type_name("DEVICE")->capture_default_str();
  app.add_flag("--recompute", o.recompute, "Save memory: keep only the inputs of layers, and compute the rest again in backward");
  app.add_option("--data-parallel", o.data_parallel,
                 "Processes, or groups of --sequence-parallel, that share the batch's sequences")
      ->transform(positive_integer())
      ->default_str("all that there are");
  app.add_option("--shard", o.shard,
                 "What all processes divide among them: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too")
      ->transform(count_up_to(3))
      ->capture_default_str();
  app.add_option("--reduce-dtype", o.reduce_dtype, "Type in which processes exchange gradients; bfloat16 halves the bytes")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--sequence-parallel", o.sequence_parallel, "Processes that share the tokens of each sequence")
      ->transform(positive_integer())
      ->capture_default_str();
  app.add_flag("--eager", o.eager, "Do not capture steps on CUDA in graphs");
  add_count("--stop-at", o.stop_at, "Step to stop after, as on Ctrl-C, with the learning rates of a run of --steps; 0: none");
  add_count("--eval-every", o.eval_every, "Steps between validations; 0: only at the end");
  app.add_option("--save", o.save, "Checkpoint to write at the end and on Ctrl-C")->type_name("FILE.h5");
  add_count("--save-every", o.save_every, "Steps between checkpoints; 0: only at the end");
  add_count("--keep", o.keep, "Number of checkpoints to keep, with their step in the name; 0: one, under its own name");
  app.add_option(
         "--resume", o.resume,
         "Checkpoint to go on from, which also gives the options of the run that are absent; auto: the newest good one of "
         "--save, or none")
      ->type_name("FILE.h5|auto");
  app.add_option("--log", o.log, "CSV file for the loss of every step; --resume appends to it")->type_name("FILE.csv");
  app.add_option("--profile", o.profile, "Chrome trace of steps 6 to 15 of this run, without graphs, and a table at the end")
      ->type_name("FILE.json");
}

void check_outputs(const Options& o) {
  const std::vector<std::pair<std::string, std::string>> outputs{{"--save", o.save}, {"--log", o.log}, {"--profile", o.profile}};
  for (const auto& [option, path] : outputs) {
    if (path.empty()) continue;
    check_folder(option, path);
    check_no_input(option, path, o.data);
    if (option != "--save") check_no_input(option, path, {o.resume});
  }
  check_distinct(outputs);
  if (o.resume == "auto" && o.save.empty()) throw UsageError("--resume auto needs --save");
  if (o.save_every > 0 && o.save.empty()) throw UsageError("--save-every needs --save");
  if (o.keep > 0 && o.save.empty()) throw UsageError("--keep needs --save");
  if (o.profile.empty()) return;
  for (const auto& [option, steps] : {std::pair("--steps", o.steps.value_or(0)), {"--stop-at", o.stop_at}})
    if (steps > 0 && steps <= StepProfile::kBefore)
      throw UsageError(fmt::format("--profile begins after {} steps: {} {} is too few", StepProfile::kBefore, option, steps));
}

}  // namespace

Run::Run(const Options& o, const DeviceDefaults& defaults, RunSettings& settings)
    : seq_len(settings.fixed("--seq-len", o.seq_len, defaults.seq_len)),
      batch(settings.fixed("--batch", o.batch, defaults.batch)),
      accumulate(settings.fixed("--accumulate", o.accumulate, kDefaults.accumulate)),
      packed(settings.fixed("--packed", o.packed ? std::optional<std::int64_t>(1) : std::nullopt, 0) != 0),
      seed(static_cast<std::uint64_t>(settings.fixed("--seed", o.seed, static_cast<std::int64_t>(kDefaults.seed)))),
      steps(settings.schedule("--steps", o.steps, defaults.steps)),
      minutes(settings.schedule("--minutes", o.steps ? std::optional(0.0) : o.minutes, 0.0)),
      lr(settings.schedule("--lr", o.lr, defaults.lr)),
      warmup(settings.schedule("--warmup", o.warmup, kDefaults.warmup)),
      weight_decay(settings.schedule("--weight-decay", o.weight_decay, kDefaults.weight_decay)),
      grad_clip(settings.schedule("--grad-clip", o.grad_clip, kDefaults.grad_clip)),
      schedule(settings.schedule("--schedule", o.schedule, kSchedules)) {}

int run_train_lm(int argc, char** argv, const std::function<int(const Options&)>& train) {
  CLI::App app("Trains a language model of linear attention on text or tokens.", "train_lm");
  Options options;
  add_options(app, options);
  return run(app, argc, argv, [&] {
    check_outputs(options);
    return train(options);
  });
}

}  // namespace lm
