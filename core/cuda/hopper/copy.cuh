#pragma once
// Asynchronous copies: cp.async by threads, bulk copies and TMA boxes by the hardware.
#include <cuda.h>

#include <glade/core/cuda/hopper/tile.cuh>

namespace glade::cuda {

/// Arrives at a barrier when this thread's copies so far have completed (one of the arrivals that the barrier counts).
__device__ inline void arrive_with_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Bulk copies of contiguous bytes (multiples of 16), which report to an mbarrier (see barrier_expect).
__device__ inline void copy_bulk(void* target, const void* source, int bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(target)),
      "l"(source), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
/// The same to the same place in the first `kBlocks` blocks of the cluster, each of whose barriers counts the bytes.
template <int kBlocks>
__device__ void copy_bulk_to_cluster(void* target, const void* source, int bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(target)),
      "l"(source), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<std::uint16_t>((1 << kBlocks) - 1))
      : "memory");
}
/// To the L2 cache.
__device__ inline void prefetch_bulk(const void* source, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes));
}
/// 16 bytes to the shared memory of a block of the cluster, whose barrier counts them; addresses are those of address_in().
__device__ inline void store_async(std::uint32_t target, float4 x, std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(target),
               "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
               : "memory");
}
/// From this block's shared memory to the same place in another's, whose barrier, in the same place, counts the bytes.
__device__ inline void copy_to_block(int rank, const void* from, int bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   address_in(rank, from)),
               "r"(shared_address(from)), "r"(bytes), "r"(address_in(rank, barrier))
               : "memory");
}
/// From shared to global memory.
__device__ inline void store_bytes(void* target, const void* source, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(shared_address(source)),
               "r"(bytes)
               : "memory");
}

// TMA copies of boxes of a tensor that a tensor map describes (core/cuda/tensor_map.h).
/// A box of a matrix, from column x and row y on.
__device__ inline void copy_box(void* target, const CUtensorMap& map, int x, int y, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                   shared_address(target)),
               "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier))
               : "memory");
}
/// The same to the same place in the first `kBlocks` blocks of the cluster, each of whose barriers counts the bytes.
template <int kBlocks>
__device__ void copy_box_to_cluster(void* target, const CUtensorMap& map, int x, int y, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
      "[%4], %5;" ::"r"(shared_address(target)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier)), "h"(static_cast<std::uint16_t>((1 << kBlocks) - 1))
      : "memory");
}
/// A tile of 64 tokens x 64 channels of a [tokens, heads, channels] tensor, with zeros outside of it.
template <class E>
__device__ void copy_tile(SwizzledTile<E>& target, const CUtensorMap& map, int channel, int head, int token,
                          std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          shared_address(&target)),
      "l"(&map), "r"(channel), "r"(head), "r"(token), "r"(shared_address(barrier))
      : "memory");
}
/// The same to the same place in the first `kBlocks` blocks of the cluster, each of whose barriers counts the bytes.
template <int kBlocks, class E>
__device__ void copy_tile_to_cluster(SwizzledTile<E>& target, const CUtensorMap& map, int channel, int head, int token,
                                     std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], "
      "[%5], %6;" ::"r"(shared_address(&target)),
      "l"(&map), "r"(channel), "r"(head), "r"(token), "r"(shared_address(barrier)),
      "h"(static_cast<std::uint16_t>((1 << kBlocks) - 1))
      : "memory");
}
/// A tile to the L2 cache.
__device__ inline void prefetch_tile(const CUtensorMap& map, int channel, int head, int token) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(&map), "r"(channel), "r"(head), "r"(token));
}
/// A tile back to such a tensor.
template <class E>
__device__ void store_tile(const SwizzledTile<E>& source, const CUtensorMap& map, int channel, int head, int token) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(channel),
               "r"(head), "r"(token), "r"(shared_address(&source))
               : "memory");
}
/// Half of a tile whose rows have the order of token_of_row(), from row `row` on, back to such a tensor, whose map says so:
/// [channels, tokens, 4, 8, heads]. `token` is that of row 0.
template <class E>
__device__ void store_ordered_rows(SwizzledTile<E>& source, int row, const CUtensorMap& map, int channel, int head, int token) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&map),
               "r"(channel), "r"(token), "r"(0), "r"(row / 8), "r"(head), "r"(shared_address(source.at(row, 0)))
               : "memory");
}
/// Closes the group of this thread's stores so far.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until what the committed stores read may be overwritten.
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

}  // namespace glade::cuda
