#include "lm/text.h"

#include <fmt/format.h>
#include <glade/core/generator.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/shape/shape.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace lm {
namespace {

using namespace glade;

std::vector<std::uint8_t> read_files(const std::vector<std::string>& files) {
  std::vector<std::uint8_t> text;
  for (const std::string& file : files) {
    if (std::filesystem::is_directory(file)) throw std::runtime_error(fmt::format("cannot read {}: it is a folder", file));
    std::ifstream in(file, std::ios::binary);
    if (!in) throw std::runtime_error(fmt::format("cannot read {}: {}", file, std::strerror(errno)));
    const std::size_t before = text.size();
    text.insert(text.end(), std::istreambuf_iterator<char>(in), {});
    if (in.bad()) throw std::runtime_error(fmt::format("cannot read {}: {}", file, std::strerror(errno)));
    if (text.size() == before) throw std::runtime_error(fmt::format("{} is empty", file));
  }
  return text;
}

}  // namespace

Text::Text(const std::vector<std::string>& files, std::int64_t seq_len, Device device) : seq_len_(seq_len) {
  const std::vector<std::uint8_t> text = read_files(files);
  const auto size = static_cast<std::int64_t>(text.size());
  training_bytes_ = size - size / 20;
  if (size - training_bytes_ < seq_len + 1)
    throw std::runtime_error(fmt::format("the data has {} bytes, {} of them for validation: too few for sequences of {} bytes",
                                         size, size - training_bytes_, seq_len));
  bytes_ = Tensor::from_vector(text, device);
}

Batch Text::batch(const Tensor& starts) const {
  const Tensor positions = unsqueeze(starts, 1) + arange(0, seq_len_ + 1, 1, {DType::int64, bytes_.device()});
  const Tensor tokens = to(reshape(index_select(bytes_, 0, flatten(positions)), positions.shape()), DType::int64);
  return {slice(tokens, 1, 0, seq_len_), slice(tokens, 1, 1, seq_len_ + 1)};
}

Batch Text::training_batch(std::int64_t sequences, std::uint64_t seed, std::int64_t step) const {
  Generator generator;
  generator.set_state({~seed, static_cast<std::uint64_t>(step * sequences)});  // ~: other numbers than the initial weights
  const auto starts = static_cast<double>(training_bytes_ - seq_len_);
  return batch(to(uniform({sequences}, 0, starts, {DType::float64, bytes_.device()}, generator), DType::int64));
}

std::vector<Batch> Text::validation_batches(std::int64_t sequences) const {
  const std::int64_t pieces = std::clamp<std::int64_t>(65536 / seq_len_, 1, validation_bytes() / (seq_len_ + 1));
  const std::int64_t distance = validation_bytes() / pieces;
  const Tensor starts = arange(0, pieces, 1, {DType::int64, bytes_.device()}) * distance + training_bytes_;
  std::vector<Batch> batches;
  for (const Tensor& some : split(starts, sequences)) batches.push_back(batch(some));
  return batches;
}

}  // namespace lm
