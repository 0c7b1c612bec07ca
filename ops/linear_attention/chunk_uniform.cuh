#pragma once
// Passes of the chunk form (chunk_pass.cuh) for heads whose decay is the same at every step (g_gamma, or no gates), on Hopper.
// How sequences are shared out is in chunk_uniform_parts.cuh.
//
// A block has a part and all channels. Single threads of a warp group order the copies of tiles (TMA); another group, the
// *scorer*, computes the scores x y^T; two *consumers*, each with 64 channels of w, do the rest, as those of other passes do. The
// factors are those of whole chunks, known beforehand.
#include <glade/ops/linear_attention/chunk_copies.cuh>
#include <glade/ops/linear_attention/chunk_state.cuh>
#include <glade/ops/linear_attention/chunk_uniform_parts.cuh>

namespace glade::cuda::passes {

template <class E>
struct UniformShared {
  using Tile = SwizzledTile<E>;
  static constexpr int kStages = 4, kScores = 2;
  struct Stage {
    Tile x[2], y[2], w[2];  ///< by channels; w: later the results
  };
  struct Scores {
    Tile rounded, rest;
  };
  struct Factors {
    float before[kTile], beyond[kTile];  ///< of results, times the scale, and of w
  };
  Stage stages[kStages];
  Scores scores[kScores];
  Factors factors[2];  ///< of whole chunks, and of the one that may not be
  std::uint64_t full[kStages], empty[kStages], written[kStages], scored[kScores], used[kScores];
};

/// What warp groups have in common.
template <class E>
struct UniformBlock {
  using S = UniformShared<E>;
  static constexpr bool kRests = std::is_same_v<E, __nv_bfloat16>;  ///< scores in two numbers, as in Variant
  static constexpr int kWarps = kGroup / 32, kConsumers = 2;
  const Pass& p;
  S& shared;
  const Cut& cut;
  const Span& span;
  const Decays decays;
  const std::int64_t sequence;
  const int head;
  float4* const adds;  ///< of the pass
  const bool is_walk;  ///< for what pieces add

  __device__ typename S::Stage& stage(int i) const { return shared.stages[i % S::kStages]; }
  __device__ void wait_for(int i) const { barrier_wait(&shared.full[i % S::kStages], i / S::kStages & 1); }
  /// Of a warp.
  __device__ static void arrive(std::uint64_t* barrier, int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }
};

/// The warp group of the scores.
template <class E>
struct Scorer : UniformBlock<E> {
  using Base = UniformBlock<E>;
  using S = typename Base::S;
  using Base::p, Base::shared, Base::span, Base::decays;
  const int thread;

  __device__ void run() const {
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    float weights[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int steps = row + i / 2 % 2 * 8 - (i / 4 * 8 + lane % 4 * 2 + i % 2), distance = p.backward ? -steps : steps;
      weights[i] = distance < 0 ? 0.f : p.scale * decays.over(distance);
    }
    for (int i = 0; i < span.count; ++i) {
      this->wait_for(i);
      std::uint64_t* const empty = &shared.empty[i % S::kStages];
      if (i < span.early) {
        this->arrive(empty, lane);
        continue;
      }
      const typename S::Stage& stage = this->stage(i);
      float sums[32];
      const std::uint32_t x = operand(stage.x[0]), y = operand(stage.y[0]);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int columns = k / 4 * kTileStep + k % 4 * kColumnStep;
        wgmma_shared<E>(sums, descriptor(x, columns), descriptor(y, columns), k);
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin(sums);
      this->arrive(empty, lane);
      const int size = span.size(i);
#pragma unroll
      for (int j = 0; j < 32; ++j) sums[j] *= weights[j];
      if (size < kTile)  // there is anything in the other rows of y
#pragma unroll
        for (int j = 0; j < 32; ++j)
          if (weights[j] == 0 || j / 4 * 8 + lane % 4 * 2 + j % 2 >= size) sums[j] = 0;
      const int turn = i - span.early, slot = turn % S::kScores;
      if (turn >= S::kScores) barrier_wait(&shared.used[slot], (turn / S::kScores - 1) & 1);
      typename S::Scores& to = shared.scores[slot];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::uint32_t rounded[4], rest[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* pair = &sums[8 * k + 2 * j];
          rounded[j] = pack<E>(pair[0], pair[1]);
          rest[j] = pack_rest<E>(pair[0], pair[1], rounded[j]);
        }
        store_straight(to.rounded, 2 * k, rounded, thread);
        if constexpr (Base::kRests) store_straight(to.rest, 2 * k, rest, thread);
      }
      fence_for_wgmma();
      this->arrive(&shared.scored[slot], lane);
    }
  }
};

template <class E>
struct UniformVariant {
  using Element = E;
  static constexpr Gates kGates = Gates::none;
  static constexpr int kTiles = 2;
};

/// A warp group with 64 channels of w.
template <class E>
struct UniformConsumer : UniformBlock<E>, State<UniformVariant<E>> {
  using Base = UniformBlock<E>;
  using State = passes::State<UniformVariant<E>>;
  using S = typename Base::S;
  using Base::p, Base::shared, Base::cut, Base::span, Base::decays, Base::adds, Base::head;
  using State::state, State::thread, State::lane, State::row;
  using typename State::Left;
  int index;  ///< of the consumer
  float decay = decays.over(kTile);

  __device__ int first_outer() const { return index * kTile; }
  /// What a part adds: four elements of this thread's state, and the next kGroup further on.
  __device__ float4* adds_of(int part) const {
    return adds + (std::int64_t{cut.slot + part} * 2 + index) * (kStateFloats / 8) + thread;
  }
  /// Of the [.., heads, inner, outer] before or after all tokens.
  template <class F>
  __device__ void each(F&& f) {
    this->each_of_state(p, first_outer(), [&](float& x, std::int64_t at) { f(x, std::int64_t{head} * p.inner * p.outer + at); });
  }

  /// The state before the span.
  __device__ void start() {
#pragma unroll
    for (auto& tile : state)
#pragma unroll
      for (float& x : tile) x = 0;
    if (this->is_walk || (!span.at_edge && !cut.remembers)) return;
    const auto decay_from = [&](int token) { return decays.over(p.backward ? token - span.edge : span.edge - token); };
    if (p.first) {
      const float* first = p.first + (p.first_is_shared ? 0 : this->sequence * p.heads * p.inner * p.outer);
      const float by = (p.backward ? 1 / p.scale : 1.f) * decay_from(p.backward ? span.length : 0);
      each([&](float& x, std::int64_t at) { x = first[at] * by; });
    }
    if (span.at_edge) return;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    for (int part = p.backward ? cut.part + 1 : 0; part < (p.backward ? cut.parts : cut.part); ++part) {
      const float by = decay_from(min((p.backward ? part : part + 1) * cut.part_chunks * kTile, span.length));
      const float4* from = adds_of(part);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float4 values = from[i * kGroup];
        float* to = &state[i / 8][i % 8 * 4];
        to[0] += values.x * by, to[1] += values.y * by, to[2] += values.z * by, to[3] += values.w * by;
      }
    }
  }
  /// The state after the span.
  __device__ void finish() {
    if (this->is_walk) {
      float4* to = adds_of(cut.part);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float* from = &state[i / 8][i % 8 * 4];
        to[i * kGroup] = make_float4(from[0], from[1], from[2], from[3]);
      }
    } else if (p.last && cut.is_last(p.backward)) {
      store_state(p.last + (this->sequence * p.heads + head) * p.inner * p.outer);
    }
  }
  /// By way of tiles that nobody needs any more, and then in rows of w's channels.
  __device__ void store_state(float* last) {
    sync_group<2 * kGroup>(1);
    float* const tile = reinterpret_cast<float*>(shared.stages[index].x);  // [channels of y][64 of w, swizzled]
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int inner = i / 32 * kTile + i % 32 / 4 * 8 + lane() % 4 * 2 + i % 2, outer = row() + i / 2 % 2 * 8;
      tile[inner * kTile + (outer ^ inner / 2 % 4 * 8)] = state[i / 32][i % 32];
    }
    sync_group<kGroup>(2 + index);
    const float by = p.backward ? p.scale : 1.f;
    const int outer = thread % 16 * 4;
    if (first_outer() + outer >= p.outer) return;
    last += first_outer() + outer;
#pragma unroll 4
    for (int inner = thread / 16; inner < p.inner; inner += kGroup / 16) {
      const float4 values = *reinterpret_cast<const float4*>(&tile[inner * kTile + (outer ^ inner / 2 % 4 * 8)]);
      *reinterpret_cast<float4*>(last + inner * p.inner_stride) =
          make_float4(values.x * by, values.y * by, values.z * by, values.w * by);
    }
  }

  /// Zeros to the rows of y and w that belong to no token of the sequence, by both consumers.
  __device__ void clear(typename S::Stage& stage, int tokens) const {
    // Those who have read what was there before told the barriers of the copies, which racecheck does not see.
    sync_group<2 * kGroup>(1);
    for (int i = tokens * 8 + thread; i < kTile * 8; i += kGroup)
      for (SwizzledTile<E>* tile : {&stage.y[index], &stage.w[index]})
        *reinterpret_cast<uint4*>(tile->at(i / 8, i % 8)) = uint4{};
    fence_for_wgmma();
    sync_group<2 * kGroup>(1);
  }
  __device__ void weigh(Left& to, const Left& w, const typename S::Factors& factors) const {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 by = *reinterpret_cast<const float2*>(&factors.beyond[16 * k + half * 8 + lane() % 4 * 2]);
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          const float2 values = unpack<E>(w[k][j]);
          to[k][j] = pack<E>(values.x * by.x, values.y * by.y);
        }
      }
  }
  __device__ void scale(float by) {
    this->scale_rows(by, by);
    for (auto& tile : state) pin(tile);  // before any product starts
  }
  /// Waits for a chunk; what is to be known of it.
  struct Chunk {
    typename S::Stage& stage;
    const typename S::Factors& factors;
    float decay;
    int size;
  };
  __device__ Chunk chunk(int i) {
    forget(this->thread);
    typename S::Stage& stage = this->stage(i);
    const int size = span.size(i), whole = size == kTile;
    this->wait_for(i);
    if (!whole) clear(stage, size);
    return {stage, shared.factors[!whole], whole ? decay : decays.over(size), size};
  }
  __device__ void release(int i) const { Base::arrive(&shared.written[i % S::kStages], lane()); }

  /// w of a chunk times the decays after its tokens; the chunk's own decay.
  struct Weighted {
    Left w;
    float decay;
  };
  __device__ void fetch(Weighted& to, int i) {
    const Chunk chunk = this->chunk(i);
    this->load(to.w, chunk.stage.w[index]);
    weigh(to.w, to.w, chunk.factors);
    to.decay = chunk.decay;
  }
  /// Through the chunks without results.
  __device__ void walk() {
    Weighted turns[2];
    if (span.early > 0) fetch(turns[0], 0);
    const auto take = [&](const Weighted& own, Weighted& next, int i) {
      scale(own.decay);
      this->add_to_state(own.w, operand(this->stage(i).y[0]));
      if (i + 1 < span.early) fetch(next, i + 1);
      this->wait_for_state();
      release(i);
    };
    for (int i = 0; i < span.early; i += 2) {
      take(turns[0], turns[1], i);
      if (i + 1 < span.early) take(turns[1], turns[0], i + 1);
    }
  }
  __device__ void take(int i) {
    const auto [stage, factors, its_decay, size] = chunk(i);
    float out[32];
    typename State::Rounded rounded;
    this->round_state(rounded, 0);
    const std::uint32_t x = operand(stage.x[0]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      wgmma<E, 0>(out, rounded[i / 4][i % 4], descriptor(x, i / 4 * kTileStep + i % 4 * kColumnStep), i);
    wgmma_commit();
    Left w, weighted;
    this->load(w, stage.w[index]);
    weigh(weighted, w, factors);
    scale(its_decay);
    this->add_to_state(weighted, operand(stage.y[0]));
    wgmma_wait<1>();
    pin(out);
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float2 by = *reinterpret_cast<const float2*>(&factors.before[m * 8 + lane() % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[4 * m + i] *= i % 2 ? by.y : by.x;
    }
    const int turn = i - span.early, slot = turn % S::kScores;
    barrier_wait(&shared.scored[slot], turn / S::kScores & 1);
    wgmma_begin();
    this->add_product(out, w, operand(shared.scores[slot].rounded), 1);
    if constexpr (Base::kRests) this->add_product(out, w, operand(shared.scores[slot].rest), 1);
    wgmma_commit();
    this->wait_for_state();
    pin(out);
    Base::arrive(&shared.used[slot], lane());
    store(out, stage.w[index], size, span.first_token(i));
    release(i);
  }
  /// The results to memory, or, those of a whole chunk in the elements' type, to where w was.
  __device__ void store(const float (&out)[32], SwizzledTile<E>& tile, int size, std::int64_t first_token) const {
    if (p.wide_out) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int t = i / 4 * 8 + lane() % 4 * 2 + i % 2, column = first_outer() + row() + i / 2 % 2 * 8;
        if (t < size && column < p.outer)
          static_cast<float*>(p.out)[(first_token + t) * p.out_step + std::int64_t{head} * p.outer + column] = out[i];
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // over this warp's own channels of w
      const float* s = &out[8 * k];
      const std::uint32_t r[4] = {pack<E>(s[0], s[1]), pack<E>(s[2], s[3]), pack<E>(s[4], s[5]), pack<E>(s[6], s[7])};
      store_transposed(tile, k, r, thread);
    }
    if (size == kTile) return;
    sync_group<kGroup>(2 + index);
    for (int t = thread / 8; t < size; t += kGroup / 8)
      if (const int column = first_outer() + thread % 8 * 8; column < p.outer)
        *reinterpret_cast<uint4*>(static_cast<E*>(p.out) + (first_token + t) * p.out_step + std::int64_t{head} * p.outer +
                                  column) = *reinterpret_cast<const uint4*>(tile.at(t, thread % 8));
  }

  __device__ void run() {
    start();
    walk();
    for (int i = span.early; i < span.count; ++i) take(i);
    finish();
  }
};

/// What single threads order from the hardware.
template <class E>
struct Orders : UniformBlock<E> {
  using Base = UniformBlock<E>;
  using S = typename Base::S;
  using Base::p, Base::shared, Base::span, Base::head;
  const Maps& maps;

  /// Chunks with results have one and a half of them on the way from memory: more would come no sooner where memory limits, but
  /// would make everything else wait for longer, and some multiprocessors for much longer than others.
  __device__ void load() const {
    const int x_head = head / p.x.group, y_head = head / p.y.group, w_head = head / p.w.group;
    for (int i = 0; i < span.count; ++i) {
      const int s = i % S::kStages, token = static_cast<int>(span.first_token(i));
      typename S::Stage& stage = shared.stages[s];
      std::uint64_t* const full = &shared.full[s];
      const bool results = i >= span.early;
      if (i >= S::kStages) barrier_wait(&shared.empty[s], (i / S::kStages - 1) & 1);
      if (results && i >= 2) this->wait_for(i - 2);
      barrier_expect(full, results ? sizeof(stage) : sizeof(stage) - sizeof(stage.x));
      copy_tile(stage.y[0], maps.y, 0, y_head, token, full);
      if (results) {
        copy_tile(stage.x[0], maps.x, 0, x_head, token, full);
        copy_tile(stage.x[1], maps.x, kTile, x_head, token, full);
        if (i >= 1) this->wait_for(i - 1);
      }
      copy_tile(stage.y[1], maps.y, kTile, y_head, token, full);
      copy_tile(stage.w[0], maps.w, 0, w_head, token, full);
      copy_tile(stage.w[1], maps.w, kTile, w_head, token, full);
    }
  }
  /// Results to memory; then their stage is empty.
  __device__ void store() const {
    for (int i = 0; i < span.count; ++i) {
      const int s = i % S::kStages;
      barrier_wait(&shared.written[s], i / S::kStages & 1);
      if (i >= span.early && !p.wide_out) fence_for_wgmma();  // on behalf of those who wrote, who have no time for it
      if (i >= span.early && !p.wide_out && span.size(i) == kTile) {
        for (int tile = 0; tile < 2; ++tile)
          store_tile(shared.stages[s].w[tile], maps.out, tile * kTile, head, static_cast<int>(span.first_token(i)));
        commit_stores();
        wait_stores();
      }
      barrier_arrive(&shared.empty[s]);
    }
  }
};

/// What a block of 4 kGroup threads has to do; `is_walk`: in the first launch.
template <class E>
__device__ void run_uniform(const Uniform& u, bool is_walk) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = UniformShared<E>;
  using Block = UniformBlock<E>;
  S& shared = *reinterpret_cast<S*>(memory);
  const int group = static_cast<int>(threadIdx.x) / kGroup, thread = static_cast<int>(threadIdx.x) % kGroup;
  const int block = static_cast<int>(blockIdx.x), blocks = is_walk ? u.walkers : u.blocks;
  const int forward = u.forward * blocks, others = max(u.count - u.forward, 1);
  const int number = block < forward ? block / blocks : u.forward + (block - forward) % others;
  const Pass& p = u.passes[number];
  Cut cut(u, p, block < forward ? block % blocks : (block - forward) / others, is_walk, thread % 32);
  cut.pair = __shfl_sync(~0u, cut.pair, 0);
  if (cut.pair < 0) return;
  const std::int64_t sequence = cut.pair / p.heads;
  const int head = static_cast<int>(cut.pair - sequence * p.heads);
  const Decays decays(p, sequence, head);
  Span span(p, cut, sequence, cut.remembers ? 0 : decays.memory());
  for (int* x : {&span.tokens, &span.count, &span.early}) *x = __shfl_sync(~0u, *x, 0);
  if (is_walk) span.early = span.count;
  if (threadIdx.x < kTile) {
    const int t = static_cast<int>(threadIdx.x), last = (span.tokens - 1) % kTile + 1;
    for (int i = 0; i < 2; ++i) {
      const int tokens = i == 0 ? kTile : last;
      shared.factors[i].before[t] = t < tokens ? p.scale * decays.before(t, tokens) : 0.f;
      shared.factors[i].beyond[t] = decays.beyond(t, tokens);
    }
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], Block::kWarps + 1);
      barrier_init(&shared.written[i], Block::kConsumers * Block::kWarps);
    }
    for (int i = 0; i < S::kScores; ++i) {
      barrier_init(&shared.scored[i], Block::kWarps);
      barrier_init(&shared.used[i], Block::kConsumers * Block::kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  float4* const adds = reinterpret_cast<float4*>(u.adds + std::int64_t{number} * u.blocks * kStateFloats);
  const Block base{p, shared, cut, span, decays, sequence, head, adds, is_walk};
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const Orders<E> orders{base, u.maps[number]};
    if (thread == 0) orders.load();
    if (thread == 32) orders.store();
    __syncwarp();
  } else if (group == 1) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
    Scorer<E>{base, thread}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
    UniformConsumer<E>{base, {thread}, group - 2}.run();
  }
}

inline constexpr int kUniformThreads = 4 * kGroup;

template <class E>
__global__ void __launch_bounds__(kUniformThreads, 1) walk_kernel(const __grid_constant__ Uniform u) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("griddepcontrol.launch_dependents;");
  run_uniform<E>(u, true);
#else
  __trap();
#endif
}
template <class E>
__global__ void __launch_bounds__(kUniformThreads, 1) results_kernel(const __grid_constant__ Uniform u) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  run_uniform<E>(u, false);
  asm volatile("griddepcontrol.wait;" ::: "memory");  // what follows this launch follows the one before it too
#else
  __trap();
#endif
}

}  // namespace glade::cuda::passes
