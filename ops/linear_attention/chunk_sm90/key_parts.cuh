#pragma once
// How two blocks of a cluster that have half of a head's keys each (chunk_sm90/intra_chunk.cuh) add up their gradients of the
// values. Both have a warp group for each half of the chunk's tokens. Block 0 gets the sum for the first half, and block 1 that
// for the second: the warp group of the other half sends its gradients to the shared memory of the other block.
#include <glade/core/cuda/hopper/copy.cuh>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk_shared.cuh>

namespace glade::cuda::chunk_sm90 {

/// One thread of each block calls it, before the blocks of the cluster meet.
template <class Shared>
__device__ void init_exchange(Shared& shared) {
  barrier_init(&shared.other_waits, 1);
  barrier_init(&shared.received, 1);
}
/// Sends this warp group's part, or adds the other block's part to it; returns whether it is the sum now. All threads of both
/// blocks call it once for every tile of values. `room` is free once all threads of this block are here or beyond the last
/// __syncthreads; `parity`: of the number of the call.
template <class Shared, class Tile, int kColumns>
__device__ bool add_other_part(Accumulator<kColumns>& part, Shared& shared, Tile& room, unsigned parity) {
  static_assert(part.kSize * kGroup * sizeof(float) == sizeof(Tile));
  const int own = cluster_rank(), other = 1 - own, thread = static_cast<int>(threadIdx.x) % kGroup;
  float4* const quads = reinterpret_cast<float4*>(&room) + thread;
  if (threadIdx.x == 0) {
    barrier_expect(&shared.received, sizeof(Tile));
    barrier_arrive_in(other, &shared.other_waits);
  }
  const bool keeps = static_cast<int>(threadIdx.x) / kGroup == own;
  if (keeps) {
    barrier_wait(&shared.received, parity);
#pragma unroll
    for (int i = 0; i < part.kSize / 4; ++i) {
      const float4 quad = quads[i * kGroup];
      part[4 * i] += quad.x, part[4 * i + 1] += quad.y, part[4 * i + 2] += quad.z, part[4 * i + 3] += quad.w;
    }
  } else {
    barrier_wait(&shared.other_waits, parity);
    const std::uint32_t to = address_in(other, quads), barrier = address_in(other, &shared.received);
#pragma unroll
    for (int i = 0; i < part.kSize / 4; ++i)
      store_async(to + i * kGroup * sizeof(float4), make_float4(part[4 * i], part[4 * i + 1], part[4 * i + 2], part[4 * i + 3]),
                  barrier);
  }
  return keeps;
}

}  // namespace glade::cuda::chunk_sm90
