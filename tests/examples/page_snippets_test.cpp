// The C++ of the pages: snippets/<page>.inc holds that of docs/<page>.md, with the page's line numbers, to run in its order.
#undef NDEBUG
#include <cassert>
#include <fstream>
#include <iostream>
#include <sstream>

#include <glade/glade.h>

#include "support/process.h"

namespace glade::operation_page {
#include "snippets/adding_an_operation.inc"
}

namespace glade::tuning_page {
#include "snippets/tuning.inc"
}

namespace glade::testing_support {
namespace {

void run_cpp() {
#include "snippets/cpp.inc"
}

void run_using_linear_attention() {
#include "snippets/using_linear_attention.inc"
}

void run_checkpoint_format() {
#include "snippets/checkpoint_format.inc"
}

/// With what the page's text speaks of, on one process.
void run_distributed() {
  nn::models::GLAConfig config;
  config.vocab_size = 256;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  nn::models::GLAForCausalLM model(config);
  const Tensor inputs = zeros({1, 8}, {DType::int64, kCPU}), targets = inputs;
  const Tensor q = ones({1, 8, 2, 4}), k = q, v = q, gk = q * -0.1;
  std::ofstream("text.txt") << std::string(1 << 20, 'a');
  const auto data = std::make_shared<nn::data::TokenData>(std::vector<std::string>{"text.txt"});
#include "snippets/distributed.inc"
  std::cout << o.shape().str() << " of " << q.shape().str() << ", " << loader.next().inputs.shape().str() << ", shard "
            << averaged.shard() << ", " << nn::load("model.h5").model.size() << " tensors\n";
}

/// What the page shows in its blocks of output.
std::string shown_output(const std::string& name) {
  const std::string page = read_file(GLADE_PAGES "/" + name + ".md"), opening = "```text\n";
  std::string shown;
  for (std::size_t begin = page.find(opening); begin != std::string::npos; begin = page.find(opening, begin)) {
    begin += opening.size();
    shown += page.substr(begin, page.find("```", begin) - begin);
  }
  return shown;
}

/// What `snippets` print, with their error at the end if they throw one.
std::string output_of(void (*snippets)()) {
  std::ostringstream printed;
  std::streambuf* const before = std::cout.rdbuf(printed.rdbuf());
  try {
    snippets();
  } catch (const std::exception& error) {
    printed << error.what() << '\n';
  }
  std::cout.rdbuf(before);
  return printed.str();
}

class PageSnippets : public FolderTest {};

TEST_F(PageSnippets, OfTheGuidePrintWhatItShows) {
  const std::string shown = shown_output("cpp");
  EXPECT_NE(shown, "");
  EXPECT_EQ(output_of(run_cpp), shown);
}

TEST_F(PageSnippets, OfOtherPagesRun) {
  EXPECT_EQ(output_of(run_checkpoint_format), shown_output("checkpoint_format"));
  EXPECT_EQ(output_of(run_using_linear_attention), shown_output("using_linear_attention"));
  EXPECT_EQ(output_of(run_distributed), "[1, 8, 2, 4] of [1, 8, 2, 4], [8, 65536], shard 0, 31 tensors\n");
  EXPECT_TRUE(allclose(tuning_page::chosen, tuning_page::asked_for));
  EXPECT_EQ(tuning_page::row_sum(ones({2, 3})).to_vector<float>(), (std::vector<float>{3, 3}));
}

}  // namespace
}  // namespace glade::testing_support
