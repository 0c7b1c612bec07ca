#pragma once
// Batches of training sequences, assembled on a thread of their own.
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <glade/core/tensor.h>
#include <glade/nn/data/token_data.h>
#include <glade/nn/state_dict.h>

namespace glade::nn::data {

/// Sequences, and for every token the one after it. Packed: all sequences in one row, in which a new one begins after every
/// separator too, and the token after a separator, which belongs to another document, is no target (-100).
struct Batch {
  Tensor inputs, targets;    ///< int64 [sequences, seq_len]; packed: [1, sequences * seq_len]
  Tensor cu_seqlens;         ///< packed: where the sequences begin and the last one ends, int64, on the CPU; else undefined
  std::int64_t counted = 0;  ///< the number of targets but for those of -100
};

/// The sequences of seq_len tokens that begin at `starts`, on the CPU. ValueError for packed data without a separator; errors
/// of TokenData::read.
/// With `tokens`, begin and end, of each sequence only these, as LoaderOptions says. ValueError where they are not there.
Batch make_batch(const TokenData& data, std::span<const std::int64_t> starts, std::int64_t seq_len, bool packed = false,
                 std::optional<std::pair<std::int64_t, std::int64_t>> tokens = {});

/// What a Loader cuts out of the data, in what order, and where it puts it.
struct LoaderOptions {
  std::int64_t batch_size = 1, seq_len = 1;  ///< Sequences of a batch of all loaders that share it, and tokens of a sequence.
  /// The sequences of each batch that next() gives, begin and end, where several loaders share a batch: ProcessGroup::share().
  std::optional<std::pair<std::int64_t, std::int64_t>> share = {};
  bool packed = false;     ///< Whether a batch is one row, with a new sequence after every separator too: see Batch.
  std::uint64_t seed = 0;  ///< Of the order of the sequences.
  std::int64_t begin = 0;  ///< the part of the data to take
  std::optional<std::int64_t> end = {};  ///< all of the rest where not given
  Device device = kCPU;                  ///< Where next() puts the batches.
  /// The tokens of each sequence that next() gives, begin and end, where several loaders share a sequence: ProcessGroup::share().
  /// Packed: the part of the row of all this loader's sequences; cu_seqlens is then that of share_sequences().
  std::optional<std::pair<std::int64_t, std::int64_t>> tokens = {};
};

/// The data cut into sequences, in an order that is shuffled anew for every epoch: a function of the options alone. While a
/// batch is used, the next two are assembled; for a GPU in pinned memory, from which they are copied asynchronously. Several
/// threads may use one.
class Loader {
 public:
  /// ValueError where the data are too short for a sequence and the token after it, or the options out of range.
  Loader(std::shared_ptr<const TokenData> data, const LoaderOptions& options);
  /// Ends the thread; does not wait for more than the batch that is being assembled.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, on the device. Throws what the thread threw when it assembled that batch; so does every later call.
  Batch next();

  /// The number of sequences in the batches that next() has given, those of other shares included: what was only prepared does
  /// not count.
  std::int64_t position() const;
  /// Goes on from there. ValueError for a position outside 0 to 2^62.
  void seek(std::int64_t position);
  /// How many sequences an epoch has, of all loaders that share them.
  std::int64_t sequences_per_epoch() const { return sequences_; }

  /// "seed" and "position", for Checkpoint::data.
  StateDict state_dict() const;
  /// ValueError where one is missing or no number of its range.
  void load_state_dict(const StateDict& state);

 private:
  class Worker;
  /// Where the sequence number `position` of the run begins in the data.
  std::int64_t start_of(std::int64_t position) const;
  /// Goes on from there; for who holds the mutex.
  void restart(std::int64_t position, std::uint64_t seed);

  std::shared_ptr<const TokenData> data_;
  LoaderOptions options_;
  std::int64_t sequences_, slack_;  // of an epoch; tokens that are left over then
  mutable std::mutex mutex_;
  std::int64_t position_ = 0;       // guarded by it, as are the seed and the worker
  std::unique_ptr<Worker> worker_;  // from the first next() on
};

}  // namespace glade::nn::data
