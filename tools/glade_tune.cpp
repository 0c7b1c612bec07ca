// glade-tune: times the configurations of operations for given shapes, and keeps the fastest where programs find them.
//
//   glade-tune --shape B4_T2048_H16_K128_V128 --gates gk
//   glade-tune --model config.json --batch 8 --seq-len 2048
//   glade-tune --export tuned.json              glade-tune --import tuned.json
#include <fmt/format.h>
#include <glade/glade.h>

#include <chrono>
#include <optional>

#include "lm/command_line.h"
#include "lm/status_line.h"
#include "problems.h"
#include "report.h"

using namespace glade;
using tuning::Pass;

namespace {

struct Options {
  std::vector<std::string> shapes, gates;
  std::string shapes_file, model, device = "auto", pass = "both", csv, export_path, import_path;
  std::optional<std::string> dtype;
  std::vector<std::int64_t> batches{8}, seq_lens{2048};
  int warmup = 5, repeats = 100;
  bool missing = false;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("--shape", o.shapes, "Shape to tune, such as B4_T2048_H16_K128_V128, with _G4 for heads of key and value")
      ->type_name("SHAPE");
  app.add_option("--shapes", o.shapes_file, "File of shapes, one a line: SHAPE [GATES] [DTYPE] [packed]")->type_name("FILE");
  app.add_option("--model", o.model, "JSON config of a model whose layers to tune, or the folder that has it")->type_name("FILE");
  app.add_option("--batch", o.batches, "Sequences, for --model; several to tune each")
      ->transform(lm::positive_integer())
      ->capture_default_str();
  app.add_option("--seq-len", o.seq_lens, "Tokens of a sequence, for --model; several to tune each")
      ->transform(lm::positive_integer())
      ->capture_default_str();
  app.add_option("--gates", o.gates, "none, or g, g_gamma, gk, gv with + between them; several to tune each [gk]")
      ->type_name("GATES");
  app.add_option("--dtype", o.dtype, "Type of query, key and value [float32 on the CPU, bfloat16 on CUDA; a model's own]")
      ->check(CLI::IsMember({"float64", "float32", "bfloat16", "float16"}));
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--pass", o.pass, "Passes to tune")
      ->check(CLI::IsMember({"forward", "backward", "both"}))
      ->capture_default_str();
  app.add_option("--warmup", o.warmup, "Runs of each candidate before those that are timed")
      ->transform(lm::count())
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--repeats", o.repeats, "Timed runs of each candidate")
      ->transform(lm::count())
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_flag("--missing", o.missing, "Tune only what no cache has");
  app.add_option("--csv", o.csv, "File for all rows of the tables")->type_name("FILE.csv");
  app.add_option("--import", o.import_path, "First add the choices of this file to the caches")->type_name("FILE.json");
  app.add_option("--export", o.export_path, "At last write all choices of the caches to this file")->type_name("FILE.json");
}

std::vector<AttentionProblem> problems_of(const Options& o) {
  AttentionProblem defaults;
  defaults.device = Device::parse(o.device);
  defaults.dtype = o.dtype ? dtype_from_name(*o.dtype) : defaults.device.is_cuda() ? DType::bfloat16 : DType::float32;
  defaults.sequences = o.batches.front();
  defaults.length = o.seq_lens.front();
  tune::set_gates(defaults, "gk");

  std::vector<AttentionProblem> problems;
  problems.reserve(o.shapes.size());
  for (const std::string& shape : o.shapes) problems.push_back(tune::parse_problem(shape, defaults));
  if (!o.shapes_file.empty())
    for (const AttentionProblem& p : tune::read_problems(o.shapes_file, defaults)) problems.push_back(p);
  if (!o.gates.empty()) {
    std::vector<AttentionProblem> with_gates;
    for (AttentionProblem p : problems)
      for (const std::string& gates : o.gates) {
        tune::set_gates(p, gates);
        with_gates.push_back(p);
      }
    problems = with_gates;
  }
  if (!o.model.empty()) {
    AttentionProblem layer = tune::problem_of_model(o.model, defaults);
    if (o.dtype) layer.dtype = defaults.dtype;
    for (const std::int64_t batch : o.batches)
      for (const std::int64_t seq_len : o.seq_lens) {
        layer.sequences = batch;
        layer.length = seq_len;
        problems.push_back(layer);
      }
  }
  return problems;
}

std::vector<Pass> passes_of(const Options& o) {
  if (o.pass == "both") return {Pass::forward, Pass::backward};
  return {o.pass == "forward" ? Pass::forward : Pass::backward};
}

/// The passes to tune.
std::vector<AttentionProblem> jobs_of(const Options& o) {
  std::vector<AttentionProblem> jobs;
  for (AttentionProblem problem : problems_of(o))
    for (const Pass pass : passes_of(o)) {
      problem.pass = pass;
      if (!o.missing || RecurrentAttention().choose(problem).source == tuning::Source::heuristic) jobs.push_back(problem);
    }
  return jobs;
}

/// What the rules of the plan choose where nothing is tuned.
std::string plan_text(AttentionProblem problem) {
  problem.gpu = AttentionProblem::gpu_of(problem.device);
  problem.gradients = {.q = true, .k = true, .v = true, .g = problem.g, .gk = problem.gk, .gv = problem.gv};
  return plan(problem).to_string();
}

std::string name_of(const AttentionProblem& job) { return tune::describe(job) + ' ' + tuning::pass_name(job.pass); }

tune::Tuned tune_one(const AttentionProblem& problem, const Options& o, const std::function<void(double)>& on_progress) {
  const RecurrentAttention module;
  const double candidates = static_cast<double>(module.candidate_cfgs(problem).size());
  double done = 0;
  const auto count = [&](const tuning::Trial&) { on_progress(std::min(1.0, ++done / candidates)); };
  const tuning::TuningOptions options{.warmup = o.warmup, .repeats = o.repeats, .on_trial = count};
  return {module.name(), name_of(problem), plan_text(problem), tuning::to_json(module.heuristic_cfg(problem)),
          module.tune(problem, options)};
}

/// Before anything is tuned or written.
void check(const Options& o) {
  if (o.shapes.empty() && o.shapes_file.empty() && o.model.empty() && o.export_path.empty() && o.import_path.empty())
    throw lm::UsageError("give one of --shape, --shapes, --model, --import and --export");
  std::vector<std::string> inputs{o.shapes_file, tune::config_file(o.model)};
  const std::vector<std::pair<std::string, std::string>> outputs{{"--csv", o.csv}, {"--export", o.export_path}};
  for (const auto& [option, path] : outputs) {
    if (path.empty()) continue;
    lm::check_folder(option, path);
    lm::check_no_input(option, path, inputs);
  }
  if (!o.csv.empty()) lm::check_no_input("--csv", o.csv, {o.import_path});  // --export writes what --import brought, and more
  lm::check_distinct(outputs);
}

int run(const Options& o) {
  check(o);
  if (!o.import_path.empty())
    fmt::print("{} choices from {} to {}\n", tuning::import_cache(o.import_path), o.import_path, tuning::cache_folder());

  tuning::set_autotune_policy(tuning::AutotunePolicy::heuristic);
  const std::vector<AttentionProblem> jobs = jobs_of(o);
  std::optional<tune::CsvFile> csv;
  if (!o.csv.empty()) csv.emplace(o.csv);
  std::vector<tune::Tuned> all;
  lm::StatusLine line(stderr);
  const auto start = std::chrono::steady_clock::now();
  for (const AttentionProblem& job : jobs) {
    const auto show = [&](double share) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      line.show((static_cast<double>(all.size()) + share) / static_cast<double>(jobs.size()),
                {fmt::format("{} of {}", all.size(), jobs.size()), lm::clock_time(seconds), name_of(job)});
    };
    if (line.on_terminal()) show(0);
    all.push_back(tune_one(job, o, [&](double share) {
      if (line.is_due()) show(share);
    }));
    line.erase();
    tune::print_table(all.back());
    if (csv) csv->add(all.back());
  }
  if (!all.empty()) tune::print_summary(all);
  if (!o.export_path.empty()) fmt::print("{} choices to {}\n", tuning::export_cache(o.export_path), o.export_path);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Times the configurations of glade's operations for given shapes, and keeps the fastest for the programs that run "
      "with this cache folder ($GLADE_CACHE_DIR).");
  app.name("glade-tune");
  add_options(app, options);
  return lm::run(app, argc, argv, [&] { return run(options); });
}
