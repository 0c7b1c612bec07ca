#pragma once
// Wide blocks whose rows TMA copies: what those of chunk_sm90/constant_decay.cuh, wide_tma.cuh and wide_tma_large.cuh share. A
// warp group, the scorer, computes the scores x y^T, and two more, the consumers, have 64 channels of w each.
#include <glade/ops/linear_attention/chunk_sm90/pass_state.cuh>

namespace glade::cuda::chunk_sm90 {

/// The rows of a chunk, by channels, where y has up to 128.
template <class E, bool kHasX>
struct WideRows {
  using Tile = SwizzledTile<E>;
  Tile x[kHasX ? 2 : 0], y[2], w[2];  ///< w is later overwritten by the results
};
/// The scores of a chunk.
template <class E, bool kHasLowPart>
struct WideScores {
  using Tile = SwizzledTile<E>;
  Tile rounded, low_part[kHasLowPart ? 1 : 0];
};

template <class E>
struct WideScorer {
  int thread;

  /// Starts sums = x y^T, for the tokens of y from `first` on.
  template <int kColumns, std::size_t kTiles>
  __device__ void start(Accumulator<kColumns>& sums, const SwizzledTile<E> (&x_tiles)[kTiles],
                        const SwizzledTile<E> (&y_tiles)[kTiles], int first = 0) const {
    const std::uint32_t x = operand(x_tiles[0]), y = operand(y_tiles[0], first);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < static_cast<int>(4 * kTiles); ++k) {
      const int columns = k / 4 * kTileStep + k % 4 * kColumnStep;
      wgmma<E>(sums, descriptor(x, columns), descriptor(y, columns), k);
    }
    wgmma_commit();
  }
  template <int kColumns, bool kLowPart>
  __device__ void store(WideScores<E, kLowPart>& to, const Accumulator<kColumns>& sums, int first = 0) const {
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      LeftOperand rounded, low_part;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* pair = &sums[sums.element(k, j)];
        rounded[j] = pack<E>(pair[0], pair[1]);
        low_part[j] = pack_low<E>(pair[0], pair[1], rounded[j]);
      }
      store_straight(to.rounded, first / 8 + 2 * k, rounded, thread);
      if constexpr (kLowPart) store_straight(to.low_part[0], first / 8 + 2 * k, low_part, thread);
    }
    fence_for_wgmma();
  }
};

template <class C>
struct WideConsumer : State<C> {
  using Base = State<C>;
  using E = typename C::Element;
  using Tile = SwizzledTile<E>;
  using Base::state, Base::thread;
  using typename Base::Left, typename Base::Rounded;
  int index;  ///< of this consumer

  /// Zeroes the rows of y and w beyond the end of the sequence. Each consumer clears half of the tiles of y, and its own of w.
  __device__ void clear(Tile (&y)[C::kTiles], Tile& w, int tokens) const {
    // Earlier readers of these rows arrived at the barriers of the copies. racecheck does not see that, so it needs this barrier.
    sync_group<2 * kGroup>(1);
    constexpr int kOwn = C::kTiles / 2;
    for (int i = tokens * 8 + thread; i < kTile * 8; i += kGroup) {
      const auto clear_piece = [&](Tile& tile) { *reinterpret_cast<uint4*>(tile.at(i / 8, i % 8)) = uint4{}; };
      for (int tile = 0; tile < kOwn; ++tile) clear_piece(y[index * kOwn + tile]);
      clear_piece(w);
    }
    fence_for_wgmma();
    sync_group<2 * kGroup>(1);
  }
  __device__ void scale(float by) {
    this->scale_rows(by, by);
    for (auto& tile : state) pin(tile);  // before any product starts
  }
  /// out = R x^T, and then the update of R, which is still pending. `after`: the decays from the tokens to the chunk's end.
  template <class Rows>
  __device__ void multiply(Accumulator<kTile>& out, Left& w, const Rounded& rounded, Rows& rows, const float* after,
                           float decay) {
    const std::uint32_t x = operand(rows.x[0]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) wgmma<E>(out, rounded[i / 4][i % 4], descriptor(x, i / 4 * kTileStep + i % 4 * kColumnStep), i);
    wgmma_commit();
    Left weighted;
    this->load(w, rows.w[index]);
    this->apply_decays(weighted, w, after);
    scale(decay);
    this->add_to_state(weighted, operand(rows.y[0]));
    wgmma_wait<1>();
    pin(out);
  }
  /// out += w^T A^T. Waits for all products.
  template <class Scores>
  __device__ void add_scores(Accumulator<kTile>& out, const Left& w, const Scores& scores) {
    wgmma_begin();
    this->add_product(out, w, operand(scores.rounded), 1);
    if constexpr (C::kLowParts) this->add_product(out, w, operand(scores.low_part[0]), 1);
    wgmma_commit();
    this->wait_for_state();
    pin(out);
  }
  /// Stores results of `rows` tokens from first_token on. Those of a whole chunk in the element type go to the tile of w instead,
  /// of which a warp overwrites only its own channels, and TMA stores them from there. p: a Pass or ConstantDecayPass.
  template <class P>
  __device__ void store(const Accumulator<kTile>& out, Tile& tile, const P& p, int rows, std::int64_t first_token, int head,
                        int first_outer) const {
    const std::int64_t first = first_token * p.out_step + std::int64_t{head} * p.outer + first_outer;
    if (p.float_out)
      return store_columns(out, thread, static_cast<float*>(p.out) + first, p.heads * p.outer, rows, p.outer - first_outer);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      LeftOperand rounded;
      out.template round<E>(rounded, k);
      store_transposed(tile, k, rounded, thread);
    }
    if (rows >= kTile) return;
    sync_group<kGroup>(2 + index);
    for (int t = thread / 8; t < rows; t += kGroup / 8)
      if (const int column = thread % 8 * 8; first_outer + column < p.outer)
        *reinterpret_cast<uint4*>(static_cast<E*>(p.out) + first + t * p.out_step + column) =
            *reinterpret_cast<const uint4*>(tile.at(t, thread % 8));
  }
  /// Stores the state times `by`, [channels of y, channels of w] with a stride of 1 between those of w, by way of `room` for 64
  /// of them, so that threads write neighbours. `last`: this consumer's first channel; `channels`: of w from there on.
  __device__ void store_state(const StateArguments& p, float* room, float* last, int channels, float by) const {
#pragma unroll
    for (int i = 0; i < Base::kTiles; ++i)
      state[i].for_each(thread, [&](float x, int outer, int column) {
        const int inner = i * kTile + column;
        room[inner * kTile + (outer ^ inner / 2 % 4 * 8)] = x * by;
      });
    sync_group<kGroup>(2 + index);
    const int outer = thread % 16 * 4;
    if (outer >= channels) return;
#pragma unroll 4
    for (int inner = thread / 16; inner < p.inner; inner += kGroup / 16)
      *reinterpret_cast<float4*>(last + inner * p.inner_stride + outer) =
          *reinterpret_cast<const float4*>(&room[inner * kTile + (outer ^ inner / 2 % 4 * 8)]);
  }
};

}  // namespace glade::cuda::chunk_sm90
