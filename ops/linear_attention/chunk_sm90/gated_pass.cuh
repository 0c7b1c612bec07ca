#pragma once
// The output of a recurrence with per-channel gates of keys and 65 to 256 of them, where a launch ahead has applied the gates to
// queries and keys and computed the scores (chunk_sm90/gated_rows.cuh):
//     out = R x^T + w^T A^T,     R = e^C R + w^T y,     with x = q e^{c_t}, y = k e^{C - c_j}, w = v.
// So blocks for different values of a head do not apply the same gates again, and no chunk is split.
//
// A block has one sequence or segment, one head and 64 values. Its consumer keeps R in registers, transposed ([values] x [keys]),
// as in chunk_sm90/pass_kernel.cuh. It issues few instructions, as a warp has a scheduler for itself and nothing hides its
// latencies. Two or three warps copy: one x, and others all else, which is needed later. The blocks of a cluster have other
// values of the same head, and each copies a part of what all of them need to all of them. In chunk_sm90/shared_gates.cuh the
// same consumer takes what its own block and the other one have made.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/pass_boundary_states.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_state.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

/// What the kernel is compiled for. kResults: not only for states; kStoresStates: stores those before the chunks; kSharesGates:
/// in the kernel of chunk_sm90/shared_gates.cuh; kStreamK: clusters have shares of the chunks there; kFloatGates: gates are in
/// float32 there.
template <class E, int kTiles_, bool kResults_, bool kStoresStates_, bool kSharesGates_ = false, bool kStreamK_ = false,
          bool kFloatGates_ = false>
struct GatedPassVariant {
  using Element = E;
  static constexpr bool kResults = kResults_, kStoresStates = kStoresStates_, kSharesGates = kSharesGates_, kStreamK = kStreamK_,
                        kFloatGates = kFloatGates_;
  static constexpr Gates kGates = Gates::none;
  static constexpr int kTiles = kTiles_;  ///< of keys
  static constexpr int kCluster = 2;      ///< blocks
  static constexpr int kChunksOfState = 1;
  static constexpr bool kLowParts = std::is_same_v<E, __nv_bfloat16>;
  /// Tiles of scores, whose sum they are. Blocks that share gates have a part from each.
  static constexpr int kScoreTiles = (kLowParts ? 2 : 1) * (kSharesGates ? kTiles : 1);
  /// Whether the states have room of their own, and are stored with the results. Else they take that of y, which is released
  /// late.
  static constexpr bool kHasRoomForStates = kSharesGates && kStoresStates;
  /// Whether w and the scores have stages of their own, which make room first. Measured: with two tiles of keys, where y has
  /// three stages, nothing is gained, and short sequences take up to 5% longer.
  static constexpr bool kSplits = kTiles > 2;
  static constexpr int kThreads = kGroup + (kSplits ? 96 : 64);
};

struct MappedGatedPass : GatedPass {
  CUtensorMap w_map, out_map;
  explicit MappedGatedPass(const GatedPass& p)
      : GatedPass(p),
        w_map(map_of(p.w, p.tokens)),
        out_map(p.out && !p.float_out ? map_of({p.out, p.heads, 1, p.outer}, p.tokens, p.out_step) : CUtensorMap{}) {}
};

/// Blocks for the values of a head, in whole clusters.
template <class C>
__host__ __device__ unsigned gated_pass_columns(const GatedPass& p) {
  return (item_columns(p, kTile) + C::kCluster - 1) / C::kCluster * C::kCluster;
}

/// A number of stages, and the barriers at which they are handed over.
template <int kCount_>
struct Stages {
  static constexpr int kCount = kCount_;
  std::uint64_t full[kCount], empty[kCount];
  __device__ static int slot(int i) { return i % kCount; }
  __device__ static unsigned parity(int i) { return i / kCount & 1; }
  __device__ void wait_until_full(int i) { barrier_wait(&full[slot(i)], parity(i)); }
  __device__ void wait_until_empty(int i) {  // since step i - kCount
    if (i >= kCount) barrier_wait(&empty[slot(i)], parity(i - kCount));
  }
};

/// Initializes the barriers of stages. A stage is full after so many arrivals, and empty after so many releases.
template <int kCount>
__device__ void init_stages(Stages<kCount>& stages, int arrivals, int releases) {
  for (std::uint64_t& full : stages.full) barrier_init(&full, arrivals);
  for (std::uint64_t& empty : stages.empty) barrier_init(&empty, releases);
}
/// The releases that empty a stage which the consumers of all blocks of a cluster read.
template <class C>
inline constexpr int kGatedReleases = kGroup + (C::kCluster - 1) * kGroup / 32;

template <class C>
struct GatedPassShared;
template <class C>
  requires(!C::kSharesGates)
struct GatedPassShared<C> {
  using Tile = SwizzledTile<typename C::Element>;
  static constexpr int kOfX = C::kTiles == 4 ? 3 : 4, kOfY = C::kTiles == 2 ? 3 : 2;  ///< stages
  Stages<C::kSplits ? kOfY : 0> of_w;
  Stages<kOfX> of_x;
  Stages<kOfY> of_y;
  Item item;
  Tile x[kOfX][C::kTiles], y[kOfY][C::kTiles], w[kOfY], scores[kOfY][2], out;
  alignas(16) float decays[kOfY][C::kTiles * kTile];

  /// The stages of w and the scores.
  __device__ auto& of_values() {
    if constexpr (C::kSplits) return of_w;
    else return of_y;
  }
};

/// The warps that copy.
template <class C>
struct GatedPassProducer {
  using Tile = SwizzledTile<typename C::Element>;
  const MappedGatedPass& p;
  GatedPassShared<C>& shared;
  const Segment segment = shared.item.segment;
  const int head = shared.item.head, first_outer = shared.item.first_outer, rank = cluster_rank();
  static constexpr int kTiles = C::kTiles;

  __device__ std::int64_t row(int chunk) const { return segment.slot(chunk) * p.heads + head; }
  /// Copies those of `count` pieces of `bytes` that are this block's to all blocks of the cluster.
  __device__ void copy(void* to, const void* from, int count, int bytes, std::uint64_t* barrier) const {
    for (int i = rank; i < count; i += C::kCluster)
      copy_bulk_to_cluster<C::kCluster>(static_cast<char*>(to) + i * bytes,
                                        static_cast<const char*>(from) + std::int64_t{i} * bytes, bytes, barrier);
  }
  __device__ void copy_x() const {
    for (int chunk = segment.first_chunk, i = 0; chunk < segment.end_chunk; ++chunk, ++i) {
      auto& stages = shared.of_x;
      stages.wait_until_empty(i);
      const int at = stages.slot(i);
      barrier_expect(&stages.full[at], kTiles * static_cast<int>(sizeof(Tile)));
      copy(shared.x[at], static_cast<const Tile*>(p.chunks.queries) + row(chunk) * kTiles, kTiles, sizeof(Tile),
           &stages.full[at]);
    }
  }
  /// Copies what stages have: w and the scores (kValues), y and the decays (kKeys), or all of it.
  template <bool kValues, bool kKeys, int kCount>
  __device__ void copy_rest(Stages<kCount>& stages) const {
    constexpr int kScores = C::kResults ? 1 + C::kLowParts : 0;  // tiles
    for (int chunk = segment.first_chunk, i = 0; chunk < segment.end_chunk; ++chunk, ++i) {
      stages.wait_until_empty(i);
      const int at = stages.slot(i), decay_bytes = kTiles * kTile * static_cast<int>(sizeof(float));
      std::uint64_t* const full = &stages.full[at];
      constexpr int kCopied = (kKeys ? kTiles : 0) + (kValues ? 1 + kScores : 0);
      barrier_expect(full, kCopied * static_cast<int>(sizeof(Tile)) + (kKeys ? decay_bytes : 0));
      if constexpr (kValues)
        copy_tile(shared.w[at], p.w_map, first_outer, p.w.head_of(head), static_cast<int>(segment.token(0)) + chunk * kTile,
                  full);
      if constexpr (kKeys)
        copy(shared.y[at], static_cast<const Tile*>(p.chunks.keys) + row(chunk) * kTiles, kTiles, sizeof(Tile), full);
      if constexpr (kValues && C::kResults)
        copy(shared.scores[at], static_cast<const Tile*>(p.chunks.scores) + 2 * row(chunk), kScores, sizeof(Tile), full);
      if constexpr (kKeys) copy_bulk(shared.decays[at], p.chunks.decays + row(chunk) * kTiles * kTile, decay_bytes, full);
    }
  }
  /// What a warp of the block copies.
  __device__ void run(int warp) const {
    constexpr int kFirst = kGroup / 32;
    if constexpr (C::kSplits) {
      if (warp == kFirst) copy_rest<true, false>(shared.of_w);
      else if (warp == kFirst + 1) copy_rest<false, true>(shared.of_y);
      else if (C::kResults) copy_x();
    } else {
      if (warp > kFirst) copy_rest<true, true>(shared.of_y);
      else if (C::kResults) copy_x();
    }
  }
};

template <class C>
struct GatedPassConsumer : State<C> {
  using Base = State<C>;
  using E = typename C::Element;
  using Base::add_product, Base::load, Base::state, Base::thread, Base::wait_for_state;
  using typename Base::Left;
  using Tile = SwizzledTile<E>;
  static constexpr int kTiles = C::kTiles;

  /// What start() begins: the results of a chunk, and its values.
  struct Started {
    Accumulator<kTile> out;
    Left w;
  };

  const MappedGatedPass& p;
  GatedPassShared<C>& shared;
  const Item &item, &next_item;  ///< the next one is there when the stage of its first chunk is full
  const bool has_next;
  Started& started;
  int step = 0;  ///< The number of the item's first chunk among all chunks of this block; run() moves it behind the last.
  const Segment& segment = item.segment;
  float2 decay_so_far = {1, 1};  ///< of the segment, in two channels of this thread

  __device__ void sync() const { sync_group<kGroup>(1); }
  /// Tells the producers of all blocks of the cluster that this thread has read a stage.
  __device__ void release(std::uint64_t* empty) const {
    barrier_arrive(empty);
    __syncwarp();
    if (thread % 32 == 0)
      for (int other = 1; other < C::kCluster; ++other) barrier_arrive_in((cluster_rank() + other) % C::kCluster, empty);
  }

  /// The values, as a left operand, with zeros behind the chunk's last token.
  __device__ void load_values(Left& to, Tile& tile, int tokens) const {
    load(to, tile);
    if (tokens >= kTile) return;
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int left = tokens - left_column(k, j, thread);
        to[k][j] = left <= 0 ? 0 : left == 1 ? to[k][j] & 0xffffu : to[k][j];
      }
  }
  /// The state, rounded.
  using Rounded = Left[kTiles];
  __device__ void round_state(Rounded& to) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        state[tile].template round<E>(to[tile][k], k);
        pin(to[tile][k]);
      }
  }
  /// Stores results of a chunk that are packed in 16 bits, and the state before the next one where that has room.
  __device__ void store_out(const Left& packed, const Rounded& rounded, int chunk) const {
    const int tokens = segment.chunk_tokens(chunk);
    const std::int64_t first = segment.token(std::int64_t{chunk} * kTile);
    if (thread == 0) wait_stores();
    sync();  // those of the chunk before have read the tiles
#pragma unroll
    for (int k = 0; k < 4; ++k) store_transposed(shared.out, k, packed[k], thread);
    if constexpr (C::kHasRoomForStates)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int k = 0; k < 4; ++k) store_transposed(shared.states[tile], k, rounded[tile][k], thread);
    fence_for_wgmma();
    sync();
    if (p.float_out) {  // has been stored
    } else if (tokens >= kTile) [[likely]] {
      if (thread == 0) store_tile(shared.out, p.out_map, item.first_outer, item.head, static_cast<int>(first));
    } else if (const int column = item.first_outer + thread % 8 * 8; column < p.outer) {
      for (int t = thread / 8; t < tokens; t += kGroup / 8)
        *reinterpret_cast<uint4*>(static_cast<E*>(p.out) + (first + t) * p.out_step + std::int64_t{item.head} * p.outer +
                                  column) = *reinterpret_cast<const uint4*>(shared.out.at(t, thread % 8));
    }
    if (thread != 0) return;
    if constexpr (C::kHasRoomForStates)
      if (chunk + 1 < segment.end_chunk && item.first_outer < p.outer) store_state_tiles(chunk + 1, shared.states);
    commit_stores();
  }
  __device__ void store_state_tiles(int chunk, const Tile (&from)[kTiles]) const {
    const BoundaryStateStore<C> store{p, item, item.first_outer, thread};
    for (int tile = 0; tile * kTile < p.inner; ++tile) store.store_async(chunk, tile, from[tile]);
  }
  /// Stores results of a chunk in float32.
  __device__ void store_float(const Accumulator<kTile>& out, int chunk) const {
    float* const at = static_cast<float*>(p.out) + (segment.token(std::int64_t{chunk} * kTile) * p.heads + item.head) * p.outer +
                      item.first_outer;
    store_columns(out, thread, at, p.heads * p.outer, segment.chunk_tokens(chunk), p.outer - item.first_outer);
  }
  /// Stores R, the state before a chunk, for the backward pass, by way of the tiles of y, which have been read.
  __device__ void store_boundary_state(int chunk, Tile (&room)[kTiles]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        LeftOperand rounded;
        state[tile].template round<E>(rounded, k);
        store_transposed(room[tile], k, rounded, thread);
      }
    fence_for_wgmma();
    sync();
    if (thread == 0 && item.first_outer < p.outer) store_state_tiles(chunk, room);
  }

  /// The stage of x, which blocks that share gates have with y.
  __device__ static int x_slot(int i) {
    if constexpr (C::kSharesGates) return decltype(shared.of_y)::slot(i);
    else return decltype(shared.of_x)::slot(i);
  }
  /// R = e^C R + w^T y, for a tile of keys.
  __device__ void update_state(int tile, const Left& w, std::uint32_t y) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma<E, 1>(state[tile], w[k], descriptor(y, tile * kTileStep + k * kRowStep), 1);
    wgmma_commit();
  }
  /// The decays of a tile of keys, in the columns of this thread.
  using Decays = float2[kTile / 8];
  __device__ void load_decays(Decays& to, int tile, int at) const {
#pragma unroll
    for (int m = 0; m < kTile / 8; ++m)
      to[m] = *reinterpret_cast<const float2*>(&shared.decays[at][tile * kTile + m * 8 + fragment_column(thread)]);
  }
  __device__ void scale_state(int tile, const Decays& decays) {
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) state[tile][i] *= i % 2 ? decays[i / 4].y : decays[i / 4].x;
  }
  /// Loads the values of step i, chunk number n of an item, and starts out = w^T A^T. After the last step (`is_step` is false) it
  /// multiplies whatever lies there, so that no product is issued in a branch.
  __device__ void start(int i, const Item& of_step, int n, bool is_step) {
    auto& [out, w] = started;
    const int at = shared.of_values().slot(i);
    if (is_step) {
      shared.of_values().wait_until_full(i);
      if constexpr (C::kSharesGates) shared.of_y.wait_until_full(i);
    }
    load_values(w, shared.w[at], of_step.segment.chunk_tokens(of_step.segment.first_chunk + n));
    for (auto& pairs : w) pin(pairs);
    if constexpr (C::kResults) {
      wgmma_begin();
#pragma unroll
      for (int n = 0; n < C::kScoreTiles; ++n) add_product(out, w, operand(shared.scores[at][n]), n);
      wgmma_commit();
      // Not before: an arrival may overtake loads whose results nothing has waited for.
      if constexpr (C::kSharesGates)
        if (is_step) barrier_arrive(&shared.of_values().empty[at]);
      wgmma_wait<1>();
    }
  }
  /// out += R x^T, and the update of R. While the tensor cores multiply a tile of R, the next one is rounded. In the end the last
  /// update is pending.
  __device__ void multiply(int i) {
    auto& [out, w] = started;
    const int at = shared.of_y.slot(i);
    const std::uint32_t x = operand(shared.x[x_slot(i)][0]), y = operand(shared.y[at][0]);
    Left rounded[2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Decays decays;
      if (!C::kSplits || tile > 0) load_decays(decays, tile, at);
      if constexpr (C::kResults) {
        Left& own = rounded[tile % 2];
#pragma unroll
        for (int k = 0; k < 4; ++k) state[tile].template round<E>(own[k], k);
        for (auto& pairs : own) pin(pairs);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma<E>(out, own[k], descriptor(x, tile * kTileStep + k * kColumnStep), 1);
        wgmma_commit();
      }
      if (C::kSplits && tile == 0) {
        shared.of_y.wait_until_full(i);
        load_decays(decays, tile, at);
      }
      if constexpr (C::kResults) wgmma_wait<2>();
      scale_state(tile, decays);
      update_state(tile, w, y);
      wgmma_wait<C::kResults ? 2 : kTiles>();
      if constexpr (C::kSplits)
        if (tile == 0) release(&shared.of_w.empty[shared.of_w.slot(i)]);  // start()'s products have been computed
      if (C::kResults && tile > 0)
        for (auto& pairs : rounded[(tile + 1) % 2]) pin(pairs);
    }
  }

  __device__ void add_decay(int at) {
    const float2 decay = *reinterpret_cast<const float2*>(&shared.decays[at][2 * min(thread, kTiles * 32 - 1)]);
    decay_so_far = make_float2(decay_so_far.x * decay.x, decay_so_far.y * decay.y);
  }
  /// Starts the item's first chunk. Where it is not the block's first item, scan() of the one before has done so.
  __device__ void begin() { start(step, item, 0, segment.end_chunk > segment.first_chunk); }
  __device__ void scan() {
    auto& out = started.out;
    int unreleased = -1;  // the stage that stores of states still read, of the first warp
    const int chunks = segment.end_chunk - segment.first_chunk;
#pragma unroll 1
    for (int n = 0; n < chunks; ++n) {
      forget(thread);
      const int i = step + n, chunk = segment.first_chunk + n, at = shared.of_y.slot(i);
      const bool is_last = n + 1 == chunks;
      if (!C::kSplits && p.decay) add_decay(at);
      if constexpr (C::kResults && !C::kSharesGates) shared.of_x.wait_until_full(i);
      multiply(i);
      if (C::kSplits && p.decay) add_decay(at);
      Left packed;
      if constexpr (C::kResults) {
        wgmma_wait<1>();
        pin(out);
        out.scale_rows(p.scale, p.scale);
        if (p.float_out) [[unlikely]]
          store_float(out, chunk);
#pragma unroll
        for (int k = 0; k < 4; ++k) out.template round<E>(packed[k], k);
        for (auto& pairs : packed) pin(pairs);
        if constexpr (!C::kSharesGates) release(&shared.of_x.empty[x_slot(i)]);
      }
      wait_for_state();
      Rounded rounded;
      if constexpr (C::kHasRoomForStates) round_state(rounded);
      if constexpr (C::kStoresStates && !C::kSharesGates) {
        if (unreleased >= 0) {
          if (thread == 0) wait_stores();
          __syncwarp();
          release(&shared.of_y.empty[unreleased]);
          unreleased = -1;
        }
        if (!is_last) {
          store_boundary_state(chunk + 1, shared.y[at]);
          if (thread < 32) unreleased = at;
        }
      }
      if (unreleased < 0) release(&shared.of_y.empty[at]);
      start(i + 1, is_last ? next_item : item, is_last ? 0 : n + 1, !is_last || has_next);
      if constexpr (C::kResults)
        if (C::kHasRoomForStates || !p.float_out) store_out(packed, rounded, chunk);
    }
    step += chunks;
    if (unreleased < 0) return;
    if (thread == 0) wait_stores();
    __syncwarp();
    release(&shared.of_y.empty[unreleased]);
  }
  /// What is to follow the last item.
  __device__ void end() const {
    wgmma_wait<0>();
    if (thread == 0) wait_stores();
  }

  /// Starts from the state before the item. `kEnds`: there may be one in memory.
  template <bool kEnds = true>
  __device__ void start_item() {
    const std::int64_t size = std::int64_t{p.inner} * p.outer;
    const float* first = kEnds ? segment.state_before(p, item.n) : nullptr;
    if (first) forget(first += item.head * size);
    if (C::kStoresStates && item.first_outer < p.outer)
      BoundaryStateStore<C>{p, item, item.first_outer, thread}.store_first(first);
#pragma unroll
    for (auto& tile : state) tile.fill(0);
    if (first) this->for_each_element(p, item.first_outer, [&](float& x, int at) { x = first[at]; });
  }
  __device__ void store_last_state() {
    if (float* last = segment.state_after(p, item.n)) {
      forget(last += std::int64_t{item.head} * p.inner * p.outer);
      this->for_each_element(p, item.first_outer, [&](float& x, int at) { last[at] = x; });
    }
  }
  /// `kEnds`: states before or after items may be in memory. Code for them takes room in the instruction caches.
  template <bool kEnds = true>
  __device__ void run() {
    start_item<kEnds>();
    scan();
    if constexpr (kEnds) store_last_state();
    if (!p.decay || item.first_outer != 0) return;
    if (float* decay = segment.decay(p, item.n, item.head, p.inner))
      for (int i = 0; i < 2; ++i)
        if (2 * thread + i < p.inner) decay[2 * thread + i] = i == 0 ? decay_so_far.x : decay_so_far.y;
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) gated_pass_kernel(const __grid_constant__ MappedGatedPass p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  GatedPassShared<C>& shared = *reinterpret_cast<GatedPassShared<C>*>(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, thread / 32, 0);
  cudaGridDependencySynchronize();
  if (thread == 0) {
    if constexpr (C::kSplits) init_stages(shared.of_w, 1, kGatedReleases<C>);
    init_stages(shared.of_x, 1, kGatedReleases<C>);
    init_stages(shared.of_y, 1, kGatedReleases<C>);
    fence_barrier_init();
    shared.item = Item(p, blockIdx.x, kTile, gated_pass_columns<C>(p));
  }
  sync_cluster();
  if (warp < kGroup / 32) {
    typename GatedPassConsumer<C>::Started started;
    GatedPassConsumer<C> consumer{{thread}, p, shared, shared.item, shared.item, false, started};
    consumer.begin();
    consumer.run();
    consumer.end();
  } else if (thread % 32 == 0) {
    const GatedPassProducer<C> producer{p, shared};
    producer.run(warp);
  }
  sync_cluster();  // the other blocks may still copy rows here, and arrive
#else
  __trap();
#endif
}

template <class C>
void launch_gated_pass(const GatedPass& p, cudaStream_t stream) {
  constexpr int bytes = sizeof(GatedPassShared<C>);
  static_assert(bytes <= 227 * 1024);
  const auto kernel = gated_pass_kernel<C>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const unsigned blocks = gated_pass_columns<C>(p) * static_cast<unsigned>(p.heads * p.rows());
  launch_kernel(kernel, dim3(blocks), C::kThreads, {bytes, starts_early(p.early), C::kCluster}, stream, MappedGatedPass(p));
}

template <class E, int kTiles>
void run_gated_pass(const GatedPass& p, cudaStream_t stream) {
  if (!p.out) launch_gated_pass<GatedPassVariant<E, kTiles, false, false>>(p, stream);
  else if (p.boundary_states) launch_gated_pass<GatedPassVariant<E, kTiles, true, true>>(p, stream);
  else launch_gated_pass<GatedPassVariant<E, kTiles, true, false>>(p, stream);
}
template <class E>
void run_gated_pass(const GatedPass& p, cudaStream_t stream) {
  switch ((p.inner + kTile - 1) / kTile) {
    case 2: return run_gated_pass<E, 2>(p, stream);
    case 3: return run_gated_pass<E, 3>(p, stream);
    default: return run_gated_pass<E, 4>(p, stream);
  }
}

}  // namespace glade::cuda::chunk_sm90
