#pragma once
// Training text as tokens, in files that are mapped into memory. docs/data.md describes the format.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace glade::nn {
class OutputFile;
}

namespace glade::nn::data {

/// The separator of text and of the byte tokenizer: no text contains it.
inline constexpr std::int64_t kByteSeparator = 0;

/// Tokens in a row, from one file or several: token files, or text, whose bytes are the tokens (256 of them). The files must
/// stay as they are while this lives; they may be replaced or deleted.
class TokenData {
 public:
  /// CheckpointError that names the file and the cause: missing, empty, damaged, of another version, of another vocabulary
  /// than the first one, text beside token files, or neither: an HDF5 file, or another binary (docs/data.md says how it is
  /// known). ValueError for no files.
  explicit TokenData(const std::vector<std::string>& paths);

  std::int64_t size() const { return size_; }  ///< The number of tokens of all files together.
  /// All tokens are in [0, vocab_size).
  std::int64_t vocab_size() const { return vocab_size_; }
  /// The token that ends a document, where there is one.
  std::optional<std::int64_t> separator() const { return separator_; }
  /// Whether the files are text.
  bool is_text() const { return is_text_; }

  /// Copies as many tokens as there is room for, from number `begin` on. IndexError where there are fewer; CheckpointError that
  /// names the file for one outside the vocabulary.
  void read(std::int64_t begin, std::span<std::int64_t> tokens) const;

 private:
  struct Part {
    std::string path;
    std::shared_ptr<const char> tokens;
    int width;         // bytes of a token
    std::int64_t end;  // of its tokens among all
  };
  void copy(const Part& part, std::int64_t begin, std::span<std::int64_t> tokens) const;

  std::vector<Part> parts_;
  std::int64_t size_ = 0, vocab_size_ = 0;
  std::optional<std::int64_t> separator_;
  bool is_text_ = false;
};

/// Writes a token file, which takes the place of an older one only when it is whole.
class TokenWriter {
 public:
  /// Tokens take two bytes for a vocabulary of up to 65536, else four. ValueError for a vocabulary or separator out of range;
  /// CheckpointError, here and below, where the file cannot be written.
  TokenWriter(const std::string& path, std::int64_t vocab_size, std::optional<std::int64_t> separator = {});
  /// discard(), unless it was closed.
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Appends. IndexError for a token outside the vocabulary; nothing is appended then.
  void write(std::span<const std::int64_t> tokens);
  /// Appends the separator: the document is complete. ValueError where there is none.
  void end_document();
  /// Gives the file its name. ValueError without any tokens.
  void close();
  /// Leaves nothing behind.
  void discard();

 private:
  void check_open() const;

  std::unique_ptr<OutputFile> file_;
  std::int64_t vocab_size_, size_ = 0;
  std::optional<std::int64_t> separator_;
  std::vector<char> buffer_;
};

}  // namespace glade::nn::data
