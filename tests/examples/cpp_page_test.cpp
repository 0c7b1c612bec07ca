// The snippets of docs/cpp.md, compiled and run in their order, print what the page shows.
#undef NDEBUG
#include <cassert>
#include <iostream>
#include <sstream>

#include <glade/glade.h>

#include "support/process.h"

namespace glade::testing_support {
namespace {

void run_snippets() {
#include "cpp_page_snippets.inc"  // made of the page, with its line numbers
}

/// What stands in the page's blocks of output.
std::string shown_output() {
  const std::string page = read_file(GLADE_PAGE), opening = "```text\n";
  std::string shown;
  for (std::size_t begin = page.find(opening); begin != std::string::npos; begin = page.find(opening, begin)) {
    begin += opening.size();
    shown += page.substr(begin, page.find("```", begin) - begin);
  }
  return shown;
}

class CppPage : public FolderTest {};

TEST_F(CppPage, SnippetsPrintWhatThePageShows) {
  std::ostringstream printed;
  std::streambuf* const before = std::cout.rdbuf(printed.rdbuf());
  try {
    run_snippets();
  } catch (const std::exception& error) {
    printed << error.what() << '\n';
  }
  std::cout.rdbuf(before);
  EXPECT_EQ(printed.str(), shown_output());
}

}  // namespace
}  // namespace glade::testing_support
