#pragma once
// What the blocks of chunk_sm90/shared_gates.cuh compute: several heads of sequences, one after the other, or shares of the
// chunks of all of them (plan_sm90_stream_k.h).
#include <glade/ops/linear_attention/chunk_sm90/gated_pass.cuh>
#include <glade/ops/linear_attention/chunk_sm90/gated_tile.cuh>
#include <glade/ops/linear_attention/plan_sm90_stream_k.h>

namespace glade::cuda::chunk_sm90 {

struct MappedSharedGatesPass {
  MappedGatedPass pass;
  MappedGatedRows rows;
  unsigned items;      ///< of clusters: a head of a segment, and two tiles of values
  sm90::StreamK work;  ///< kStreamK: the shares of the clusters
};

/// The item of a block, of those of its cluster.
template <class C, bool kRagged = false>
__device__ Item item_of_cluster(const MappedSharedGatesPass& a, unsigned index) {
  return Item(a.pass, C::kCluster * index + cluster_rank(), kTile, gated_pass_columns<C>(a.pass), std::bool_constant<kRagged>());
}

/// What a block computes: several items. In shared memory, as registers are few.
template <class C>
struct SharedGatesWork {
  /// From an item of a block to its next one: clusters of a head, heads, and rows of segments; a division takes long.
  int columns, columns_step, heads_step, rows_step;

  __device__ explicit SharedGatesWork(const MappedSharedGatesPass& a) : columns(gated_pass_columns<C>(a.pass) / C::kCluster) {
    const int step = static_cast<int>(gridDim.x) / C::kCluster, of_heads = step / columns;
    columns_step = step % columns;
    heads_step = of_heads % a.pass.heads;
    rows_step = of_heads / a.pass.heads;
  }
  __device__ void find_first(const MappedSharedGatesPass& a, Item& item) const {
    item = item_of_cluster<C, true>(a, blockIdx.x / C::kCluster);
  }
  /// Finds number n of this block's items, where `item` is the one before. False if it has fewer. Of a ragged pass a block has
  /// only the first one.
  __device__ bool find_next(const MappedSharedGatesPass& a, unsigned n, Item& item) const {
    const unsigned index = (blockIdx.x + n * gridDim.x) / C::kCluster;
    if (index >= a.items) return false;
    if (a.pass.run_segments > 1) {
      item = item_of_cluster<C>(a, index);
      return true;
    }
    constexpr int kChannels = C::kCluster * kTile;
    int rows = rows_step;
    item.first_outer += columns_step * kChannels;
    item.head += heads_step;
    if (item.first_outer >= columns * kChannels) item.first_outer -= columns * kChannels, ++item.head;
    if (item.head >= a.pass.heads) item.head -= a.pass.heads, ++rows;
    item.n += rows;
    item.segment.move_by(rows);
    return true;
  }
  __device__ static bool is_added_up(unsigned) { return false; }
};
/// What it computes: whole items, and then parts of the items of its cluster's share, from the last item to the first.
template <class C>
  requires C::kStreamK
struct SharedGatesWork<C> {
  int whole, share, begin, end;  ///< begin, end: the share's first chunk, and the one after its last
  int first_item, last_item;     ///< of the share
  int added_chunks;  ///< of the last item: they are added up before their results are computed, because others need that

  __device__ explicit SharedGatesWork(const MappedSharedGatesPass& a)
      : whole(a.work.whole),
        share(static_cast<int>(blockIdx.x) / C::kCluster),
        begin(a.work.first[share]),
        end(a.work.first[share + 1]),
        first_item(begin / a.work.chunks),
        last_item((end - 1) / a.work.chunks),
        added_chunks(a.work.states_first && end % a.work.chunks != 0 ? min(end - last_item * a.work.chunks, end - begin) : 0) {}
  __device__ bool is_added_up(unsigned n) const { return n == 0 && added_chunks > 0; }
  __device__ void find_first(const MappedSharedGatesPass& a, Item& item) const { find_next(a, 0, item); }
  __device__ bool find_next(const MappedSharedGatesPass& a, unsigned n, Item& item) const {
    const int of_share = static_cast<int>(n) - whole, clusters = a.work.clusters, chunks = a.work.chunks;
    const int index = last_item - of_share + (n > 0 && added_chunks > 0), first = index * chunks;
    if (of_share >= 0 && index < first_item) return false;
    item = item_of_cluster<C>(
        a, static_cast<unsigned>(of_share < 0 ? static_cast<int>(n) * clusters + share : whole * clusters + index));
    if (of_share < 0) return true;
    item.segment.first_chunk = max(begin - first, 0);
    item.segment.end_chunk = min(end - first, chunks);
    return true;
  }
  /// How many of them there are, and how many chunks these have.
  __device__ int count() const { return whole + last_item - first_item + 1 + (added_chunks > 0); }
  __device__ int all_chunks(int chunks) const { return whole * chunks + end - begin + added_chunks; }
};

}  // namespace glade::cuda::chunk_sm90
