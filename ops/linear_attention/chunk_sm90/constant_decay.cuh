#pragma once
// Fused passes (chunk_sm90/pass_kernel.cuh) for heads with constant decay, on Hopper: g_gamma or no gates, where no gate needs a
// gradient. chunk_sm90/constant_decay_segments.cuh divides the sequences into segments.
//
// A block processes one segment with all channels. All factors of a whole chunk are known in advance. One warp group has two
// threads at work: one issues the TMA copies of the inputs, the other those of the results. A second warp group, the scorer,
// computes the scores x y^T. Two more, the consumers, have 64 channels of w each, and do what the consumers of other passes do.
#include <glade/ops/linear_attention/chunk_sm90/constant_decay_segments.cuh>
#include <glade/ops/linear_attention/chunk_sm90/tiles.cuh>
#include <glade/ops/linear_attention/chunk_sm90/wide_block.cuh>

namespace glade::cuda::chunk_sm90 {

template <class E>
struct ConstantDecayShared {
  static constexpr int kStages = 4, kScores = 2;
  static constexpr bool kLowParts = std::is_same_v<E, __nv_bfloat16>;  ///< of the scores, as Variant::kLowParts
  using Stage = WideRows<E, true>;
  using Scores = WideScores<E, kLowParts>;
  struct Factors {
    float before[kTile], to_end[kTile];  ///< before: of the results, including the scale; to_end: of w
  };
  Stage stages[kStages];
  Scores scores[kScores];
  Factors factors[2];  ///< of a whole chunk, and of the last chunk, which may be shorter
  std::uint64_t full[kStages], empty[kStages], written[kStages], scored[kScores], used[kScores];
};

/// What all warp groups of a block know.
template <class E>
struct ConstantDecayBlock {
  using S = ConstantDecayShared<E>;
  static constexpr int kWarps = kGroup / 32, kConsumers = 2;
  const ConstantDecayPass& p;
  S& shared;
  const BlockSegment& segment;
  const ChunkRange& range;
  const Decays decays;
  const std::int64_t sequence;
  const int head;
  float4* const added_states;  ///< of all segments of this pass, see ConstantDecay
  const bool is_scan;          ///< in the first launch, which computes the states that segments add

  __device__ typename S::Stage& stage(int i) const { return shared.stages[i % S::kStages]; }
  __device__ void wait_for(int i) const { barrier_wait(&shared.full[i % S::kStages], i / S::kStages & 1); }
  /// Arrives at a barrier on behalf of a warp.
  __device__ static void arrive(std::uint64_t* barrier, int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }
};

/// The warp group that computes the scores.
template <class E>
struct Scorer : ConstantDecayBlock<E>, WideScorer<E> {
  using Base = ConstantDecayBlock<E>;
  using S = typename Base::S;
  using Base::p, Base::shared, Base::range, Base::decays;
  using WideScorer<E>::thread;

  __device__ void run() const {
    const int lane = thread % 32;
    Accumulator<kTile> weights;
    weights.for_each(thread, [&](float& weight, int row, int column) {
      const int steps = row - column, distance = p.backward ? -steps : steps;
      weight = distance < 0 ? 0.f : p.scale * decays.over(distance);
    });
    for (int i = 0; i < range.count; ++i) {
      this->wait_for(i);
      std::uint64_t* const empty = &shared.empty[i % S::kStages];
      if (i < range.state_only) {
        this->arrive(empty, lane);
        continue;
      }
      Accumulator<kTile> sums;
      WideScorer<E>::start(sums, this->stage(i).x, this->stage(i).y);
      wgmma_wait<0>();
      pin(sums);
      this->arrive(empty, lane);
      const int size = range.size(i);
#pragma unroll
      for (int j = 0; j < sums.kSize; ++j) sums[j] *= weights[j];
      if (size < kTile)  // rows of y beyond the sequence's end may hold NaN, which a weight of 0 would not remove
#pragma unroll
        for (int j = 0; j < sums.kSize; ++j)
          if (weights[j] == 0 || sums.column(j, thread) >= size) sums[j] = 0;
      const int output_chunk = i - range.state_only, slot = output_chunk % S::kScores;
      if (output_chunk >= S::kScores) barrier_wait(&shared.used[slot], (output_chunk / S::kScores - 1) & 1);
      WideScorer<E>::store(shared.scores[slot], sums);
      this->arrive(&shared.scored[slot], lane);
    }
  }
};

template <class E>
struct ConstantDecayVariant {
  using Element = E;
  static constexpr Gates kGates = Gates::none;
  static constexpr int kTiles = 2;
  static constexpr bool kLowParts = ConstantDecayShared<E>::kLowParts;
};

/// A warp group that computes 64 channels of the results.
template <class E>
struct ConstantDecayConsumer : ConstantDecayBlock<E>, WideConsumer<ConstantDecayVariant<E>> {
  using Base = ConstantDecayBlock<E>;
  using State = WideConsumer<ConstantDecayVariant<E>>;
  using S = typename Base::S;
  using Base::p, Base::shared, Base::segment, Base::range, Base::decays, Base::added_states, Base::head;
  using State::index, State::lane, State::row, State::scale, State::state, State::thread;
  using typename State::Left;
  float decay = decays.over(kTile);

  __device__ int first_outer() const { return index * kTile; }
  /// The added state of a segment, as this thread's registers hold it: float4 i of this thread is i * kGroup further on.
  __device__ float4* added_states_of(int number) const {
    return added_states + (std::int64_t{segment.slot + number} * 2 + index) * (kStateFloats / 8) + thread;
  }
  /// Calls f(element, offset) for this head's elements in a [.., heads, inner, outer] tensor of states.
  template <class F>
  __device__ void for_each_head_element(F&& f) {
    this->for_each_element(p, first_outer(),
                           [&](float& x, std::int64_t at) { f(x, std::int64_t{head} * p.inner * p.outer + at); });
  }

  /// Initialises the state before the first chunk of the range.
  __device__ void start() {
#pragma unroll
    for (auto& tile : state) tile.fill(0);
    if (this->is_scan || (!range.at_sequence_start && !segment.long_memory)) return;
    const auto decay_from = [&](int token) {
      return decays.over(p.backward ? token - range.first_position : range.first_position - token);
    };
    if (p.first) {
      const float* first = p.first + (p.first_is_shared ? 0 : this->sequence * p.heads * p.inner * p.outer);
      const float by = (p.backward ? 1 / p.scale : 1.f) * decay_from(p.backward ? range.length : 0);
      for_each_head_element([&](float& x, std::int64_t at) { x = first[at] * by; });
    }
    if (range.at_sequence_start) return;
    cudaGridDependencySynchronize();
    for (int number = p.backward ? segment.number + 1 : 0; number < (p.backward ? segment.segments : segment.number); ++number) {
      const float by = decay_from(min((p.backward ? number : number + 1) * segment.segment_chunks * kTile, range.length));
      const float4* from = added_states_of(number);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float4 values = from[i * kGroup];
        float* to = &state[i / 8][i % 8 * 4];
        to[0] += values.x * by, to[1] += values.y * by, to[2] += values.z * by, to[3] += values.w * by;
      }
    }
  }
  /// Stores the state after the last chunk of the range.
  __device__ void finish() {
    if (this->is_scan) {
      float4* to = added_states_of(segment.number);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float* from = &state[i / 8][i % 8 * 4];
        to[i * kGroup] = make_float4(from[0], from[1], from[2], from[3]);
      }
    } else if (p.last && segment.is_last(p.backward)) {
      store_last(p.last + (this->sequence * p.heads + head) * p.inner * p.outer);
    }
  }
  /// Stores the final state by way of tiles that are no longer needed.
  __device__ void store_last(float* last) {
    sync_group<2 * kGroup>(1);
    const float by = p.backward ? p.scale : 1.f;
    State::store_state(p, reinterpret_cast<float*>(shared.stages[index].x), last + first_outer(), p.outer - first_outer(), by);
  }

  /// Waits for the tiles of chunk i, and returns what the consumer needs to know of it.
  struct Chunk {
    typename S::Stage& stage;
    const typename S::Factors& factors;
    float decay;
    int size;
  };
  __device__ Chunk chunk(int i) {
    forget(this->thread);
    typename S::Stage& stage = this->stage(i);
    const int size = range.size(i), whole = size == kTile;
    this->wait_for(i);
    if (!whole) this->clear(stage.y, stage.w[index], size);
    return {stage, shared.factors[!whole], whole ? decay : decays.over(size), size};
  }
  __device__ void release(int i) const { Base::arrive(&shared.written[i % S::kStages], lane()); }

  /// w of a chunk times the decays to the chunk's end, and the decay of the whole chunk.
  struct Weighted {
    Left w;
    float decay;
  };
  __device__ void fetch(Weighted& to, int i) {
    const Chunk chunk = this->chunk(i);
    this->load(to.w, chunk.stage.w[index]);
    this->apply_decays(to.w, to.w, chunk.factors.to_end);
    to.decay = chunk.decay;
  }
  /// Updates the state with the chunks that have no results. The next w is prepared while products run.
  __device__ void scan() {
    Weighted buffers[2];
    if (range.state_only > 0) fetch(buffers[0], 0);
    const auto add_chunk = [&](const Weighted& own, Weighted& next, int i) {
      scale(own.decay);
      this->add_to_state(own.w, operand(this->stage(i).y[0]));
      if (i + 1 < range.state_only) fetch(next, i + 1);
      this->wait_for_state();
      release(i);
    };
    for (int i = 0; i < range.state_only; i += 2) {
      add_chunk(buffers[0], buffers[1], i);
      if (i + 1 < range.state_only) add_chunk(buffers[1], buffers[0], i + 1);
    }
  }
  __device__ void compute_chunk(int i) {
    const auto [stage, factors, chunk_decay, size] = chunk(i);
    Accumulator<kTile> out;
    typename State::Rounded rounded;
    this->round_state(rounded, 0);
    Left w;
    this->multiply(out, w, rounded, stage, factors.to_end, chunk_decay);
    const float* const before = factors.before;
    out.scale_columns(thread, [&](int t) { return *reinterpret_cast<const float2*>(&before[t]); });
    const int output_chunk = i - range.state_only, slot = output_chunk % S::kScores;
    barrier_wait(&shared.scored[slot], output_chunk / S::kScores & 1);
    this->add_scores(out, w, shared.scores[slot]);
    Base::arrive(&shared.used[slot], lane());
    this->store(out, stage.w[index], p, size, range.first_token(i), head, first_outer());
    release(i);
  }
  __device__ void run() {
    start();
    scan();
    for (int i = range.state_only; i < range.count; ++i) compute_chunk(i);
    finish();
  }
};

/// The two threads that issue TMA copies.
template <class E>
struct TmaCopies : ConstantDecayBlock<E> {
  using Base = ConstantDecayBlock<E>;
  using S = typename Base::S;
  using Base::p, Base::shared, Base::range, Base::head;
  const Maps& maps;

  /// Loads the tiles. For chunks with results, at most one and a half chunks are in flight. If memory is the limit, more would
  /// arrive no sooner. But all other accesses would wait longer, and some multiprocessors much longer than others.
  __device__ void load() const {
    const int x_head = p.x.head_of(head), y_head = p.y.head_of(head), w_head = p.w.head_of(head);
    for (int i = 0; i < range.count; ++i) {
      const int s = i % S::kStages, token = static_cast<int>(range.first_token(i));
      typename S::Stage& stage = shared.stages[s];
      std::uint64_t* const full = &shared.full[s];
      const bool results = i >= range.state_only;
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
  /// Stores the results, and then releases their stage.
  __device__ void store() const {
    for (int i = 0; i < range.count; ++i) {
      const int s = i % S::kStages;
      barrier_wait(&shared.written[s], i / S::kStages & 1);
      if (i >= range.state_only && !p.float_out) fence_for_wgmma();  // fences for the consumers, which have no time for it
      if (i >= range.state_only && !p.float_out && range.size(i) == kTile) {
        for (int tile = 0; tile < 2; ++tile)
          store_tile(shared.stages[s].w[tile], maps.out, tile * kTile, head, static_cast<int>(range.first_token(i)));
        commit_stores();
        wait_stores();
      }
      barrier_arrive(&shared.empty[s]);
    }
  }
};

/// The work of a block of 4 * kGroup threads. `is_scan` is true in the first launch.
template <class E>
__device__ void run_constant_decay(const ConstantDecay& u, bool is_scan) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ConstantDecayShared<E>;
  using Block = ConstantDecayBlock<E>;
  S& shared = *reinterpret_cast<S*>(memory);
  const int group = static_cast<int>(threadIdx.x) / kGroup, thread = static_cast<int>(threadIdx.x) % kGroup;
  const int block = static_cast<int>(blockIdx.x), blocks = is_scan ? u.scan_blocks : u.blocks;
  const int forward = u.forward * blocks, others = max(u.count - u.forward, 1);
  const int number = block < forward ? block / blocks : u.forward + (block - forward) % others;
  const ConstantDecayPass& p = u.passes[number];
  BlockSegment segment(u, p, block < forward ? block % blocks : (block - forward) / others, is_scan, number == u.exchange_pass,
                       thread % 32);
  segment.pair = __shfl_sync(~0u, segment.pair, 0);
  if (segment.pair < 0) return;
  const std::int64_t sequence = segment.pair / p.heads;
  const int head = static_cast<int>(segment.pair - sequence * p.heads);
  const Decays decays(p, sequence, head);
  ChunkRange range(p, segment, sequence, segment.long_memory ? 0 : decays.memory());
  for (int* x : {&range.tokens, &range.count, &range.state_only}) *x = __shfl_sync(~0u, *x, 0);
  if (is_scan) range.state_only = range.count;
  if (threadIdx.x < kTile) {
    const int t = static_cast<int>(threadIdx.x), last = (range.tokens - 1) % kTile + 1;
    for (int i = 0; i < 2; ++i) {
      const int tokens = i == 0 ? kTile : last;
      shared.factors[i].before[t] = t < tokens ? p.scale * decays.before(t, tokens) : 0.f;
      shared.factors[i].to_end[t] = decays.to_end(t, tokens);
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
    fence_barrier_init();
  }
  __syncthreads();
  float4* const added_states = reinterpret_cast<float4*>(u.added_states + std::int64_t{number} * u.blocks * kStateFloats);
  const Block base{p, shared, segment, range, decays, sequence, head, added_states, is_scan};
  if (group == 0) {
    release_registers<24>();
    const TmaCopies<E> copies{base, u.maps[number]};
    if (thread == 0) copies.load();
    if (thread == 32) copies.store();
    __syncwarp();
  } else if (group == 1) {
    release_registers<104>();
    Scorer<E>{base, {thread}}.run();
  } else {
    acquire_registers<192>();
    ConstantDecayConsumer<E>{base, {{thread}, group - 2}}.run();
  }
}

inline constexpr int kConstantDecayThreads = 4 * kGroup;

template <class E>
__global__ void __launch_bounds__(kConstantDecayThreads, 1) constant_decay_scan_kernel(const __grid_constant__ ConstantDecay u) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  run_constant_decay<E>(u, true);
#else
  __trap();
#endif
}
template <class E>
__global__ void __launch_bounds__(kConstantDecayThreads, 1)
    constant_decay_output_kernel(const __grid_constant__ ConstantDecay u) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (!u.after_scan) cudaGridDependencySynchronize();
  run_constant_decay<E>(u, false);
  // What follows this launch on the stream must wait for the first launch too.
  cudaGridDependencySynchronize();
#else
  __trap();
#endif
}

}  // namespace glade::cuda::chunk_sm90
