#pragma once
// What a training run was made with, as its checkpoints hold it. docs/checkpoint_format.md describes it.
#include <glade/nn/checkpoint.h>
#include <glade/nn/data/token_data.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lm {

/// Gives options of a run their values: those of the command line, else those of the checkpoint to resume from, else defaults. An
/// option that would make another run of it is refused; another schedule is only worth a warning. Checkpoints that were written
/// before settings were saved hold none.
class RunSettings {
 public:
  /// `resumed` is null for a new run.
  explicit RunSettings(const glade::nn::Checkpoint* resumed);

  /// CheckpointError, naming `option` and both values, where `given` is another value than the checkpoint's.
  std::int64_t fixed(const std::string& option, std::optional<std::int64_t> given, std::int64_t otherwise);
  /// The same for the tokens of --data: their number and a checksum.
  void fix_data(const glade::nn::data::TokenData& data);
  /// Another value than the checkpoint's becomes a part of changes().
  std::int64_t schedule(const std::string& option, std::optional<std::int64_t> given, std::int64_t otherwise);
  double schedule(const std::string& option, std::optional<double> given, double otherwise);
  /// The same for one of `names`, by default the first. The checkpoint holds its place among them. CheckpointError where that is
  /// none.
  std::string schedule(const std::string& option, const std::optional<std::string>& given, const std::vector<std::string>& names);

  /// For how long a run of --minutes trained before the checkpoint.
  double seconds_before() const;
  /// Keeps how long it has trained now.
  void set_seconds(double seconds);

  /// A sentence about the schedule that differs from the checkpoint's, or "".
  std::string changes() const;
  /// For Checkpoint::data.
  const glade::nn::StateDict& state_dict() const { return state_; }

 private:
  static constexpr const char* kSeconds = "run.seconds";

  template <class T>
  std::optional<T> saved(const std::string& name) const;
  template <class T>
  T scheduled(const std::string& option, std::optional<T> given, T otherwise);
  void note_change(const std::string& before, const std::string& now);

  std::string path_;
  glade::nn::StateDict resumed_, state_;
  std::string before_, now_;  ///< parts of the schedule that differ
};

/// The CRC-32 (as of gzip) of tokens as little-endian int64: of all where there are at most 2^24, else of 4096 blocks of 4096
/// tokens each, of which block i begins at token i * (size - 4096) / 4095.
std::uint32_t checksum(const glade::nn::data::TokenData& data);

}  // namespace lm
