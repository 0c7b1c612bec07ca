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

/// The part of one thread of kThreads, each of which has kNumbers numbers of a state.
template <int kThreads, int kNumbers>
class SegmentExchange {
 public:
  /// Of sequence n. `block`: of this thread's among the `blocks` of a segment; `barrier`: where the threads meet.
  __device__ SegmentExchange(const SegmentRoom& room, const ScanArguments& p, std::int64_t n, int block, int blocks, int thread,
                             int barrier)
      : room_(room), first_(n * p.segments * blocks + block), blocks_(blocks), thread_(thread), barrier_(barrier) {}
  /// Leaves number(i), with the decay of the segment.
  template <class F>
  __device__ void leave(int segment, float decay, F&& number) const {
    float4* const to = state(segment);
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      __stcg(to + i * kThreads, make_float4(number(4 * i), number(4 * i + 1), number(4 * i + 2), number(4 * i + 3)));
    if (thread_ == 0) __stcg(room_.decays + place(segment), decay);
    sync_group<kThreads>(barrier_);
    if (thread_ == 0) count_stores(room_.left + place(segment), 1);
  }
  /// Replaces number(i) by those of the state before a segment, which is not the first.
  template <class F>
  __device__ void collect(int segment, F&& number) const {
    for (int i = thread_; i < segment; i += kThreads) wait_for_stores(room_.left + place(i), 1);
    sync_group<kThreads>(barrier_);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) number(i) = 0;
#pragma unroll 1
    for (int other = 0; other < segment; ++other) {
      const float by = __ldcg(room_.decays + place(other));
      const float4* const from = state(other);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 x = __ldcg(from + i * kThreads);
        number(4 * i) = fmaf(by, number(4 * i), x.x);
        number(4 * i + 1) = fmaf(by, number(4 * i + 1), x.y);
        number(4 * i + 2) = fmaf(by, number(4 * i + 2), x.z);
        number(4 * i + 3) = fmaf(by, number(4 * i + 3), x.w);
      }
    }
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

}  // namespace glade::cuda::chunk_sm90
