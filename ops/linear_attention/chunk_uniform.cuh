#pragma once
// A pass of the chunk form (chunk_pass.cuh) for heads whose decay is the same at every step (g_gamma, or no gates), on Hopper.
//
// A cluster of two to four blocks has a sequence and a head. Its first block, the *walker*, goes through the sequence in chunks
// of 128 tokens with the state R = sum y_j w_j^T in the registers of two warp groups, and sends it, rounded, to the others as it
// is before each chunk. These, the *writers*, take the chunks in turn,
//     out = e^{c_t} (x R) + mask(x y^T) w.
// So only the walker's sum is serial, a chunk's scores are computed once for all channels of w, and every tensor moves from or to
// memory once (the walker and a writer read y and w at about the same time, one of them from the L2 cache). The hardware copies
// the tiles (TMA), at the order of single threads of a third warp group.
#include <glade/ops/linear_attention/chunk_cluster.cuh>
#include <glade/ops/linear_attention/chunk_stage.cuh>

namespace glade::cuda::passes {

inline constexpr int kLong = 2 * kTile;  ///< tokens of a chunk here, and most channels
inline constexpr int kWriters = 3;       ///< most of a cluster

/// The tensors of a Pass, for TMA: [tokens, heads, channels].
struct Maps {
  CUtensorMap x, y, w, out;
};

/// The chunks of a stretch, numbered in the pass's order. They are cut from its first token in memory on.
struct Chunks {
  std::int64_t begin;  ///< the first token in memory
  int tokens, count;
  bool ascending;  ///< the pass's order is that in memory

  __device__ Chunks(const Pass& p, const Stretch& s) {
    const int first = s.first_chunk * kTile, end = min(s.end_chunk * kTile, s.count);
    tokens = max(end - first, 0);
    begin = s.begin + (p.reverse ? s.count - end : first);
    count = (tokens + kLong - 1) / kLong;
    ascending = p.reverse == p.backward;
  }
  __device__ int offset(int chunk) const { return (ascending ? chunk : count - 1 - chunk) * kLong; }
  __device__ int first_token(int chunk) const { return static_cast<int>(begin) + offset(chunk); }
  __device__ int size(int chunk) const { return min(tokens - offset(chunk), kLong); }
};

/// Decays, of a head.
struct Decays {
  float step;  ///< log, base 2
  int after;   ///< 1 where a state has the decay of the step after it as well (those of gradients)

  __device__ Decays(const Pass& p, std::int64_t n, int head)
      : step(p.g_gamma ? at_least(kLog2e * p.g_gamma[n * p.heads + head], kLeastGate) : 0.f), after(p.backward) {}
  __device__ float over(int steps) const { return exp2_approx(step * static_cast<float>(steps)); }
  /// From the state before a chunk of n tokens to token t.
  __device__ float before(const Chunks& c, int t, int n) const { return over((c.ascending ? t + 1 : n - t) - after); }
  /// From token t to the state after the chunk; 0 where there is no such token.
  __device__ float beyond(const Chunks& c, int t, int n) const {
    return t < n ? over((c.ascending ? n - 1 - t : t) + after) : 0.f;
  }
};

template <class E>
struct ClusterShared {
  using Tile = SwizzledTile<E>;
  static constexpr int kHalves = 4, kStages = 2;
  struct Half {
    Tile y[2], w[2];  ///< by channels
  };
  struct Stage {
    Tile x[2][2], y[2][2];  ///< by channels, by tokens
    Tile w[2][2];           ///< by tokens, by channels
  };
  using State = Tile[2][2];  ///< by channels of y, by channels of w
  union {
    struct {
      Half halves[kHalves];
      State states[kWriters];
    } walker;
    struct {
      Stage stages[kStages];
      State state;
    } writer;
  };
  std::uint64_t full[kHalves], empty[kHalves];
  std::uint64_t state_full;                                   ///< of a writer
  std::uint64_t written[kStages];                             ///< its results, where x was
  std::uint64_t state_ready[kWriters], state_free[kWriters];  ///< of the walker
};

/// What the warp groups of both kinds of blocks have in common. Two share a block; each has 64 rows of the results.
template <class E>
struct ClusterGroup {
  using S = ClusterShared<E>;
  using Tile = SwizzledTile<E>;
  static constexpr int kWarps = 2 * kGroup / 32, kBoth = 1;  ///< kBoth: barrier of both groups

  const Pass& p;
  S& shared;
  const Chunks chunks;
  const Decays decays;
  const int writers, group, thread;

  __device__ int lane() const { return thread % 32; }
  __device__ int row() const { return thread / 32 * 16 + lane() / 4; }  ///< the first of this thread's two
  __device__ void sync() const { sync_group<kGroup>(2 + group); }
  /// Of this warp.
  __device__ void arrive(std::uint64_t* barrier) const {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }
  /// Zeros to the rows of a half chunk that belong to no token of the sequence, by both groups: in tiles of y, so many apart, and
  /// w.
  __device__ void clear_rows(Tile* y, int apart, Tile* w, int tokens) const {
    // Those who have read what was there before told the barriers of the copies, which racecheck does not see.
    sync_group<2 * kGroup>(kBoth);
#pragma unroll 1
    for (int i = max(tokens, 0) * 8 + group * kGroup + thread; i < kTile * 8; i += 2 * kGroup)
      for (Tile* tile : {y, y + apart, w, w + 1}) *reinterpret_cast<uint4*>(tile->at(i / 8, i % 8)) = uint4{};
    fence_for_wgmma();
    sync_group<2 * kGroup>(kBoth);
  }
  /// 64 rows of 128 accumulated columns, rounded,
  using Rounded = std::uint32_t[8][4];
  __device__ static void round(Rounded& rounded, const float (&x)[64]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) rounded[i / 4][i % 4] = pack<E>(x[2 * i], x[2 * i + 1]);
  }
  /// to two tiles.
  __device__ void to_tiles(Tile& left, Tile& right, const Rounded& rounded) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) store_straight(k < 4 ? left : right, k % 4 * 2, rounded[k], thread);
  }
};

/// A warp group of the walker: the state's rows of 64 channels of y.
template <class E>
struct Walker : ClusterGroup<E> {
  using Base = ClusterGroup<E>;
  using S = typename Base::S;
  using Base::p, Base::shared, Base::chunks, Base::decays, Base::writers, Base::group, Base::thread, Base::lane, Base::row;
  using Left = std::uint32_t[4][4];

  float state[64];  ///< rows are channels of y, columns those of w
  Left y[2];        ///< halves of a chunk, transposed, times the decays after their tokens
  float2 beyond[2][4][2];
  float decay;           ///< of a chunk
  int beyond_size = -1;  ///< of the chunk that those decays are for

  template <class F>
  __device__ void each_of_state(F&& f) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int inner = group * kTile + row() + i / 2 % 2 * 8, outer = i / 4 * 8 + lane() % 4 * 2 + i % 2;
      if (outer < p.outer && inner < p.inner)
        f(state[i], std::int64_t{outer} * p.outer_stride + std::int64_t{inner} * p.inner_stride);
    }
  }
  __device__ typename S::Half& half(int chunk, int index) const { return shared.walker.halves[(2 * chunk + index) % S::kHalves]; }
  /// Waits for a half of a chunk and takes y from it,
  __device__ void load(int chunk, int index) {
    const int i = 2 * chunk + index, size = chunks.size(chunk);
    typename S::Half& tiles = half(chunk, index);
    if (size != beyond_size) {
      beyond_size = size;
      decay = decays.over(size);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int t = j * 8 + lane() % 4 * 2;
        beyond[j / 8][j / 2 % 4][j % 2] = make_float2(decays.beyond(chunks, t, size), decays.beyond(chunks, t + 1, size));
      }
    }
    barrier_wait(&shared.full[i % S::kHalves], i / S::kHalves & 1);
    if (const int tokens = size - index * kTile; tokens < kTile) this->clear_rows(tiles.y, 1, tiles.w, tokens);
#pragma unroll
    for (int k = 0; k < 4; ++k) load_transposed(y[index][k], tiles.y[group], k, thread);
  }
  /// which is then multiplied with the decays.
  __device__ void weigh(int index) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 values = unpack<E>(y[index][i / 4][i % 4]), by = beyond[index][i / 4][i / 2 % 2];
      y[index][i / 4][i % 4] = pack<E>(values.x * by.x, values.y * by.y);
    }
  }
  __device__ void multiply(int chunk, int index) {
    const std::uint32_t w = operand(half(chunk, index).w[0]);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_wide<E>(state, y[index][k], wide_descriptor(w, k * kRowStep));
    wgmma_commit();
  }
  __device__ void release(int chunk, int index) const { this->arrive(&shared.empty[(2 * chunk + index) % S::kHalves]); }
  /// The state before a chunk to where it is sent from to a writer, as its chunk number `turn`.
  __device__ void leave(int writer, int turn, const typename Base::Rounded& rounded) const {
    if (turn > 0) barrier_wait(&shared.state_free[writer], (turn - 1) & 1);
    auto& tiles = shared.walker.states[writer][group];
    this->to_tiles(tiles[0], tiles[1], rounded);
    this->arrive(&shared.state_ready[writer]);
  }

  __device__ void run(const float* first, float* last) {
#pragma unroll
    for (float& x : state) x = 0;
    if (first) {
      const float by = p.backward ? 1 / p.scale : 1.f;
      each_of_state([&](float& x, std::int64_t at) { x = first[at] * by; });
    }
    if (chunks.count > 0) {
      load(0, 0);
      weigh(0);
    }
    for (int chunk = 0, writer = 0, turn = 0; chunk < chunks.count; ++chunk) {
      typename Base::Rounded rounded;
      Base::round(rounded, state);
#pragma unroll
      for (float& x : state) x *= decay;
      multiply(chunk, 0);
      load(chunk, 1);
      leave(writer, turn, rounded);
      if (++writer == writers) writer = 0, ++turn;
      weigh(1);
      multiply(chunk, 1);
      wgmma_wait<1>();
      release(chunk, 0);
      if (chunk + 1 < chunks.count) {
        load(chunk + 1, 0);
        weigh(0);
      }
      wgmma_wait<0>();
      pin(state);
      release(chunk, 1);
    }
    if (last) {
      const float by = p.backward ? p.scale : 1.f;
      each_of_state([&](float& x, std::int64_t at) { last[at] = x * by; });
    }
  }
};

/// A warp group of a writer: 64 tokens of every chunk whose turn it is.
template <class E>
struct Writer : ClusterGroup<E> {
  using Base = ClusterGroup<E>;
  using S = typename Base::S;
  using Base::p, Base::shared, Base::chunks, Base::decays, Base::writers, Base::group, Base::thread, Base::lane, Base::row;
  using Left = std::uint32_t[4][4];
  static constexpr bool kRests = std::is_same_v<E, __nv_bfloat16>;  ///< scores in two numbers, as in Variant

  const int head, number;  ///< number: of this writer

  /// Scores of this group's tokens and those of `half`.
  __device__ void start_scores(float (&sums)[32], const typename S::Stage& stage, int half) const {
    const std::uint32_t x = operand(stage.x[0][group]), y = operand(stage.y[0][half]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int step = i / 4 * 2 * kTileStep + i % 4 * kColumnStep;
      wgmma_shared<E>(sums, descriptor(x, step), descriptor(y, step), i);
    }
  }
  /// Scores times decays, as operands; between tokens at least `apart` steps apart.
  __device__ void weigh(Left& left, Left& rest, const float (&sums)[32], int apart) const {
    const float distance = static_cast<float>(chunks.ascending ? row() - lane() % 4 * 2 : lane() % 4 * 2 - row());
    const float sign = chunks.ascending ? -1.f : 1.f;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float value[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        // Column minus row, but for the parts that depend on the thread.
        const float steps = distance + static_cast<float>(apart) + sign * static_cast<float>(i / 2 * 8 + j - i % 2 * 8);
        value[j] = steps < 0 ? 0.f : sums[2 * i + j] * (p.scale * exp2_approx(decays.step * steps));
      }
      left[i / 4][i % 4] = pack<E>(value[0], value[1]);
      if constexpr (kRests) rest[i / 4][i % 4] = pack_rest<E>(value[0], value[1], left[i / 4][i % 4]);
    }
  }
  __device__ void multiply(float (&out)[64], const Left& left, const Left& rest, std::uint32_t w, int half) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_wide<E>(out, left[k], wide_descriptor(w, half * 2 * kTileStep + k * kRowStep));
    if constexpr (kRests)
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_wide<E>(out, rest[k], wide_descriptor(w, half * 2 * kTileStep + k * kRowStep));
  }
  /// The results to memory, or, those of a whole chunk in the elements' type, to where x was.
  __device__ void store(const float (&out)[64], typename S::Stage& stage, int chunk) const {
    const int size = chunks.size(chunk);
    const std::int64_t first = chunks.begin + chunks.offset(chunk) + group * kTile;
    if (p.wide_out) {
#pragma unroll
      for (int i = 0; i < 64; i += 2) {
        const int t = row() + i / 2 % 2 * 8, column = i / 4 * 8 + lane() % 4 * 2;
        if (group * kTile + t < size && column < p.outer)
          *reinterpret_cast<float2*>(static_cast<float*>(p.out) + (first + t) * p.out_step + std::int64_t{head} * p.outer +
                                     column) = make_float2(out[i], out[i + 1]);
      }
      return;
    }
    typename Base::Rounded rounded;
    Base::round(rounded, out);
    this->sync();  // all of the group have read x
    this->to_tiles(stage.x[0][group], stage.x[1][group], rounded);
    if (size == kLong) return;
    __syncwarp();
    const int column = lane() % 16 * 8;
    E* const to = static_cast<E*>(p.out) + first * p.out_step + std::int64_t{head} * p.outer + column;
#pragma unroll 1
    for (int t = thread / 32 * 16 + lane() / 16; t < thread / 32 * 16 + 16; t += 2)
      if (group * kTile + t < size && column < p.outer)
        *reinterpret_cast<uint4*>(to + t * p.out_step) =
            *reinterpret_cast<const uint4*>(stage.x[lane() / 8 % 2][group].at(t, lane() % 8));
  }

  /// kFar: the other group's tokens come before this group's.
  template <bool kFar>
  __device__ void take(typename S::Stage& stage, int chunk, int index) const {
    float near[32], far[32], out[64];
    wgmma_begin();
    start_scores(near, stage, group);
    if constexpr (kFar) start_scores(far, stage, 1 - group);
    wgmma_commit();

    barrier_wait(&shared.state_full, index & 1);
    if (group == 0 && thread == 0) barrier_expect(&shared.state_full, sizeof(typename S::State));
    const std::uint32_t x = operand(stage.x[0][group]), state = operand(shared.writer.state[0][0]), w = operand(stage.w[0][0]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      wgmma_wide<E>(out, descriptor(x, i / 4 * 2 * kTileStep + i % 4 * kColumnStep),
                    wide_descriptor(state, i / 4 * 2 * kTileStep + i % 4 * kRowStep), i);
    wgmma_commit();

    wgmma_wait<1>();
    pin(near);
    Left left, rest, far_left, far_rest;
    weigh(left, rest, near, 0);
    if constexpr (kFar) {
      pin(far);
      weigh(far_left, far_rest, far, kTile);
    }
    wgmma_wait<0>();
    pin(out);
    if (lane() == 0) barrier_arrive_in(0, &shared.state_free[number]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float by = p.scale * decays.before(chunks, group * kTile + row() + half * 8, chunks.size(chunk));
#pragma unroll
      for (int i = 0; i < 64; ++i)
        if (i / 2 % 2 == half) out[i] *= by;
    }
    wgmma_begin();
    multiply(out, left, rest, w, group);
    if constexpr (kFar) multiply(out, far_left, far_rest, w, 1 - group);
    wgmma_commit();
    wgmma_wait<0>();
    pin(out);
    store(out, stage, chunk);
    this->arrive(&shared.written[index % S::kStages]);
  }
  __device__ void run() const {
    const bool far = chunks.ascending == (group == 1);
    for (int chunk = number, index = 0; chunk < chunks.count; chunk += writers, ++index) {
      typename S::Stage& stage = shared.writer.stages[index % S::kStages];
      barrier_wait(&shared.full[index % S::kStages], index / S::kStages & 1);
      for (int half = 0; half < 2; ++half)
        if (const int tokens = chunks.size(chunk) - half * kTile; tokens < kTile)
          this->clear_rows(&stage.y[0][half], 2, stage.w[half], tokens);
      far ? take<true>(stage, chunk, index) : take<false>(stage, chunk, index);
    }
  }
};

/// What single threads of a block order from the hardware.
template <class E>
struct Orders {
  using S = ClusterShared<E>;
  const Pass& p;
  const Maps& maps;
  S& shared;
  const Chunks& chunks;
  const int head, writers;

  __device__ void copy(SwizzledTile<E>& to, const CUtensorMap& map, const Rows& rows, int tile, int token,
                       std::uint64_t* barrier) const {
    copy_tile(to, map, tile * kTile, head / rows.group, token, barrier);
  }
  __device__ void for_walker() const {
    for (int i = 0; i < 2 * chunks.count; ++i) {
      const int h = i % S::kHalves, token = chunks.first_token(i / 2) + i % 2 * kTile;
      if (i >= S::kHalves) barrier_wait(&shared.empty[h], (i / S::kHalves - 1) & 1);
      barrier_expect(&shared.full[h], sizeof(typename S::Half));
      for (int tile = 0; tile < 2; ++tile) {
        copy(shared.walker.halves[h].y[tile], maps.y, p.y, tile, token, &shared.full[h]);
        copy(shared.walker.halves[h].w[tile], maps.w, p.w, tile, token, &shared.full[h]);
      }
    }
  }
  __device__ void for_writer(int number) const {
    for (int chunk = number, index = 0; chunk < chunks.count; chunk += writers, ++index) {
      const int s = index % S::kStages;
      typename S::Stage& stage = shared.writer.stages[s];
      if (index >= S::kStages) barrier_wait(&shared.empty[s], (index / S::kStages - 1) & 1);
      barrier_expect(&shared.full[s], sizeof(typename S::Stage));
      for (int half = 0; half < 2; ++half)
        for (int tile = 0; tile < 2; ++tile) {
          const int token = chunks.first_token(chunk) + half * kTile;
          copy(stage.x[tile][half], maps.x, p.x, tile, token, &shared.full[s]);
          copy(stage.y[tile][half], maps.y, p.y, tile, token, &shared.full[s]);
          copy(stage.w[half][tile], maps.w, p.w, tile, token, &shared.full[s]);
        }
    }
  }
  /// States to the writers.
  __device__ void send() const {
    for (int chunk = 0, writer = 0, turn = 0; chunk < chunks.count; ++chunk) {
      barrier_wait(&shared.state_ready[writer], turn & 1);
      fence_for_wgmma();  // on behalf of those who wrote, who have no time for it
      for (int i = 0; i < 4; ++i)
        send_tile(1 + writer, shared.walker.states[writer][i / 2][i % 2], shared.writer.state[i / 2][i % 2], &shared.state_full);
      if (++writer == writers) writer = 0, ++turn;
    }
  }
  /// Results to memory; then their stage is empty.
  __device__ void store(int number) const {
    for (int chunk = number, index = 0; chunk < chunks.count; chunk += writers, ++index) {
      const int s = index % S::kStages;
      barrier_wait(&shared.written[s], index / S::kStages & 1);
      fence_for_wgmma();
      if (chunks.size(chunk) == kLong && !p.wide_out) {
        for (int half = 0; half < 2; ++half)
          for (int tile = 0; tile < 2; ++tile)
            store_tile(shared.writer.stages[s].x[tile][half], maps.out, tile * kTile, head,
                       chunks.first_token(chunk) + half * kTile);
        commit_stores();
        wait_stores();
      }
      barrier_arrive(&shared.empty[s]);
    }
  }
};

inline constexpr int kClusterThreads =
    3 * kGroup;  ///< the last group has one thread at work, and leaves its registers to the others

/// Blocks: [writers + 1, heads, sequences x parts], in clusters of the first.
template <class E>
__global__ void __launch_bounds__(kClusterThreads, 1)
    uniform_kernel(const __grid_constant__ Pass p, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ClusterShared<E>;
  S& shared = *reinterpret_cast<S*>(memory);
  const int rank = cluster_rank(), writers = static_cast<int>(gridDim.x) - 1, head = static_cast<int>(blockIdx.y);
  const int group = static_cast<int>(threadIdx.x) / kGroup, thread = static_cast<int>(threadIdx.x) % kGroup;
  const std::int64_t n = blockIdx.z / p.run_parts;
  const Stretch stretch(p, n, p.first_part + static_cast<int>(blockIdx.z % p.run_parts));
  const Chunks chunks(p, stretch);
  if (threadIdx.x == 0) {
    constexpr int kWarps = ClusterGroup<E>::kWarps;
    for (int i = 0; i < S::kHalves; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], rank == 0 ? kWarps : 1);
    }
    for (std::uint64_t& barrier : shared.written) barrier_init(&barrier, kWarps);
    barrier_init(&shared.state_full, 1);
    for (int i = 0; i < kWriters; ++i) {
      barrier_init(&shared.state_ready[i], kWarps);
      barrier_init(&shared.state_free[i], kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (rank > 0) barrier_expect(&shared.state_full, sizeof(typename S::State));
  }
  sync_cluster();
  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const Orders<E> orders{p, maps, shared, chunks, head, writers};
    if (thread == 0) rank == 0 ? orders.for_walker() : orders.for_writer(rank - 1);
    if (thread == 32) rank == 0 ? orders.send() : orders.store(rank - 1);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const ClusterGroup<E> base{p, shared, chunks, Decays(p, n, head), writers, group, thread};
    if (rank == 0) {
      const std::int64_t at = std::int64_t{head} * p.inner * p.outer;
      const float* first = stretch.state_before(p, n);
      float* last = stretch.state_after(p, n);
      Walker<E>{base}.run(first ? first + at : nullptr, last ? last + at : nullptr);
    } else {
      Writer<E>{base, head, rank - 1}.run();
    }
  }
  sync_cluster();  // none ends while others send to it
#else
  __trap();
#endif
}

}  // namespace glade::cuda::passes
