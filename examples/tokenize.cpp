// tokenize: text becomes a token file for train_lm, byte by byte, with a zero byte after every document.
//
//   tokenize --output books.bin *.txt                            every file is a document
//   tokenize --output lines.bin --separator $'\n' text.txt       every line
//
// `python -m glade.tokenize` does the same with the tokens of any tokenizer.json.
#include <fmt/format.h>
#include <glade/nn/data/token_data.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "lm/byte_progress.h"
#include "lm/command_line.h"

namespace fs = std::filesystem;
using glade::nn::data::TokenWriter;

namespace {

struct Options {
  std::vector<std::string> files;
  std::string output, separator;
};

class Tokenizer {
 public:
  explicit Tokenizer(const Options& options)
      : separator_(options.separator),
        progress_(total(options.files)),
        writer_(options.output, 256, glade::nn::data::kByteSeparator) {
    for (const std::string& file : options.files) add(file);
    writer_.close();
    progress_.erase();
  }

  void print_summary(const std::string& output) const {
    fmt::print("{}: {} documents, {} tokens\n", output, documents_, tokens_ + documents_);
  }

 private:
  static std::int64_t total(const std::vector<std::string>& files) {
    std::int64_t bytes = 0;
    for (const std::string& file : files) {
      if (!fs::is_regular_file(file)) throw std::runtime_error(fmt::format("{}: is no file", file));
      bytes += static_cast<std::int64_t>(fs::file_size(file));
    }
    return bytes;
  }

  void add(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::string text;  // what was read and not written
    while (in) {
      constexpr std::size_t kBlock = std::size_t{1} << 20;
      const std::size_t before = text.size();
      text.resize(before + kBlock);
      in.read(text.data() + before, kBlock);
      text.resize(before + static_cast<std::size_t>(in.gcount()));
      if (text.find('\0', before) != std::string::npos)
        throw std::runtime_error(fmt::format("{}: has a zero byte, which stands for the end of a document", path));
      progress_.add(in.gcount(), path);
      write_documents(text);
    }
    if (in.bad() || !in.eof()) throw std::runtime_error(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    write(text);
    end_document();
  }

  /// Writes the text but for what may be the beginning of a separator.
  void write_documents(std::string& text) {
    std::size_t at = 0;
    if (!separator_.empty()) {
      for (std::size_t end; (end = text.find(separator_, at)) != std::string::npos; at = end + separator_.size()) {
        write(std::string_view(text).substr(at, end - at));
        end_document();
      }
    }
    const std::size_t kept = std::min(text.size() - at, std::max<std::size_t>(separator_.size(), 1) - 1);
    write(std::string_view(text).substr(at, text.size() - kept - at));
    text.erase(0, text.size() - kept);
  }

  void write(std::string_view text) {
    buffer_.clear();
    for (const char c : text) buffer_.push_back(static_cast<unsigned char>(c));
    writer_.write(buffer_);
    in_document_ = in_document_ || !text.empty();
    tokens_ += static_cast<std::int64_t>(text.size());
  }

  void end_document() {
    if (!in_document_) return;
    writer_.end_document();
    ++documents_;
    in_document_ = false;
  }

  const std::string separator_;
  lm::ByteProgress progress_;
  TokenWriter writer_;
  std::vector<std::int64_t> buffer_;
  std::int64_t tokens_ = 0, documents_ = 0;
  bool in_document_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Writes text as a token file for train_lm, byte by byte.", "tokenize");
  Options options;
  app.add_option("files", options.files, "Text files; a document ends where its file ends")->required()->type_name("FILE");
  app.add_option("--output", options.output, "Token file to write")->required()->type_name("FILE.bin");
  app.add_option("--separator", options.separator, "Text that also ends documents");
  return lm::run(app, argc, argv, [&] {
    lm::check_no_input("--output", options.output, options.files);
    Tokenizer(options).print_summary(options.output);
    return 0;
  });
}
