// The session in docs/programs.md: its commands print what the page shows, but for numbers and what a model writes.
#include <regex>
#include <sstream>

#include "support/process.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  return lines;
}

struct Command {
  std::string text;
  Lines shown;  ///< "^C" among them is Ctrl-C
};

std::vector<Command> session() {
  const std::string page = read_file(GLADE_PAGE);
  const std::size_t begin = page.find("```console\n") + 11;
  std::vector<Command> commands;
  for (const std::string& line : lines_of(page.substr(begin, page.find("```", begin) - begin))) {
    if (line.starts_with("$ ")) commands.push_back({line.substr(2), {}});
    else if (commands.empty()) ADD_FAILURE() << "no command: " << line;
    else if (commands.back().text.ends_with('\\')) commands.back().text.replace(commands.back().text.size() - 1, 1, line);
    else commands.back().shown.push_back(line);
  }
  return commands;
}

/// Without numbers, and without the lines of progress, which come every few seconds.
Lines masked(const Lines& lines) {
  static const std::regex number(R"([0-9.]*[0-9](e-[0-9]+)?)"), progress(R"( *[0-9]+%  .*)");
  Lines result;
  for (const std::string& line : lines)
    if (!std::regex_match(line, progress)) result.push_back(std::regex_replace(line, number, "0"));
  return result;
}

Lines run(const Command& command) {
  const std::string set_up = "export PATH=" GLADE_EXAMPLES ":$PATH OMP_NUM_THREADS=1; ";
  const auto interrupt = std::ranges::find(command.shown, "^C");
  if (interrupt == command.shown.end()) return lines_of(run_shell(set_up + command.text).output);
  const auto before = interrupt - command.shown.begin();
  const std::string wait = "until [ $(cat out.txt | grep -vc '%  ') -ge " + std::to_string(before) + " ]; do sleep 0.05; done; ";
  const ProcessResult result = run_shell(set_up + command.text + " >out.txt 2>&1 & " + wait + "sleep 0.3; kill -INT $!; wait $!");
  EXPECT_EQ(result.exit_code, 130) << result.output;
  Lines lines;
  for (const std::string& line : masked(lines_of(read_file("out.txt")))) {
    if (static_cast<std::ptrdiff_t>(lines.size()) == before) lines.push_back("^C");
    lines.push_back(line);
  }
  return lines;
}

class ProgramsPage : public FolderTest {};

TEST_F(ProgramsPage, SessionRunsAsShown) {
  std::filesystem::copy(std::filesystem::path(GLADE_PAGE).parent_path().parent_path() / "README.md", ".");
  const std::vector<Command> commands = session();
  ASSERT_GE(commands.size(), 7u);
  for (const Command& command : commands) {
    SCOPED_TRACE(command.text);
    const Lines lines = run(command);
    if (command.text.starts_with("generate")) {  // the prompt, then what the model makes of it
      const std::size_t quote = command.text.find('"') + 1;
      const std::string prompt = command.text.substr(quote, command.text.find('"', quote) - quote);
      ASSERT_FALSE(lines.empty());
      EXPECT_TRUE(lines[0].starts_with(prompt)) << lines[0];
      EXPECT_TRUE(command.shown.at(0).starts_with(prompt));
    } else {
      EXPECT_EQ(masked(lines), masked(command.shown));
    }
  }
}

}  // namespace
}  // namespace glade::testing_support
