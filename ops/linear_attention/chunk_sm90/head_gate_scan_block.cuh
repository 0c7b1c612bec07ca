#pragma once
// The shared memory of a block of chunk_sm90/head_gate_scan.cuh, and what all its threads share.
#include <glade/ops/linear_attention/chunk_sm90/head_gate_products.cuh>
#include <glade/ops/linear_attention/chunk_sm90/segment_exchange.cuh>

namespace glade::cuda::chunk_sm90 {

struct HeadGateScanArguments {
  IntraChunkArguments chunks;
  ScanArguments scan;  ///< of q and do, in reverse
  SegmentRoom room;
};

/// The template parameters of a scan, and the shared memory of its block. Rows of tiles are tokens in their order, or keys.
template <class E, int kKeyTiles_, int kValueTiles_, bool kFindsStates_, bool kGeneral_>
struct HeadGateScanBlock : Chunk<E> {
  using Element = E;
  using Tile = SwizzledTile<E>;
  static constexpr int kKeyTiles = kKeyTiles_, kValueTiles = kValueTiles_;
  static constexpr int kThreads = 2 * kKeyTiles * kGroup;  ///< first those of the values, then those of the keys
  static constexpr int kBlocks = kKeyTiles == 1 ? 2 : 1;   ///< on a multiprocessor
  static constexpr bool kFindsStates = kFindsStates_;      ///< D after segments does not come from elsewhere
  /// Whether it may be ragged, and may have results in float32: both take registers.
  static constexpr bool kGeneral = kGeneral_;
  /// Where D has 64 registers of a thread, its warp groups get some of the others'.
  static constexpr bool kMovesRegisters = kValueTiles == 2;
  static constexpr int kValuesRegisters = 160, kKeysRegisters = 96;

  struct Stage {
    Tile q[kKeyTiles], k[kKeyTiles], v[kValueTiles];  ///< in the end dq, dk and dv
    Tile grad_o[kValueTiles];
  };
  /// What a chunk adds to D comes from these alone. There is room for kAddedStages chunks of them in `stages`.
  struct AddedRows {
    Tile q[kKeyTiles], grad_o[kValueTiles];
  };
  static constexpr int kAddedStages = 4;
  Stage stages[2];
  Tile before[kKeyTiles][kValueTiles], after[kValueTiles][kKeyTiles];  ///< S and D
  Tile a_transposed, b, b_transposed;
  static constexpr int kSlots = 4;  ///< for chunks whose gates are known, or are yet to get their gradients
  ChunkGates gates[kSlots];
  GateSums gate_sums[kSlots][kKeyTiles];
  std::uint64_t rows_full[2], rows_read[2];    ///< read: queries and keys, by the values' warp groups
  std::uint64_t values_done;                   ///< these have stored dv of a chunk
  std::uint64_t states_full;                   ///< S
  std::uint64_t gradient_full, gradient_read;  ///< D after a chunk; read, with the values, by the keys' warp groups
  ScanEnds ends;                               ///< where kGeneral: D

  /// An element of D after the segment, in float32, where it is known before the scan. It uses the memory of S and D.
  __device__ float* known_gradient(int key, int value) {
    static_assert(sizeof(before) + sizeof(after) == sizeof(float) * kKeyTiles * kValueTiles * kTile * kTile);
    return reinterpret_cast<float*>(before) + key * (kValueTiles * kTile) + (value ^ key % 8 * 8);  // without bank conflicts
  }
  __device__ AddedRows& added_rows(int i) { return reinterpret_cast<AddedRows*>(stages)[i % kAddedStages]; }
};

/// What all threads of a block share: the chunks of a segment, and the copies of them.
template <class B>
struct HeadGateScan {
  using E = typename B::Element;
  using Tile = typename B::Tile;

  const HeadGateScanArguments& arguments;
  const IntraChunkArguments& a = arguments.chunks;
  const ScanArguments& p = arguments.scan;
  B& shared;
  const std::int64_t n;
  const int head;
  const Segment segment;

  /// D of all heads where it is known, and where it goes; or null.
  __device__ const float* before() const {
    if constexpr (B::kGeneral) return shared.ends.before;
    return segment.template state_before<false>(p, n);
  }
  __device__ float* after() const {
    if constexpr (B::kGeneral) return shared.ends.after;
    return segment.template state_after<false>(p, n);
  }

  __device__ int chunks() const { return segment.end_chunk - segment.first_chunk; }
  /// The i-th chunk of this scan.
  __device__ int chunk(int i) const { return segment.end_chunk - 1 - i; }
  __device__ int count(int i) const { return segment.chunk_tokens(chunk(i)); }
  __device__ std::int64_t token(int i, int t) const { return segment.token(chunk(i) * kTile + t); }
  __device__ Place place(Tensors tensor, int i) const {
    Place place = shared.places[tensor];
    place.first += std::int64_t{chunk(i) * kTile} * place.step * a.tensors[tensor].element_size;
    return place;
  }

  static constexpr int kHalf = B::kThreads / 2;  ///< threads of the values, and of the keys
  static constexpr int kSync = 1 + B::kThreads / kGroup, kSyncValues = kSync + 1, kSyncKeys = kSync + 2;  ///< barriers

  /// Starts to copy the i-th chunk, if there is one. The keys' threads call it.
  __device__ void copy_chunk(int i) const {
    if (i >= chunks()) return;
    typename B::Stage& stage = shared.stages[i % 2];
    const int tokens = count(i);
    int index = static_cast<int>(threadIdx.x) - kHalf;
    forget(index);  // otherwise addresses would be computed before the loop over the chunks, and kept in local memory
    copy_rows<kHalf, true>(stage.k, place(kKeys, i), tokens, 0, index);
    copy_rows<kHalf, true>(stage.q, place(kQueries, i), tokens, 0, index);
    copy_rows<kHalf, true>(stage.v, place(kValues, i), tokens, 0, index);
    copy_rows<kHalf, true>(stage.grad_o, place(kGradO, i), tokens, 0, index);
    arrive_with_copies(&shared.rows_full[i % 2]);
  }
  __device__ void wait_for_rows(int i) const {
    barrier_wait(&shared.rows_full[i % 2], static_cast<unsigned>(i) / 2 & 1);
    fence_for_wgmma();  // other threads wrote the copies
  }
  /// Arrives on behalf of a warp.
  __device__ static void arrive(std::uint64_t* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }
  /// Starts to copy the state before the i-th chunk. One thread calls it.
  __device__ void copy_state(int i) const {
    constexpr int kTiles = B::kKeyTiles * B::kValueTiles;
    barrier_expect(&shared.states_full, sizeof(shared.before));
    if (chunk(i) > 0 || a.boundary_states.has_first) {
      const std::int64_t at = BoundaryStateLayout(a, a.q.size, a.v.size).state(shared.row + std::int64_t{chunk(i)} * a.heads);
      copy_bulk(shared.before, static_cast<const E*>(a.boundary_states.before) + at, sizeof(shared.before), &shared.states_full);
    } else {
      for (int tile = 0; tile < kTiles; ++tile) copy_bulk(&shared.before[0][0] + tile, zeros, sizeof(Tile), &shared.states_full);
    }
  }

  /// Puts D after the segment into shared memory where that is known. Returns whether it is. All threads call it, so that many
  /// loads are on their way at the same time.
  __device__ bool load_gradient() const {
    constexpr int kQuads = B::kValueTiles * kTile / 4, kRows = B::kThreads / kQuads;
    const float* const known = B::kFindsStates && segment.template order<B::kGeneral>(p) > 0 ? nullptr : before();
    if (!known) return false;
    const int thread = static_cast<int>(threadIdx.x), first_key = thread / kQuads, value = thread % kQuads * 4;
    const float* const of_head = known + std::int64_t{head} * p.inner * p.outer;
    const float by = 1 / p.scale;
#pragma unroll
    for (int row = 0; row < B::kKeyTiles * kTile; row += kRows) {
      const int key = first_key + row;
      float4 x{};
      if (key < p.inner && value < p.outer) x = *reinterpret_cast<const float4*>(of_head + key * p.outer + value);
      *reinterpret_cast<float4*>(shared.known_gradient(key, value)) = {x.x * by, x.y * by, x.z * by, x.w * by};
    }
    __syncthreads();
    return true;
  }

  /// All threads meet, each kind of warp group in its own code. (racecheck does not follow such a barrier: see
  /// docs/notes/2026-11-25-reverse-scan.md.)
  __device__ static void sync() { sync_from_anywhere<B::kThreads>(kSync); }

  /// Describes the segment.
  __device__ void prepare() const {
    shared.describe(a, n, head, 0);
    if (threadIdx.x == 0) {
      if constexpr (B::kGeneral) new (&shared.ends) ScanEnds(p, segment, n, 0, 0);
      for (int i = 0; i < 2; ++i) {
        barrier_init(&shared.rows_full[i], kHalf);
        barrier_init(&shared.rows_read[i], kHalf / 32);
      }
      barrier_init(&shared.values_done, kHalf / 32);
      barrier_init(&shared.states_full, 1);
      barrier_init(&shared.gradient_full, kHalf / 32);
      barrier_init(&shared.gradient_read, kHalf / 32);
      fence_barrier_init();
    }
    __syncthreads();
  }
};

}  // namespace glade::cuda::chunk_sm90
