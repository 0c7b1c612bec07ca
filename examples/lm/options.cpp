#include "lm/options.h"

#include <fmt/format.h>

#include "lm/step_profile.h"

namespace lm {

void add_options(CLI::App& app, Options& o) {
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  const auto by_device = [](const char* text, std::int64_t Defaults::*field) {
    return fmt::format("{} [{} on the CPU, {} on CUDA]", text, kCpuDefaults.*field, kCudaDefaults.*field);
  };
  const auto number = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->check(non_negative_number())->capture_default_str();
  };
  const auto size = [&](const char* name, std::optional<std::int64_t>& value, const char* text, std::int64_t Defaults::*field) {
    return app.add_option(name, value, by_device(text, field))->check(positive);
  };

  app.add_option("--data", o.data, "Text, or token files (see tokenize), to train on; the last twentieth is kept for validation")
      ->required()
      ->type_name("FILE");
  app.add_flag("--packed", o.packed, "Keep documents apart: a state begins and ends with its document (for text: at zero bytes)");
  app.add_option("--model", o.model, "gla or lightning")->check(CLI::IsMember({"gla", "lightning"}))->capture_default_str();
  size("--layers", o.layers, "Layers", &Defaults::layers);
  size("--hidden", o.hidden, "Size of the hidden vectors", &Defaults::hidden);
  size("--heads", o.heads, "Heads of a layer", &Defaults::heads);
  size("--seq-len", o.seq_len, "Tokens of a sequence", &Defaults::seq_len);
  size("--batch", o.batch, "Sequences of a batch", &Defaults::batch);
  app.add_option("--accumulate", o.accumulate, "Batches of a step, one after the other")->check(positive)->capture_default_str();
  CLI::Option* steps = size("--steps", o.steps, "Steps, those before --resume included", &Defaults::steps);
  app.add_option("--minutes", o.minutes, "Time to train for, instead of --steps")->check(positive_number())->excludes(steps);
  number("--stop-at", o.stop_at, "Step to stop after, as on Ctrl-C, with the learning rate of a run of --steps; 0: none");
  number("--lr", o.lr, "Highest learning rate");
  number("--warmup", o.warmup, "Steps until it is reached");
  number("--weight-decay", o.weight_decay, "Of AdamW, on matrices");
  app.add_flag("--recompute", o.recompute, "Keep only the inputs of layers for backward, and compute the rest again there");
  app.add_flag("--eager", o.eager, "Without CUDA graphs, which steps on CUDA are otherwise captured in");
  number("--grad-clip", o.grad_clip, "Largest norm of the gradient; 0: any");
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--dtype", o.dtype, "float32, bfloat16 or (with a loss scale) float16 [float32 on the CPU, bfloat16 on CUDA]")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  number("--eval-every", o.eval_every, "Steps between validations; 0: only at the end");
  app.add_option("--save", o.save, "Checkpoint to write at the end and on Ctrl-C")->type_name("FILE.h5");
  number("--save-every", o.save_every, "Steps between checkpoints; 0: only at the end");
  number("--keep", o.keep, "Checkpoints to keep, with their step in the name; 0: one, under its own name");
  app.add_option("--resume", o.resume,
                 "Checkpoint to go on from, with the same options as before; auto: the newest good one of --save, or none")
      ->type_name("FILE.h5|auto");
  app.add_option("--log", o.log, "CSV file for the loss of every step; --resume appends to it")->type_name("FILE.csv");
  app.add_option("--profile", o.profile,
                 "Chrome trace of steps 6 to 15 of this run, without graphs, of which a table is printed at the end")
      ->type_name("FILE.json");
  app.add_option("--seed", o.seed, "Of the weights and the order of the data")->check(seed())->capture_default_str();
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

}  // namespace lm
