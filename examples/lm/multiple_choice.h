#pragma once
// Questions with several answers, of which a model should prefer the right one.
#include <glade/nn/models/causal_lm.h>

#include <string>
#include <vector>

#include "lm/results.h"
#include "lm/tokenizer.h"

namespace lm {

struct Question {
  std::string query;
  std::vector<std::string> choices;
  std::size_t gold;           ///< the index of the right choice
  std::string file_and_line;  ///< for errors
};

/// Reads a JSON object a line, with the fields query, choices and gold; others are ignored. std::runtime_error that names the
/// file, the line and the cause.
std::vector<Question> read_questions(const std::string& file);

/// acc, the share of questions whose right choice has the highest log-likelihood as a continuation of the query; acc_norm, the
/// same by log-likelihood per byte of the choice; and the number of questions. A choice follows its query after a space unless
/// it begins with one. The model reads `batch` choices at a time. std::runtime_error for a log-likelihood that is not finite.
Metrics multiple_choice(const glade::nn::models::CausalLM& model, const Tokenizer& tokenizer,
                        const std::vector<Question>& questions, std::int64_t batch);

}  // namespace lm
