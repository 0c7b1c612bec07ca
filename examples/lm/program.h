#pragma once
// What the example programs and glade-tune share: errors, the standard output, files to write, Ctrl-C.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lm {

/// Options that cannot be followed.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Ends a program with exit code 1 and no message: another process gives it.
struct Silent {};

/// The text with ? for control characters, which a terminal obeys and files may have in names and texts, but for those to keep.
std::string printable(const std::string& text, const std::string& keep = "");
/// Writes text to a stream at once. What cannot be written is lost, and flush_output() says so at the end: a terminal that is
/// gone or a disk that is full must not end a program before it saves.
void write_text(std::FILE* stream, const std::string& text);
/// Brings what was printed to where the standard output leads. std::runtime_error where that fails, or did before.
void flush_output();

/// UsageError where `path`, which `option` names for a file to write, lies in no folder or in one that cannot be written to.
void check_folder(const std::string& option, const std::string& path);
/// UsageError where `path`, which `option` names for a file to write, or the temporary file beside it
/// ("m.h5.tmp" for "m.h5") is one of `inputs`.
void check_no_input(const std::string& option, const std::string& path, const std::vector<std::string>& inputs);
/// UsageError where two of `outputs`, options and the paths they name for files to write, mean the same file, or
/// one the temporary file of another. Empty: none.
void check_distinct(const std::vector<std::pair<std::string, std::string>>& outputs);

/// From here on SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal is closed; not under nohup) only set what interrupted()
/// returns. A second one ends the program at once. A pipe that nobody reads is an error of writing, and no signal.
void catch_interrupts();
/// The signal that came, 0 for none.
int interrupted();

}  // namespace lm
