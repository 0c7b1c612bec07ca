#pragma once
// How as many clusters of blocks as run at once divide the chunks of equally long sequences among themselves, so that all end at
// about the same time: the hybrid Stream-K decomposition of Osama et al. 2023. An item is one head of a sequence. Clusters take
// whole items in turn, as many as leave at least one each. The chunks of the rest follow each other in one row, of which each
// cluster has a share. So these items may be divided anywhere. The shares with the later chunks of an item need the state before
// them. If there are at least as many items as clusters, the share with the first chunks leaves the state that it ends with.
// Otherwise items would be longer than shares, and each part of an item would have to wait for the one before: then a share first
// adds up the part that others go on from, without results.
//
// A share takes its items from the last to the first. Only the first one may begin elsewhere, and that has had time for it.
#include <algorithm>
#include <cstdint>

namespace glade::sm90 {

struct StreamK {
  static constexpr int kMostShares = 96;
  int chunks, clusters;        ///< chunks: of an item
  int whole;                   ///< items that each cluster takes first: items 0, 1, .. by turns
  bool states_first;           ///< whether a share adds up its last part first, if another one goes on from there
  int first[kMostShares + 1];  ///< the first chunk of each share among those of the items after these; then their number

  /// What a chunk without results takes, and what the start of an item does, in the time of a chunk with results.
  static constexpr double kChunkOfStates = 0.5, kStart = 0.5;
  /// Items and chunks that can be divided.
  static constexpr std::int64_t kMostChunks = std::int64_t{1} << 30;

  /// Divides the items among at most `most` clusters, each of which ends after `time` at the latest. False if it cannot.
  bool divide(std::int64_t items, int chunks_of_item, int most, double time);
  /// The least time in which clusters can end, to within a percent.
  static double least_time(std::int64_t items, int chunks_of_item, int most);
};

}  // namespace glade::sm90
