#pragma once
// How results of chunk_sm90/intra_chunk.cuh come from accumulators, [channels] x [tokens], into memory.
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk_shared.cuh>

namespace glade::cuda::chunk_sm90 {

/// Stores this warp's 16 channels of a tile one by one, as elements of type T. Each call stores the next 16 tokens in the order
/// of the tiles' rows, beginning with row `first`.
template <class T>
class ElementStore {
 public:
  template <class Block>
  __device__ ElementStore(const Block& block, Tensors tensor, int first_channel, int first) {
    int index = block.thread;
    Block::forget_index(index, kGroup);  // otherwise the addresses of all results would occupy registers at once
    const Place place = block.shared.places[tensor];
    const int t = first / 4 + first_token(index), channel = first_channel + warp_row(index) + lane_row(index);
    step_ = place.step;
    channels_ = place.size - channel;
    tokens_ = block.count() - t;
    at_ = place.row<T>(t) + channel;
  }
  __device__ void operator()(const float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // token_of_element(i) and 8 half(i). As calls, they make the six float16 kernels 272 instructions longer.
      const int later = i / 4 * 2 + i % 2, channel = i / 2 % 2 * 8;
      if (later < tokens_ && channel < channels_) at_[std::int64_t{later} * step_ + channel] = T(x[i]);
    }
    at_ += std::int64_t{step_} * 4;
    tokens_ -= 4;
  }

 private:
  T* at_;
  int step_, tokens_, channels_;
};

/// The same where results in 16 bits first come into a tile of shared memory, `room`, that the warp group does not need any more
/// but for the rows and channels that the next call stores. From there they go to memory in whole rows: by TMA where the chunk is
/// full, as its order of rows is not that of the tokens, see map_of_ordered_rows(). `room` is free after wait_stores() in thread
/// 0 of the warp group, and a barrier of the group after that. float results go to memory one by one.
template <class Block>
class ChunkResults {
  using E = typename Block::E;
  using Tile = typename Block::Tile;

 public:
  __device__ ChunkResults(const Block& block, Tensors tensor, bool is_float, Tile& room, int first_channel, int first = 0)
      : block_(block),
        tensor_(tensor),
        is_float_(Block::kFloatResults && is_float),
        room_(room),
        first_channel_(first_channel),
        first_(first),
        elements_(block, tensor, first_channel, first) {}
  /// Stores results of 16 tokens, the step-th ones from row `first` on.
  __device__ void operator()(int step, const float (&x)[8]) {
    if (is_float_) return elements_(x);
    LeftOperand rounded;
#pragma unroll
    for (int j = 0; j < 4; ++j) rounded[j] = pack<E>(x[2 * j], x[2 * j + 1]);
    store_transposed(room_, first_ / 16 + step, rounded, block_.thread);
  }
  /// Sends what is in the room, so many rows. All threads of the warp group call it.
  template <int kRows = kTile>
  __device__ void send() const {
    if (is_float_) return;
    fence_for_wgmma();
    sync_group<kGroup>(1 + block_.group);
    const MappedIntraChunk& a = block_.a;
    if (block_.count() < kTile || a.sequences.reverse) return send_rows<kRows>();
    if (block_.thread != 0) return;
    // The head's group in a.tensors says the same, but a division for every tensor takes 1% of the time.
    const int head = a.key_parts > 1 && tensor_ == kGradV ? block_.shared.head / a.key_parts : block_.shared.head;
    for (int row = first_; row < first_ + kRows; row += kTile / 2)
      store_ordered_rows(room_, row, a.maps[tensor_ - kGradQ], first_channel_, head, static_cast<int>(block_.shared.first_token));
    commit_stores();
  }

 private:
  /// Where tokens are fewer, or in reverse. A thread loads all of its rows before it stores one, so that it waits once.
  template <int kRows>
  __device__ void send_rows() const {
    constexpr int kStep = kGroup / 8, kTokens = kStep / 4;  // from a row of this thread to the next, and of their tokens
    const Place place = block_.shared.places[tensor_];
    const int row = first_ + block_.thread / 8, piece = block_.thread % 8, channel = first_channel_ + 8 * piece,
              tokens = (channel < place.size ? block_.count() : 0) - token_of_row(row);
    E* at = place.template row<E>(token_of_row(row)) + channel;
    uint4 pieces[kRows / kStep];
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) pieces[i] = *reinterpret_cast<const uint4*>(room_.at(row + i * kStep, piece));
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i, at += kTokens * place.step)
      if (i * kTokens < tokens) *reinterpret_cast<uint4*>(at) = pieces[i];
  }

  const Block& block_;
  const Tensors tensor_;
  const bool is_float_;
  Tile& room_;
  const int first_channel_, first_;
  ElementStore<float> elements_;
};

}  // namespace glade::cuda::chunk_sm90
