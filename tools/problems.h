#pragma once
// What glade-tune is asked to tune.
#include <glade/ops/linear_attention/attention_module.h>

#include <string>
#include <vector>

namespace tune {

/// "B4_T2048_H16_K128_V128 gk bfloat16"; G (heads of key and value) is named where it differs from H, and "packed" where
/// sequences are.
std::string describe(const glade::AttentionProblem& problem);

/// Reads such a line; what it leaves out is as in `defaults`. ValueError, saying what was expected.
glade::AttentionProblem parse_problem(const std::string& line, const glade::AttentionProblem& defaults);
/// "none", or gates with + between them: "g+gk".
void set_gates(glade::AttentionProblem& problem, const std::string& gates);
/// A problem a line; '#' starts a comment. ValueError where there is none.
std::vector<glade::AttentionProblem> read_problems(const std::string& path, const glade::AttentionProblem& defaults);
/// The file that `path` means as a model: itself, or the config.json in a folder.
std::string config_file(const std::string& path);
/// The recurrence of a model's layers, from its JSON config_file(); the rest as in `defaults`.
glade::AttentionProblem problem_of_model(const std::string& path, const glade::AttentionProblem& defaults);

}  // namespace tune
