// evaluate: how well a language model predicts text, and how often it prefers the right answer.
//
//   evaluate --checkpoint model.h5 --data text.txt
//   evaluate --checkpoint gla-1.3B --task questions.jsonl --log results.csv
#include <deque>

#include "lm/command_line.h"
#include "lm/model.h"
#include "lm/multiple_choice.h"
#include "lm/perplexity.h"
#include "lm/results.h"
#include "lm/tokenizer.h"

namespace {

struct Options {
  lm::ModelOptions model;
  std::vector<std::string> data, tasks;
  std::string tokenizer = "auto", log;
  std::int64_t seq_len = 2048, batch = 16;
  bool packed = false;
};

void add_options(CLI::App& app, Options& o) {
  o.model.add_to(app);
  app.add_option("--data", o.data, "Text, or token files (see tokenize), to predict token by token")->type_name("FILE");
  app.add_option("--task", o.tasks, R"(Questions, a JSON object a line: {"query": text, "choices": [text, ...], "gold": index})")
      ->type_name("FILE.jsonl");
  lm::add_tokenizer_option(app, o.tokenizer);
  app.add_option("--seq-len", o.seq_len,
                 "Tokens that the model reads at a time; its state is carried on from one window to the next")
      ->transform(lm::positive_integer())
      ->capture_default_str();
  app.add_option("--batch", o.batch, "Answers that the model reads at a time")
      ->transform(lm::positive_integer())
      ->capture_default_str();
  app.add_flag("--packed", o.packed, "Keep documents apart: the state begins anew after every separator (in text: zero bytes)");
  app.add_option("--log", o.log, "CSV file for the results: file, metric, value")->type_name("FILE.csv");
}

void check(const Options& o) {
  if (o.data.empty() && o.tasks.empty()) throw lm::UsageError("give --data, --task or both");
  if (o.log.empty()) return;
  lm::check_folder("--log", o.log);
  for (const auto* inputs : {&o.data, &o.tasks}) lm::check_no_input("--log", o.log, *inputs);
  lm::check_no_input("--log", o.log, {o.model.checkpoint});
}

int evaluate(const Options& o) {
  check(o);
  // All inputs come first: what is wrong with the last shows before minutes went into the others.
  std::vector<std::vector<lm::Question>> tasks;
  tasks.reserve(o.tasks.size());
  for (const std::string& file : o.tasks) tasks.push_back(lm::read_questions(file));
  const auto model = lm::open_model(o.model);
  std::unique_ptr<lm::Tokenizer> opened;
  const lm::GetTokenizer tokenizer = [&]() -> const lm::Tokenizer& {
    if (!opened) opened = lm::open_tokenizer(o.tokenizer, o.model.checkpoint, lm::vocab_size(*model));
    return *opened;
  };
  if (!tasks.empty()) tokenizer();
  std::deque<lm::TokenSource> sources;
  for (const std::string& file : o.data) sources.emplace_back(file, tokenizer, lm::vocab_size(*model), o.packed);

  lm::Results results(o.log);
  for (const lm::TokenSource& source : sources) results.add(source.file(), lm::perplexity(*model, source, o.seq_len));
  for (std::size_t i = 0; i < tasks.size(); ++i)
    results.add(o.tasks[i], lm::multiple_choice(*model, tokenizer(), tasks[i], o.batch));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures how well a language model predicts text and answers multiple-choice questions.", "evaluate");
  Options options;
  add_options(app, options);
  return lm::run(app, argc, argv, [&] { return evaluate(options); });
}
