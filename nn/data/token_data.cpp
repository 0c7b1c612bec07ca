#include <glade/nn/data/token_data.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include <glade/core/format.h>
#include <glade/nn/input_file.h>
#include <glade/nn/output_file.h>

namespace glade::nn::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian, and read as they lie");

/// The first 64 bytes of a token file.
struct Header {
  char magic[8];
  std::uint32_t version, width;  // bytes of a token
  std::uint64_t size, vocab_size;
  std::int64_t separator;  // -1: none
  char unused[24];         // zeros
};
static_assert(sizeof(Header) == 64);

constexpr char kMagic[8] = {'G', 'L', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kLargestVocabulary = std::int64_t{1} << 32;
constexpr std::size_t kBuffer = std::size_t{1} << 20;

int width_of(std::int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

void check_header(const Header& header, std::size_t bytes) {
  if (header.version != kVersion) fail<CheckpointError>("of version {}, expected {}", header.version, kVersion);
  if (header.vocab_size == 0 || header.vocab_size > static_cast<std::uint64_t>(kLargestVocabulary))
    fail<CheckpointError>("its vocabulary has {} tokens, expected 1 to {}", header.vocab_size, kLargestVocabulary);
  if (header.width != 2 && header.width != 4) fail<CheckpointError>("its tokens have {} bytes, expected 2 or 4", header.width);
  if (header.separator < -1 || header.separator >= static_cast<std::int64_t>(header.vocab_size))
    fail<CheckpointError>("its separator is {}, outside its vocabulary of {}", header.separator, header.vocab_size);
  if (!std::ranges::all_of(header.unused, [](char c) { return c == 0; })) fail<CheckpointError>("its header is damaged");
  const std::size_t rest = bytes - sizeof(Header);
  if (header.size > rest / header.width)
    fail<CheckpointError>("truncated: {} tokens of {} bytes in a file of {}", header.size, header.width, bytes);
  if (header.size * header.width != rest)
    fail<CheckpointError>("{} tokens of {} bytes do not fill a file of {}", header.size, header.width, bytes);
}

/// Text in any encoding has few of the control characters that no text needs, and zero bytes only where documents end. What
/// begins with a byte order mark of UTF-16 or UTF-32 is text, too.
void check_text(const InputFile& file) {
  constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1a\n", kInText = "\b\t\n\v\f\r\x1a\x1b";
  constexpr std::size_t kBlocks = 64, kBlock = 4096;  // a large file is sampled
  constexpr double kMostControls = 0.02, kMostZeros = 0.4;
  std::size_t zeros = 0, controls = 0, bytes = 0;
  std::string block;
  for (std::size_t i = 0; i < kBlocks && i * kBlock < file.size(); ++i) {
    const std::size_t begin = file.size() <= kBlocks * kBlock ? i * kBlock : (file.size() - kBlock) / (kBlocks - 1) * i;
    block.resize(std::min(kBlock, file.size() - begin));
    file.read(begin, {reinterpret_cast<std::uint8_t*>(block.data()), block.size()});
    if (i == 0 && block.starts_with(kHdf5))
      fail<CheckpointError>("is an HDF5 file, such as a checkpoint: expected text or a token file");
    if (i == 0 && (block.starts_with("\xff\xfe") || block.starts_with("\xfe\xff"))) return;
    for (const char c : block) {
      zeros += c == 0;
      controls += (c > 0 && c < ' ' && kInText.find(c) == std::string_view::npos) || c == 127;
    }
    bytes += block.size();
  }
  const auto share = [&](std::size_t count) { return static_cast<double>(count) / static_cast<double>(bytes); };
  if (share(zeros) > kMostZeros || share(controls) > kMostControls)
    fail<CheckpointError>(
        "is neither text (of its bytes {:.0f}% are zeros and {:.0f}% control characters) nor a token file (it does not begin "
        "with GLTOKENS)",
        100 * share(zeros), 100 * share(controls));
}

}  // namespace

TokenData::TokenData(const std::vector<std::string>& paths) {
  if (paths.empty()) fail<ValueError>("TokenData: there are no files");
  for (const std::string& path : paths) {
    try {
      const InputFile file(path);
      if (file.size() == 0) fail<CheckpointError>("is empty");
      Header header{};
      if (file.size() >= sizeof header) std::memcpy(&header, file.map(0, sizeof header).get(), sizeof header);
      const bool is_text = std::memcmp(header.magic, kMagic, sizeof kMagic) != 0;
      if (is_text) check_text(file), header.vocab_size = 256, header.separator = kByteSeparator;
      else check_header(header, file.size());

      const auto vocab_size = static_cast<std::int64_t>(header.vocab_size);
      const auto separator = header.separator >= 0 ? std::optional(header.separator) : std::nullopt;
      if (parts_.empty()) {
        is_text_ = is_text;
        vocab_size_ = vocab_size;
        separator_ = separator;
      }
      if (is_text != is_text_)
        fail<CheckpointError>("is {}, but {} is {}", is_text ? "text" : "a token file", parts_[0].path,
                              is_text_ ? "text" : "a token file");
      if (vocab_size != vocab_size_ || separator != separator_)
        fail<CheckpointError>("has a vocabulary of {} and separator {}, but {} one of {} and {}", vocab_size,
                              separator.value_or(-1), parts_[0].path, vocab_size_, separator_.value_or(-1));
      const int width = is_text ? 1 : static_cast<int>(header.width);
      const std::size_t begin = is_text ? 0 : sizeof header, bytes = file.size() - begin;
      if (bytes == 0) fail<CheckpointError>("has no tokens");
      size_ += static_cast<std::int64_t>(bytes) / width;
      parts_.push_back({path, file.map(begin, bytes), width, size_});
    } catch (const CheckpointError& error) {
      fail<CheckpointError>("{}: {}", path, error.what());
    }
  }
}

void TokenData::read(std::int64_t begin, std::span<std::int64_t> tokens) const {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (begin < 0 || begin > size_ || count > size_ - begin)
    fail<IndexError>("TokenData: tokens {} to {} of {}", begin, begin + count, size_);
  std::int64_t part_begin = 0;
  for (const Part& part : parts_) {
    if (tokens.empty()) return;
    if (begin < part.end) {
      const auto here = std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(part.end - begin));
      copy(part, begin - part_begin, tokens.first(here));
      tokens = tokens.subspan(here);
      begin = part.end;
    }
    part_begin = part.end;
  }
}

void TokenData::copy(const Part& part, std::int64_t begin, std::span<std::int64_t> tokens) const {
  const auto widen = [&]<class T>(const T* from) {
    std::int64_t largest = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) largest = std::max(largest, tokens[i] = from[i]);
    if (largest >= vocab_size_)
      fail<CheckpointError>("{}: token {} lies outside its vocabulary of {}: the file is damaged", part.path, largest,
                            vocab_size_);
  };
  const char* from = part.tokens.get() + begin * part.width;  // aligned: the header is of 64 bytes, and pages are mapped
  if (part.width == 1) widen(reinterpret_cast<const std::uint8_t*>(from));
  else if (part.width == 2) widen(reinterpret_cast<const std::uint16_t*>(from));
  else widen(reinterpret_cast<const std::uint32_t*>(from));
}

TokenWriter::TokenWriter(const std::string& path, std::int64_t vocab_size, std::optional<std::int64_t> separator)
    : vocab_size_(vocab_size), separator_(separator) {
  if (vocab_size <= 0 || vocab_size > kLargestVocabulary)
    fail<ValueError>("TokenWriter: vocab_size is {}, expected 1 to {}", vocab_size, kLargestVocabulary);
  if (separator && (*separator < 0 || *separator >= vocab_size))
    fail<ValueError>("TokenWriter: separator is {}, expected a value in [0, {})", *separator, vocab_size);
  file_ = std::make_unique<OutputFile>(path);
  const Header header{};  // its place; written in close()
  file_->write(&header, sizeof header);
}

TokenWriter::~TokenWriter() = default;

void TokenWriter::write(std::span<const std::int64_t> tokens) {
  check_open();
  for (const std::int64_t token : tokens)
    if (token < 0 || token >= vocab_size_)
      fail<IndexError>("TokenWriter: token {} is outside the vocabulary of {}", token, vocab_size_);
  const auto width = static_cast<std::size_t>(width_of(vocab_size_));
  for (const std::int64_t token : tokens) {
    const auto value = static_cast<std::uint32_t>(token);
    const auto* bytes = reinterpret_cast<const char*>(&value);
    buffer_.insert(buffer_.end(), bytes, bytes + width);
    if (buffer_.size() < kBuffer) continue;
    file_->write(buffer_.data(), buffer_.size());
    buffer_.clear();
  }
  size_ += static_cast<std::int64_t>(tokens.size());
}

void TokenWriter::end_document() {
  if (!separator_) fail<ValueError>("TokenWriter: there is no separator to end a document with");
  write(std::span(&*separator_, 1));
}

void TokenWriter::close() {
  check_open();
  if (size_ == 0) fail<ValueError>("TokenWriter: there are no tokens to write");
  file_->write(buffer_.data(), buffer_.size());
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.width = static_cast<std::uint32_t>(width_of(vocab_size_));
  header.size = static_cast<std::uint64_t>(size_);
  header.vocab_size = static_cast<std::uint64_t>(vocab_size_);
  header.separator = separator_.value_or(-1);
  file_->write_at(0, &header, sizeof header);
  file_->commit();
  file_.reset();
}

void TokenWriter::discard() { file_.reset(); }

void TokenWriter::check_open() const {
  if (!file_) fail<ValueError>("TokenWriter: the file is closed");
}

}  // namespace glade::nn::data
