#include "lm/multiple_choice.h"

#include <fmt/format.h>
#include <glade/core/json.h>
#include <glade/glade.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lm/status_line.h"

namespace lm {

using namespace glade;
using nn::models::CausalLM;

namespace {

/// A query and one choice.
struct Request {
  Tokens tokens;
  std::int64_t context = 0;  ///< of them, those of the query
};

/// As lm-eval encodes them: spaces at the end of the query go to the choice, and the tokens of both together are cut where those
/// of the query alone end.
Request encode(const Tokenizer& tokenizer, const Question& question, const std::string& choice) {
  const std::string text = question.query + (choice.starts_with(' ') ? "" : " ") + choice;
  const std::size_t end = question.query.find_last_not_of(" \t\n\r\f\v");
  if (end == std::string::npos) throw std::runtime_error(question.file_and_line + ": the query is empty");
  Request request{tokenizer.encode(text)};
  request.context = static_cast<std::int64_t>(tokenizer.encode(question.query.substr(0, end + 1)).size());
  if (request.context >= static_cast<std::int64_t>(request.tokens.size()))
    throw std::runtime_error(question.file_and_line + ": a choice adds no token to the query");
  return request;
}

/// The log-likelihoods of the choices after their queries, computed in one row.
std::vector<double> log_likelihoods(const CausalLM& model, std::span<const Request> requests) {
  const Device device = model.lm_head.weight.device();
  Tokens ids, cu_seqlens{0};
  for (const Request& request : requests) {
    ids.insert(ids.end(), request.tokens.begin(), request.tokens.end() - 1);
    cu_seqlens.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const auto row = [&](const Tokens& tokens) {
    return Tensor::from_vector(tokens, {1, static_cast<std::int64_t>(tokens.size())}, device);
  };
  const Tensor x =
      model.model.forward(row(ids), nullptr, Tensor::from_vector(cu_seqlens, {static_cast<std::int64_t>(cu_seqlens.size())}));
  std::vector<double> result;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& request = requests[i];
    const Tokens targets(request.tokens.begin() + request.context, request.tokens.end());
    const Tensor part = slice(x, 1, cu_seqlens[i] + request.context - 1, cu_seqlens[i + 1]);
    result.push_back(
        -linear_cross_entropy(part, model.lm_head.weight, row(targets), {.reduction = Reduction::sum}).item<double>());
  }
  return result;
}

Question parse_question(const std::string& line) {
  const auto fields = glade::parse_json(line);
  if (fields.is_discarded()) throw std::runtime_error("is not JSON");
  Question question{fields.at("query").get<std::string>(), fields.at("choices").get<std::vector<std::string>>(),
                    fields.at("gold").get<std::size_t>(), ""};
  if (question.choices.empty()) throw std::runtime_error("there are no choices");
  if (std::ranges::count(question.choices, "") > 0) throw std::runtime_error("a choice is empty");
  if (!fields.at("gold").is_number_unsigned() || question.gold >= question.choices.size())
    throw std::runtime_error(
        fmt::format("gold is {}, expected the index of one of {} choices", fields.at("gold").dump(), question.choices.size()));
  return question;
}

}  // namespace

std::vector<Question> read_questions(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(fmt::format("{}: cannot be opened: {}", file, std::strerror(errno)));
  std::vector<Question> questions;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{} line {}", file, number);
    try {
      questions.push_back(parse_question(line));
    } catch (const nlohmann::json::exception&) {
      throw std::runtime_error(where + R"(: expected {"query": text, "choices": [text, ...], "gold": index})");
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(where + ": " + error.what());
    }
    questions.back().file_and_line = where;
  }
  if (questions.empty()) throw std::runtime_error(file + ": has no questions");
  return questions;
}

Metrics multiple_choice(const CausalLM& model, const Tokenizer& tokenizer, const std::vector<Question>& questions,
                        std::int64_t batch) {
  const NoGradGuard no_grad;
  std::vector<Request> requests;
  for (const Question& question : questions)
    for (const std::string& choice : question.choices) requests.push_back(encode(tokenizer, question, choice));

  StatusLine line(stderr);
  std::vector<double> scores;
  while (scores.size() < requests.size()) {
    const auto next = std::span(requests).subspan(scores.size());
    const auto part = log_likelihoods(model, next.first(std::min(next.size(), static_cast<std::size_t>(batch))));
    scores.insert(scores.end(), part.begin(), part.end());
    if (line.is_due())
      line.show(static_cast<double>(scores.size()) / static_cast<double>(requests.size()),
                {fmt::format("{} of {} answers", scores.size(), requests.size())});
  }

  double right = 0, right_by_byte = 0;
  auto score = scores.begin();
  for (const Question& question : questions) {
    const std::vector<double> plain(score, score + static_cast<std::ptrdiff_t>(question.choices.size()));
    if (!std::ranges::all_of(plain, [](double x) { return std::isfinite(x); }))
      throw std::runtime_error(question.file_and_line + ": the log-likelihood of a choice is not finite");
    std::vector<double> by_byte = plain;
    for (std::size_t i = 0; i < by_byte.size(); ++i) by_byte[i] /= static_cast<double>(question.choices[i].size());
    const auto best = [](const std::vector<double>& x) {
      return static_cast<std::size_t>(std::ranges::max_element(x) - x.begin());
    };
    right += best(plain) == question.gold;
    right_by_byte += best(by_byte) == question.gold;
    score += static_cast<std::ptrdiff_t>(question.choices.size());
  }
  const auto n = static_cast<double>(questions.size());
  return {{"acc", right / n}, {"acc_norm", right_by_byte / n}, {"questions", n}};
}

}  // namespace lm
