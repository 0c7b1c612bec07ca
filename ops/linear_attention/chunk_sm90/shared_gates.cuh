#pragma once
// The output of a recurrence with per-channel gates of 65 to 128 keys in one launch. The two blocks of a cluster have different
// values of the same head and share its gates: each applies them to one tile of keys (gated_tile.cuh), and copies the results,
// with the part of the scores that comes from these keys, to the other one. What chunk_sm90/gated_rows.cuh leaves in global
// memory stays in shared memory here.
//
// A block's consumer is that of chunk_sm90/gated_pass.cuh. The producers are two crews, a warp group each. They take turns at the
// chunks: while one waits, for memory or for products, the other computes. A crew finds the results of a chunk before it has a
// stage for them. Blocks take several sequences of equal length, one after the other.
#include <glade/ops/linear_attention/chunk_sm90/gated_pass.cuh>
#include <glade/ops/linear_attention/chunk_sm90/gated_tile.cuh>

namespace glade::cuda::chunk_sm90 {

struct MappedSharedGatesPass {
  MappedGatedPass pass;
  MappedGatedRows rows;
  unsigned items;  ///< of clusters: a head of a segment, and two tiles of values
};

template <class C>
  requires C::kSharesGates
struct GatedPassShared<C> {
  using E = typename C::Element;
  using Tile = SwizzledTile<E>;
  static constexpr int kCrews = 2, kStages = kCrews;
  struct Crew {
    HeadGatesOfChunk head_gates;
    SubChunkDecays decays;
    std::uint64_t copied;
  };
  union Rows {
    GatedRowsGroup<E> rows;
    alignas(16) GatedRowsScores scores;  ///< where the decay is large
  };
  /// The crews find an item up to two chunks before the consumer needs it.
  static constexpr int kItems = 8;

  Stages<kStages> of_y;  ///< x, y, the scores and the decays
  Stages<kStages> of_w;
  Item items[kItems];
  Tile x[kStages][C::kTiles], y[kStages][C::kTiles], scores[kStages][C::kScoreTiles], w[kStages], out;
  Tile states[C::kHasRoomForStates ? C::kTiles : 0];  ///< the state before the next chunk
  Rows rows[kCrews];
  alignas(16) float decays[kStages][C::kTiles * kTile];
  Crew crews[kCrews];

  __device__ auto& of_values() { return of_w; }
  __device__ Item& item(unsigned n) { return items[n % kItems]; }
};

/// A thread of a crew. The crews take the chunks of the block in turn: the n-th chunk of a crew is number 2 n + crew, and goes
/// into stage `crew`.
template <class C>
struct GatesCrew {
  using E = typename C::Element;
  using S = GatedPassShared<C>;
  using Tile = SwizzledTile<E>;
  using Group = GatedTile<E, false, true>;
  static constexpr int kParts = C::kLowParts ? 2 : 1;  ///< of scores

  const MappedSharedGatesPass& a;
  S& shared;
  const int crew, thread, rank = cluster_rank();
  typename S::Crew& own = shared.crews[crew];
  static constexpr int kFirstBarrier = 2;

  __device__ void sync() const { sync_group<kGroup>(kFirstBarrier + crew); }

  /// A chunk of an item.
  struct Place {
    unsigned number;  ///< of the item among those of this block
    Item item;
    int chunk;
    bool valid;
  };
  /// Moves by some chunks, to those of the next items where this one has no more.
  __device__ void advance(Place& place, int chunks) const {
    place.chunk += chunks;
    while (place.valid && place.chunk >= place.item.segment.end_chunk) {
      const int beyond = place.chunk - place.item.segment.end_chunk;
      const unsigned item = (blockIdx.x + ++place.number * gridDim.x) / C::kCluster;
      place.valid = item < a.items;
      if (!place.valid) return;
      place.item = Item(a.pass, C::kCluster * item + rank, kTile, gated_pass_columns<C>(a.pass));
      place.chunk = place.item.segment.first_chunk + beyond;
    }
  }
  /// The first token of its chunk, in memory.
  __device__ static std::int64_t first_token(const Place& place) {
    return place.item.segment.token(std::int64_t{place.chunk} * kTile);
  }

  __device__ void copy_rows(const Place& place) const {
    if (place.valid && thread == 0)
      Group::copy_rows(a.rows, shared.rows[crew].rows, rank, place.item.head, first_token(place), &own.copied);
  }
  /// Starts to copy the values if their stage is empty, or waits until it is (`waits`). Returns whether it has
  /// started.
  __device__ bool copy_values(const Place& place, unsigned n, bool waits) const {
    std::uint64_t *const empty = &shared.of_w.empty[crew], *const full = &shared.of_w.full[crew];
    if (n > 0 && !waits && !barrier_test(empty, (n - 1) & 1)) return false;
    if (n > 0 && waits) barrier_wait(empty, (n - 1) & 1);
    barrier_expect(full, sizeof(Tile));
    copy_tile(shared.w[crew], a.pass.w_map, place.item.first_outer, place.item.head / a.pass.w.group,
              static_cast<int>(first_token(place)), full);
    return true;
  }
  /// Waits until both consumers have read the previous contents of the stage.
  __device__ void wait_for_stage(unsigned n) const {
    if (n > 0) barrier_wait(&shared.of_y.empty[crew], (n - 1) & 1);
  }

  /// Stores this tile's part of the scores, where queries come after keys.
  __device__ void store_scores(const Accumulator<kTile>& scores) const {
    Tile* const to = &shared.scores[crew][rank * kParts];
    const int row = fragment_row(thread), row_block = __shfl_sync(~0u, thread / 32, 0);
#pragma unroll
    for (int k = 0; k < scores.kSteps; ++k) {
      LeftOperand rounded = {}, low = {};
      if (k <= row_block)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* pair = &scores[scores.element(k, j)];
          const int later = k == row_block ? 16 * k + left_column(0, j, thread) - row - j % 2 * 8 : -1;
          const float first = later > 0 ? 0.f : pair[0], second = later >= 0 ? 0.f : pair[1];
          rounded[j] = pack<E>(first, second);
          if constexpr (C::kLowParts) low[j] = pack_low<E>(first, second, rounded[j]);
        }
      store_straight(to[0], 2 * k, rounded, thread);
      if constexpr (C::kLowParts) store_straight(to[1], 2 * k, low, thread);
    }
  }
  /// Hands the stage to both consumers, once all threads have written to it.
  __device__ void publish(const Place& place) const {
    std::uint64_t* const full = &shared.of_y.full[crew];
    fence_for_wgmma();
    sync();
    if (thread != 0) return barrier_arrive(full);
    if (place.number > 0 && place.chunk == place.item.segment.first_chunk) shared.item(place.number) = place.item;
    constexpr int kDecayBytes = kTile * static_cast<int>(sizeof(float)), kTileBytes = static_cast<int>(sizeof(Tile));
    barrier_expect(full, (2 + kParts) * kTileBytes + kDecayBytes);  // from the other block
    const int other = 1 - rank;
    copy_to_block(other, &shared.x[crew][rank], kTileBytes, full);
    copy_to_block(other, &shared.y[crew][rank], kTileBytes, full);
    copy_to_block(other, &shared.scores[crew][rank * kParts], kParts * kTileBytes, full);
    copy_to_block(other, &shared.decays[crew][rank * kTile], kDecayBytes, full);
  }

  __device__ void run_chunk(const Place& place, const Place& next, unsigned n) const {
    typename S::Rows& rows = shared.rows[crew];
    const Group group{a.rows,
                      rows.rows,
                      own.head_gates,
                      own.decays,
                      shared.x[crew][rank],
                      shared.y[crew][rank],
                      place.item.head,
                      min(place.item.segment.chunk_tokens(place.chunk), kTile),
                      place.item.n,
                      first_token(place),
                      rank,
                      thread,
                      kFirstBarrier + crew};
    if (thread / 32 == 1) group.load_head_gates();
    sync();
    barrier_wait(&own.copied, n & 1);
    const auto sums = group.sum_gates();
    bool has_values = false;
    if (thread == 0) has_values = copy_values(place, n, false);
    __syncwarp();
    Accumulator<kTile> scores;
    std::uint32_t x[Group::kSubChunk] = {}, y[Group::kSubChunk] = {};
    if (!sums.is_large) {
      // The first output of a sequence is one score times one value. A norm after it divides by the score, so that it must be the
      // same in the backward pass. Elsewhere the low part of the keys changes little.
      group.run_safe(sums, place.chunk == 0, scores,
                     [&](int t, int, std::uint32_t query, std::uint32_t key) { x[t] = query, y[t] = key; });
    } else {
      wait_for_stage(n);
      group.run_large_decay(scores);
      sync();  // all products have read the tiles
      group.put_scores(scores, true, rows.scores);
      sync();
#pragma unroll
      for (int i = 0; i < scores.kSize; ++i) scores[i] = rows.scores[scores.row(i, thread)][scores.column(i, thread)];
    }
    fence_for_wgmma();
    sync();  // the rows have been read
    copy_rows(next);
    if (thread == 0 && !has_values) copy_values(place, n, true);
    __syncwarp();
    if (!sums.is_large) {
      wait_for_stage(n);
#pragma unroll
      for (int t = 0; t < Group::kSubChunk; ++t) {
        const int at = group.offset(t, t % 8);
        Group::put(group.queries, at, x[t]);
        Group::put(group.keys, at, y[t]);
      }
    }
    if (group.sub_chunk == 0)
      *reinterpret_cast<float2*>(&shared.decays[crew][rank * kTile + 2 * group.lane]) = Group::exp2(sums.decay);
    store_scores(scores);
    publish(place);
    __syncwarp();
  }

  /// The crew's first chunk.
  __device__ Place first_place() const {
    Place place{0, shared.item(0), shared.item(0).segment.first_chunk, true};
    advance(place, crew);
    return place;
  }
  /// Starts to copy its rows, before the block's threads divide their work.
  __device__ void copy_first_rows() const { copy_rows(first_place()); }

  __device__ void run() const {
    Place place = first_place();
#pragma unroll 1
    for (unsigned n = 0; place.valid; ++n) {
      Place next = place;
      advance(next, S::kCrews);
      run_chunk(place, next, n);
      place = next;
    }
  }
};

template <class C>
__global__ void __launch_bounds__(3 * kGroup, 1) shared_gates_kernel(const __grid_constant__ MappedSharedGatesPass a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = GatedPassShared<C>;
  S& shared = *reinterpret_cast<S*>(memory);
  constexpr int kConsumerRegisters = 200, kCrewRegisters = (504 - kConsumerRegisters) / 2;
  const int thread = static_cast<int>(threadIdx.x) % kGroup, group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0);
  if (threadIdx.x == 0) {
    init_stages(shared.of_y, kGroup, kGatedReleases<C>);
    init_stages(shared.of_w, 1, kGroup);
    for (auto& crew : shared.crews) barrier_init(&crew.copied, 1);
    fence_barrier_init();
    shared.item(0) = Item(a.pass, blockIdx.x, kTile, gated_pass_columns<C>(a.pass));
#pragma unroll 1
    for (int crew = 0; crew < S::kCrews; ++crew) GatesCrew<C>{a, shared, crew, 0}.copy_first_rows();
  }
  if (a.pass.early) cudaGridDependencySynchronize();
  sync_cluster();
  if (group == 0) {
    acquire_registers<kConsumerRegisters>();
    int step = 0;
    for (unsigned n = 0, i = blockIdx.x / C::kCluster; i < a.items; ++n, i += gridDim.x / C::kCluster) {
      if (n > 0) shared.of_y.wait_until_full(step);  // then the item is there
      GatedPassConsumer<C> consumer{{thread}, a.pass, shared, shared.item(n), step};
      consumer.run();
      step = consumer.step;
    }
  } else {
    release_registers<kCrewRegisters>();
    GatesCrew<C>{a, shared, group - 1, thread}.run();
  }
  sync_cluster();  // the other block may still copy rows here, and arrive
#else
  __trap();
#endif
}

template <class C>
void launch_shared_gates_pass(const GatedPass& p, const GatedRows& rows, int multiprocessors, cudaStream_t stream) {
  constexpr int bytes = sizeof(GatedPassShared<C>);
  static_assert(bytes <= 227 * 1024);
  const auto kernel = shared_gates_kernel<C>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const unsigned items =
                     gated_pass_columns<C>(p) / C::kCluster * static_cast<unsigned>(p.heads * p.sequences.count * p.run_segments),
                 clusters = deals_out_items(p) ? std::min(items, static_cast<unsigned>(multiprocessors) / C::kCluster) : items;
  launch_kernel(kernel, dim3(C::kCluster * clusters), 3 * kGroup, {bytes, p.early, C::kCluster}, stream,
                MappedSharedGatesPass{MappedGatedPass(p), MappedGatedRows(rows), items});
}

template <class E>
void run_shared_gates_pass(const GatedPass& p, const GatedRows& rows, int multiprocessors, cudaStream_t stream) {
  if (p.boundary_states) launch_shared_gates_pass<GatedPassVariant<E, 2, true, true, true>>(p, rows, multiprocessors, stream);
  else launch_shared_gates_pass<GatedPassVariant<E, 2, true, false, true>>(p, rows, multiprocessors, stream);
}

}  // namespace glade::cuda::chunk_sm90
