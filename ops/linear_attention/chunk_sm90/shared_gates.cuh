#pragma once
// The output of a recurrence with per-channel gates of up to 128 keys in one launch. The two blocks of a cluster have different
// values of the same head and share its gates: each applies them to one tile of keys (gated_tile.cuh), and copies the results,
// with the part of the scores that comes from these keys, to the other one. What chunk_sm90/gated_rows.cuh leaves in global
// memory stays in shared memory here. With up to 64 keys the second tile is zeros.
//
// A block's consumer is that of chunk_sm90/gated_pass.cuh. The producers are two crews, a warp group each. They take turns at the
// chunks: while one waits, for memory or for products, the other computes. A crew finds the results of a chunk before it has a
// stage for them. Blocks take several sequences of equal length, one after the other, or shares of the chunks of all of them
// (plan_sm90_stream_k.h), which leave states for each other (segment_exchange.cuh).
#include <stdexcept>

#include <glade/ops/linear_attention/chunk_sm90/gated_tile.cuh>
#include <glade/ops/linear_attention/chunk_sm90/segment_exchange.cuh>
#include <glade/ops/linear_attention/chunk_sm90/shared_gates_work.cuh>

namespace glade::cuda::chunk_sm90 {

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
  SharedGatesWork<C> work;
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
  /// Measured: rows loaded ahead make it 4% faster, but 1% slower where states are stored.
  using Group = GatedTile<E, C::kFloatGates, true, C::kStoresStates ? 0 : 1>;
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
      place.valid = shared.work.find_next(a, ++place.number, place.item);
      if (!place.valid) return;
      place.chunk = place.item.segment.first_chunk + beyond;
    }
  }
  /// The crew's chunk after a place.
  __device__ Place next_of(Place place) const {
    advance(place, S::kCrews);
    return place;
  }
  /// The first token of its chunk, in memory.
  __device__ static std::int64_t first_token(const Place& place) {
    return place.item.segment.token(std::int64_t{place.chunk} * kTile);
  }

  __device__ void copy_rows(const Place& place) const {
    if (place.valid)
      Group::copy_rows(a.rows, shared.rows[crew].rows, rank, place.item.head, first_token(place), &own.copied, thread,
                       shared.work.is_added_up(place.number));
    if constexpr (C::kFloatGates)
      if (place.valid && thread < place.item.segment.chunk_tokens(place.chunk) && thread < kTile)
        Group::prefetch_gates(a.rows, rank, place.item.head, first_token(place) + thread);
  }
  static constexpr int kValuesThread = 3 * 32;  ///< copies the values; Group::copy_rows() leaves its warp free
  /// Starts to copy the values if their stage is empty, or waits until it is (`waits`). Returns whether it has
  /// started.
  __device__ bool copy_values(const Place& place, unsigned n, bool waits) const {
    std::uint64_t *const empty = &shared.of_w.empty[crew], *const full = &shared.of_w.full[crew];
    if (n > 0 && !waits && !barrier_test(empty, (n - 1) & 1)) return false;
    if (n > 0 && waits) barrier_wait(empty, (n - 1) & 1);
    barrier_expect(full, sizeof(Tile));
    copy_tile(shared.w[crew], a.pass.w_map, place.item.first_outer, a.pass.w.head_of(place.item.head),
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
    int index = thread;
    forget(index);  // as in group_of()
    const int row = fragment_row(index), row_block = __shfl_sync(~0u, index / 32, 0);
#pragma unroll
    for (int k = 0; k < scores.kSteps; ++k) {
      LeftOperand rounded = {}, low = {};
      if (k <= row_block)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* pair = &scores[scores.element(k, j)];
          const int later = k == row_block ? 16 * k + left_column(0, j, index) - row - j % 2 * 8 : -1;
          const float first = later > 0 ? 0.f : pair[0], second = later >= 0 ? 0.f : pair[1];
          rounded[j] = pack<E>(first, second);
          if constexpr (C::kLowParts) low[j] = pack_low<E>(first, second, rounded[j]);
        }
      store_straight(to[0], 2 * k, rounded, index);
      if constexpr (C::kLowParts) store_straight(to[1], 2 * k, low, index);
    }
  }
  /// Hands the stage to both consumers, once all threads have written to it. kStates: it has what states need.
  template <bool kStates>
  __device__ void publish(const Place& place) const {
    std::uint64_t* const full = &shared.of_y.full[crew];
    fence_for_wgmma();
    sync();
    constexpr int kDecayBytes = kTile * static_cast<int>(sizeof(float)), kTileBytes = static_cast<int>(sizeof(Tile));
    if (thread == 0) {
      if (place.number > 0 && place.chunk == place.item.segment.first_chunk) shared.item(place.number) = place.item;
      barrier_expect(full, (kStates ? 1 : 2 + kParts) * kTileBytes + kDecayBytes);  // from the other block
    } else {
      barrier_arrive(full);
    }
    const auto copy = [&](int warp, const void* from, int bytes) {
      if (thread == warp * 32) copy_to_block(1 - rank, from, bytes, full);
    };
    copy(0, &shared.y[crew][rank], kTileBytes);
    copy(3, &shared.decays[crew][rank * kTile], kDecayBytes);
    if constexpr (kStates) return;
    copy(1, &shared.x[crew][rank], kTileBytes);
    copy(2, &shared.scores[crew][rank * kParts], kParts * kTileBytes);
  }

  __device__ Group group_of(const Place& place) const {
    int index = thread;
    forget(index);  // otherwise addresses would occupy registers at all chunks, and some would be spilled to local memory
    return {a.rows,
            shared.rows[crew].rows,
            own.head_gates,
            own.decays,
            shared.x[crew][rank],
            shared.y[crew][rank],
            place.item.head,
            min(place.item.segment.chunk_tokens(place.chunk), kTile),
            place.item.n,
            first_token(place),
            rank,
            index,
            kFirstBarrier + crew};
  }
  __device__ void load_head_gates(const Group& group) const {
    if (!a.rows.has_head_gates()) return;  // zeros, which run() has put there
    if (thread / 32 == 1) group.load_head_gates();
    sync();
  }
  __device__ void store_decays(const Group& group, const typename Group::Sums& sums) const {
    if (group.sub_chunk == 0)
      *reinterpret_cast<float2*>(&shared.decays[crew][rank * kTile + 2 * group.lane]) = Group::exp2(sums.decay);
  }
  /// Computes a chunk whose decay is in the safe range. Returns false, and has done nothing yet, if it is not.
  __device__ bool run_chunk(const Place& place, const Place& next, unsigned n) const {
    const Group group = group_of(place);
    load_head_gates(group);
    const auto sums = group.sum_gates([&] { barrier_wait(&own.copied, n & 1); });
    if (uniform(static_cast<int>(sums.is_large))) return false;
    bool has_values = false;
    if (thread == kValuesThread) has_values = copy_values(place, n, false);
    __syncwarp();
    Accumulator<kTile> scores;
    std::uint32_t x[Group::kSubChunk], y[Group::kSubChunk];
    group.run_safe(sums, scores, [&](int t, int, std::uint32_t query, std::uint32_t key) { x[t] = query, y[t] = key; });
    copy_next(place, next, n, has_values);
    wait_for_stage(n);
#pragma unroll
    for (int t = 0; t < Group::kSubChunk; ++t) {
      const int at = group.offset(t, t % 8);
      Group::put(group.queries, at, x[t]);
      Group::put(group.keys, at, y[t]);
    }
    finish_chunk(place, group, sums, scores);
    return true;
  }
  /// Computes any other chunk. It is no part of the loop over the chunks above, which is as long as the instruction caches.
  __device__ void run_large_decay(const Place& place, const Place& next, unsigned n) const {
    const Group group = group_of(place);
    const auto sums = group.sum_gates([] {});
    wait_for_stage(n);
    Accumulator<kTile> scores;
    group.run_large_decay(scores);
    sync();  // all products have read the tiles
    group.put_scores(scores, true, shared.rows[crew].scores);
    sync();
#pragma unroll
    for (int i = 0; i < scores.kSize; ++i) scores[i] = shared.rows[crew].scores[scores.row(i, thread)][scores.column(i, thread)];
    copy_next(place, next, n, false);
    finish_chunk(place, group, sums, scores);
  }
  /// Starts to copy the rows of the crew's next chunk, once those of this one have been read, and its own values.
  __device__ void copy_next(const Place& place, const Place& next, unsigned n, bool has_values) const {
    fence_for_wgmma();
    sync();
    copy_rows(next);
    if (thread == kValuesThread && !has_values) copy_values(place, n, true);
    __syncwarp();
  }
  __device__ void finish_chunk(const Place& place, const Group& group, const typename Group::Sums& sums,
                               const Accumulator<kTile>& scores) const {
    store_decays(group, sums);
    store_scores(scores);
    publish<false>(place);
    __syncwarp();
  }
  /// A whole chunk that is only added up.
  __device__ void add_up_chunk(const Place& place, const Place& next, unsigned n) const {
    const Group group = group_of(place);
    load_head_gates(group);
    const auto sums = group.sum_gates([&] { barrier_wait(&own.copied, n & 1); });
    std::uint32_t y[Group::kSubChunk] = {};
    if (!sums.is_large) group.run_safe_keys(sums, [&](int t, std::uint32_t key) { y[t] = key; });
    copy_next(place, next, n, false);
    wait_for_stage(n);
    if (!sums.is_large) {
#pragma unroll
      for (int t = 0; t < Group::kSubChunk; ++t) Group::put(group.keys, group.offset(t, t % 8), y[t]);
    } else {
      group.run_large_decay_of_keys();
    }
    store_decays(group, sums);
    publish<true>(place);
    __syncwarp();
  }

  /// The crew's first chunk.
  __device__ Place first_place() const {
    Place place{0, shared.item(0), shared.item(0).segment.first_chunk, true};  // every block has an item
    advance(place, crew);
    return place;
  }
  /// Starts to copy its rows, before the block's threads divide their work.
  __device__ void copy_first_rows() const { copy_rows(first_place()); }

  __device__ void run() const {
    Place place = first_place();
    if (!a.rows.has_head_gates()) {
      if (thread / 32 == 1) group_of(place).load_head_gates();
      sync();
    }
    unsigned n = 0;
    /// Calls run(next) for the crew's chunks, as long as there are more() and it returns true.
    const auto go_on = [&](auto&& more, auto&& run) {
#pragma unroll 1
      for (; more(); ++n) {
        const Place next = next_of(place);
        if (!run(next)) return;
        place = next;
      }
    };
    const auto run_chunks = [&](auto&& more) {
#pragma unroll 1
      while (more()) {
        go_on(more, [&](const Place& next) { return run_chunk(place, next, n); });
        if (!more()) return;
        const Place next = next_of(place);
        run_large_decay(place, next, n++);
        place = next;
      }
    };
    if constexpr (C::kStreamK) {  // the compiler must know that all threads make the same turns: see uniform()
      const auto own = [&](int chunks) { return uniform(static_cast<unsigned>(chunks + S::kCrews - 1 - crew) / S::kCrews); };
      const unsigned added = own(shared.work.added_chunks), all = own(shared.work.all_chunks(a.work.chunks));
      go_on([&] { return n < added; },
            [&](const Place& next) {
              add_up_chunk(place, next, n);
              return true;
            });
      run_chunks([&] { return n < all; });
    } else {
      run_chunks([&] { return place.valid; });
    }
  }
};

/// A thread of the consumer of a block that has a share of the chunks.
template <class C>
struct SharedGatesConsumer : GatedPassConsumer<C> {
  using Base = GatedPassConsumer<C>;
  using Base::decay_so_far, Base::item, Base::p, Base::scan, Base::segment, Base::shared, Base::state, Base::step, Base::thread;
  static constexpr int kTiles = C::kTiles, kBarrier = 1;
  const MappedSharedGatesPass& a;
  const SharedGatesWork<C>& work = shared.work;

  __device__ auto exchange() const {
    return SegmentExchange<kGroup, kTiles * kTile / 2, kTiles * kTile>(p.room, cluster_rank(), C::kCluster, thread, kBarrier);
  }
  __device__ auto number() {
    return [this](int i) -> float& { return state[i / (kTile / 2)][i % (kTile / 2)]; };
  }
  /// Adds up the item, and leaves the state.
  __device__ void add_up() {
    if (segment.first_chunk == 0) Base::start_item();
    else
      for (auto& tile : state) tile.fill(0);
#pragma unroll 1
    for (int chunk = segment.first_chunk; chunk < segment.end_chunk; ++chunk, ++step) {
      const int at = shared.of_y.slot(step);
      shared.of_w.wait_until_full(step);
      shared.of_y.wait_until_full(step);
      Base::add_decay(at);
      typename Base::Left w;
      Base::load(w, shared.w[at]);
      for (auto& pairs : w) pin(pairs);
      const std::uint32_t y = operand(shared.y[at][0]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        typename Base::Decays decays;
        Base::load_decays(decays, tile, at);
        Base::scale_state(tile, decays);
        Base::update_state(tile, w, y);
      }
      barrier_arrive(&shared.of_w.empty[at]);  // the products have the values
      Base::wait_for_state();
      Base::release(&shared.of_y.empty[at]);
    }
    const auto put_decays = [&](float* to) {
      if (thread < kTiles * kTile / 2) __stcg(reinterpret_cast<float2*>(to) + thread, decay_so_far);
    };
    exchange().leave(work.share, put_decays, number());
  }
  /// Finds the state before the item, from what the shares ahead have left.
  __device__ void collect() {
    const int begin = work.first_item * a.work.chunks;
    int first = work.share - 1;
    while (a.work.first[first] > begin) --first;
    const auto load_decays = [&](const float* from) {
      struct {
        float2 by[kTiles * kTile / 8];
        __device__ float operator()(int i) const { return i % 2 ? by[i / 4].y : by[i / 4].x; }
      } decays;
#pragma unroll
      for (int m = 0; m < kTiles * kTile / 8; ++m)
        decays.by[m] = __ldcg(reinterpret_cast<const float2*>(from + m * 8 + fragment_column(thread)));
      return decays;
    };
    if (thread == 0) wait_stores();  // the tiles of states
    exchange().collect(first, work.share, load_decays, number());
    if constexpr (C::kStoresStates) {
      Base::store_boundary_state(segment.first_chunk, shared.states);
      if (thread == 0) commit_stores();
    }
  }
  __device__ void run() {
    if (segment.first_chunk > 0) collect();
    else Base::start_item();
    scan();
    if (segment.end_chunk == segment.chunks()) Base::store_last_state();
    else if (!a.work.states_first) exchange().leave(work.share, [](float*) {}, number());
  }
};

/// The items of a block, for a thread of the consumer.
template <class C>
__device__ void run_shared_gates_consumer(const MappedSharedGatesPass& a, GatedPassShared<C>& shared, int thread) {
  using Consumer = GatedPassConsumer<C>;
  typename Consumer::Started started;
  int step = 0;
  unsigned n = 0, count;
  const auto consumer = [&] {
    return Consumer{{thread}, a.pass, shared, shared.item(n), shared.item(n + 1), n + 1 < count, started, step};
  };
  if constexpr (C::kStreamK) {
    count = uniform(static_cast<unsigned>(shared.work.count()));
    if (uniform(shared.work.added_chunks) > 0) {
      SharedGatesConsumer<C> first{consumer(), a};
      first.add_up();
      step = uniform(first.step), ++n;
      shared.of_y.wait_until_full(step);  // then the next item is there
    }
  } else {
    const unsigned clusters = gridDim.x / C::kCluster;
    count = (a.items - blockIdx.x / C::kCluster + clusters - 1) / clusters;
  }
  consumer().begin();
  const auto run_items = [&](auto&& run) {
#pragma unroll 1
    for (; n < count; ++n) step = run(consumer());
  };
  if constexpr (C::kStreamK) {
    run_items([&](Consumer item) {
      SharedGatesConsumer<C> of_item{item, a};
      of_item.run();
      return of_item.step;
    });
  } else if (!a.pass.first && !a.pass.last && a.pass.segments == 1) {
    run_items([](Consumer item) { return item.template run<false>(), item.step; });
  } else {
    run_items([](Consumer item) { return item.run(), item.step; });
  }
  consumer().end();
}

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
    if (!a.pass.early) cudaGridDependencySynchronize();
    shared.work = SharedGatesWork<C>(a);
    shared.work.find_first(a, shared.item(0));
#pragma unroll 1
    for (int i = 0; i < S::kCrews * kGroup; i += 32) GatesCrew<C>{a, shared, i / kGroup, i % kGroup}.copy_first_rows();
  }
  cudaGridDependencySynchronize();
  sync_cluster();
  if (group == 0) {
    acquire_registers<kConsumerRegisters>();
    run_shared_gates_consumer<C>(a, shared, thread);
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
  const unsigned items = gated_pass_columns<C>(p) / C::kCluster * static_cast<unsigned>(p.heads * p.rows());
  unsigned clusters = static_cast<unsigned>(multiprocessors) / C::kCluster;
  sm90::StreamK work{};
  if constexpr (C::kStreamK) {
    if (!work.divide(items, p.segment_chunks, static_cast<int>(clusters), p.share))
      throw std::logic_error("shares are too small");
    clusters = static_cast<unsigned>(work.clusters);
  } else {
    clusters = deals_out_items(p) ? std::min(items, clusters) : items;
  }
  launch_kernel(kernel, dim3(C::kCluster * clusters), 3 * kGroup, {bytes, starts_early(p.early), C::kCluster}, stream,
                MappedSharedGatesPass{MappedGatedPass(p), MappedGatedRows(rows), items, work});
}

template <class E, bool kStoresStates>
void run_shared_gates_pass(const GatedPass& p, const GatedRows& rows, int multiprocessors, cudaStream_t stream) {
  const auto run = [&]<bool kStreamK, bool kFloatGates>() {
    using Variant = GatedPassVariant<E, kSharedGateTiles, true, kStoresStates, true, kStreamK, kFloatGates>;
    launch_shared_gates_pass<Variant>(p, rows, multiprocessors, stream);
  };
  if (p.share > 0) run.template operator()<true, false>();
  else if (rows.float_gates) run.template operator()<false, true>();
  else run.template operator()<false, false>();
}
template <class E>
void run_shared_gates_pass(const GatedPass& p, const GatedRows& rows, int multiprocessors, cudaStream_t stream) {
  (p.boundary_states ? run_shared_gates_pass<E, true> : run_shared_gates_pass<E, false>)(p, rows, multiprocessors, stream);
}

}  // namespace glade::cuda::chunk_sm90
