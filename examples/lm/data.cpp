#include "lm/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace lm {

using namespace glade;
using nn::data::Batch;

Data::Data(const std::vector<std::string>& files, std::int64_t seq_len, bool packed)
    : tokens_(std::make_shared<nn::data::TokenData>(files)),
      training_size_(tokens_->size() - tokens_->size() / 20),
      seq_len_(seq_len),
      packed_(packed) {
  if (validation_size() < seq_len + 1)
    throw std::runtime_error(fmt::format("the data has {0} {1}s, {2} of them for validation: too few for sequences of {3} {1}s",
                                         tokens_->size(), unit(), validation_size(), seq_len));
}

std::vector<Batch> Data::validation_batches(std::int64_t sequences, Device device, const ProcessGroup& group,
                                            const ProcessGroup& sequence_group) const {
  const std::int64_t pieces = std::clamp<std::int64_t>(65536 / seq_len_, 1, validation_size() / (seq_len_ + 1));
  const std::int64_t distance = validation_size() / pieces;
  std::vector<Batch> batches;
  for (std::int64_t first = 0; first < pieces; first += sequences) {
    std::vector<std::int64_t> starts;
    const auto [begin, end] = group.share(std::min(pieces - first, sequences));
    for (std::int64_t i = first + begin; i < first + end; ++i) starts.push_back(training_size_ + i * distance);
    const bool has_none = starts.empty();  // then it takes part all the same: ranks may gather parameters together
    if (has_none) starts.push_back(training_size_);
    const auto tokens = sequence_group.share(packed_ ? static_cast<std::int64_t>(starts.size()) * seq_len_ : seq_len_);
    Batch& batch = batches.emplace_back(nn::data::make_batch(*tokens_, starts, seq_len_, packed_, tokens));
    if (has_none) {
      fill_data(batch.targets, -100);
      batch.counted = 0;
    }
    batch.inputs = to_data(batch.inputs, device);
    batch.targets = to_data(batch.targets, device);
  }
  return batches;
}

}  // namespace lm
