#pragma once
// How blocks that have a segment of a sequence each find the states before their segments. A block first adds up what its segment
// does to a state from zeros, leaves that in global memory, and then sums up what the blocks of the segments before its own, in
// the order of the scan, have left: a scan with decoupled look-back (Merrill and Garland 2016), without inclusive sums. Blocks
// start in the order of their numbers, and wait only for lower ones, after they have left their own part. So none waits for a
// block that cannot start.
#include <cuda_runtime.h>

#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>
#include <glade/ops/linear_attention/chunk_sm90/progress.cuh>

namespace glade::cuda::chunk_sm90 {

/// The part of one thread of kThreads, each of which has kNumbers numbers of a state. Segments have kDecays decays each.
template <int kThreads, int kNumbers, int kDecays = 1>
class SegmentExchange {
 public:
  /// The blocks of all segments that leave something have numbers: those of this thread's block, or of blocks like it, are
  /// first + segment * blocks. `barrier`: where the threads meet.
  __device__ SegmentExchange(const SegmentRoom& room, std::int64_t first, int blocks, int thread, int barrier)
      : room_(room), first_(first), blocks_(blocks), thread_(thread), barrier_(barrier) {}
  /// Leaves number(i), and what put_decays(to) stores.
  template <class Put, class F>
  __device__ void leave(int segment, Put&& put_decays, F&& number) const {
    float4* const to = state(segment);
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      __stcg(to + i * kThreads, make_float4(number(4 * i), number(4 * i + 1), number(4 * i + 2), number(4 * i + 3)));
    put_decays(room_.decays + place(segment) * kDecays);
    sync_group<kThreads>(barrier_);
    if (thread_ == 0) count_stores(room_.left + place(segment), 1);
  }
  /// Replaces number(i) by those of the state after the segments from `begin` on up to `end`, of which the first began with the
  /// sequence. load_decays(from) returns a function that number i is multiplied by.
  template <class Load, class F>
  __device__ void collect(int begin, int end, Load&& load_decays, F&& number) const {
    for (int i = begin + thread_; i < end; i += kThreads) wait_for_stores(room_.left + place(i), 1);
    sync_group<kThreads>(barrier_);
    const auto add = [&](int segment, auto&& by) {
      const float4* const from = state(segment);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 x = __ldcg(from + i * kThreads);
        number(4 * i) = fmaf(by(4 * i), number(4 * i), x.x);
        number(4 * i + 1) = fmaf(by(4 * i + 1), number(4 * i + 1), x.y);
        number(4 * i + 2) = fmaf(by(4 * i + 2), number(4 * i + 2), x.z);
        number(4 * i + 3) = fmaf(by(4 * i + 3), number(4 * i + 3), x.w);
      }
    };
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) number(i) = 0;
    add(begin, [](int) { return 0.f; });
#pragma unroll 1
    for (int other = begin + 1; other < end; ++other) add(other, load_decays(room_.decays + place(other) * kDecays));
  }

 private:
  static constexpr int kQuads = kNumbers / 4;
  __device__ std::int64_t place(int segment) const { return first_ + std::int64_t{segment} * blocks_; }
  __device__ float4* state(int segment) const {
    return reinterpret_cast<float4*>(room_.states) + place(segment) * (kQuads * kThreads) + thread_;
  }

  const SegmentRoom& room_;
  const std::int64_t first_;
  const int blocks_, thread_, barrier_;
};

/// The decay of a segment that has one for all numbers, for SegmentExchange::collect().
__device__ inline auto load_decay(const float* from) {
  return [by = __ldcg(from)](int) { return by; };
}

}  // namespace glade::cuda::chunk_sm90
