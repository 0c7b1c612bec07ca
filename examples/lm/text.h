#pragma once
// Text as training data: bytes are the tokens.
#include <glade/core/tensor.h>
#include <string>
#include <vector>

namespace lm {

/// Sequences of bytes with the byte after each, both [sequences, seq_len], int64.
struct Batch {
  glade::Tensor inputs, targets;
};

/// A text that lives on the device: its last twentieth is for validation, the rest for training.
class Text {
 public:
  /// Reads the files, one after the other. std::runtime_error for a file that cannot be read or is empty, and for a text
  /// in which either part is shorter than a sequence and the byte after it.
  Text(const std::vector<std::string>& files, std::int64_t seq_len, glade::Device device);

  std::int64_t training_bytes() const { return training_bytes_; }
  std::int64_t validation_bytes() const { return bytes_.numel() - training_bytes_; }

  /// `sequences` random pieces of the training part: a function of seed and step alone, so that a resumed run goes on with
  /// the same ones.
  Batch training_batch(std::int64_t sequences, std::uint64_t seed, std::int64_t step) const;
  /// The same pieces of the validation part at every call: at most 65536 bytes, spread evenly.
  std::vector<Batch> validation_batches(std::int64_t sequences) const;

 private:
  Batch batch(const glade::Tensor& starts) const;

  std::int64_t seq_len_;
  std::int64_t training_bytes_;
  glade::Tensor bytes_;
};

}  // namespace lm
