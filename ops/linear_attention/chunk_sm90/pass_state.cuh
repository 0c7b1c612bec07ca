#pragma once
// The state R in the registers of a consumer of a pass (chunk_sm90/pass_kernel.cuh), and the products with it.
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct State {
  using E = typename C::Element;
  static constexpr Gates kGates = C::kGates;
  static constexpr int kTiles = C::kTiles;
  static constexpr bool kLarge = kTiles > 2;  ///< leaves few registers for anything else

  int thread;
  Accumulator<kTile> state[kTiles];  ///< rows are channels of w, columns are channels of y
  __device__ int lane() const { return thread % 32; }
  __device__ int row() const { return fragment_row(thread); }  ///< the first of this thread's two rows

  /// Calls f(element, offset in memory) for every element of the state that lies within the matrix. A block does this once or
  /// twice, and waits for most of its instructions then: they should be few.
  template <class F>
  __device__ void for_each_element(const StateArguments& p, int first_outer, F&& f) {
    constexpr int kEight = 8;  // channels are a multiple of 8
    const int outer = first_outer + row(), inner = fragment_column(thread), next_row = kEight * p.outer_stride,
              next_columns = kEight * p.inner_stride;
    const bool in_rows[] = {outer < p.outer, outer + kEight < p.outer};
    int at = outer * p.outer_stride + inner * p.inner_stride;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int eight = 0; eight < kTile; eight += kEight) {
        const bool in_columns = tile * kTile + eight < p.inner;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (in_columns && in_rows[i / 2]) f(state[tile][eight / 2 + i], at + i / 2 * next_row + i % 2 * p.inner_stride);
        at += next_columns;
      }
      pin(state[tile]);  // otherwise the addresses of all tiles would occupy registers at once
    }
  }
  __device__ void scale_rows(float first, float second) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) state[tile].scale_rows(first, second);
  }
  /// Per-channel gates: multiplies R, the state before a step, by e^r; a single token of the reverse scan has r = 0.
  __device__ void scale_at_start(const Pass& p, const Vectors<C>& vectors) {
    if (__any_sync(~0u, vectors.step.count > 1 || !p.backward)) scale_by_half_decay(vectors);
  }
  /// And R after the step by its decay from r on, so that R is the state after it.
  __device__ void scale_at_end(const Pass& p, const Vectors<C>& vectors) {
    if (__any_sync(~0u, vectors.step.count > 1 || p.backward)) scale_by_half_decay(vectors);
  }

  static constexpr int kRounded = kLarge ? 1 : kTiles;  ///< state tiles that are rounded at a time
  using Rounded = LeftOperand[kRounded][4];
  __device__ void round_state(Rounded& rounded, int first) const {
#pragma unroll
    for (int tile = 0; tile < kRounded; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) state[first + tile].template round<E>(rounded[tile][k], k);
  }
  /// What round_state() left out of all tiles.
  __device__ void low_part_of_state(Rounded& low) const {
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* pair = &state[i / 4][Accumulator<kTile>::element(i % 4, j)];
        low[i / 4][i % 4][j] = pack_low<E>(pair[0], pair[1], pack<E>(pair[0], pair[1]));
      }
  }
  /// Adds the rounded state times x^T to out. It rounds the state again, because keeping the rounded values would take registers.
  __device__ void add_rounded_state(Accumulator<kTile>& out, std::uint32_t x) {
    add_state_as(out, x, [](const float* pair) { return pack<E>(pair[0], pair[1]); });
  }
  /// Adds the low part of the state times x^T to out.
  __device__ void add_low_part_of_state(Accumulator<kTile>& out, std::uint32_t x) {
    add_state_as(out, x, [](const float* pair) { return pack_low<E>(pair[0], pair[1], pack<E>(pair[0], pair[1])); });
  }

  using Left = LeftOperand[4];  ///< a tile as the left operand of wgmma
  __device__ void load(Left& to, SwizzledTile<E>& tile) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) load_transposed(to[k], tile, k, thread);
  }
  /// out (+)= left tile^T; add = 0 overwrites out.
  __device__ static void add_product(Accumulator<kTile>& out, const Left& left, std::uint32_t tile, int add) {
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma<E>(out, left[k], descriptor(tile, k * kColumnStep), add + k);
  }
  __device__ void add_to_state(const Left& left, std::uint32_t y) {
    wgmma_begin();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma<E, 1>(state[tile], left[k], descriptor(y, tile * kTileStep + k * kRowStep), 1);
    wgmma_commit();
  }
  /// Does the same for the first `tokens` rows with few registers, and waits for the products.
  __device__ void add_to_state(SwizzledTile<E>& w, std::uint32_t y, int tokens) {
    for (int k = 0; 16 * k < tokens; ++k) {
      LeftOperand left;
      load_transposed(left, w, k, thread);
      wgmma_begin();
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) wgmma<E, 1>(state[tile], left, descriptor(y, tile * kTileStep + k * kRowStep), 1);
      wgmma_commit();
      wait_for_state();
    }
  }
  __device__ void wait_for_state() {
    wgmma_wait<0>();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) pin(state[tile]);
  }
  /// Gates::none: multiplies w by the decays from its tokens to the end of the step, `after`.
  __device__ void apply_decays(Left& to, const Left& w, const float* after) const {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 by = *reinterpret_cast<const float2*>(&after[left_column(k, 2 * half, thread)]);
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          const float2 values = unpack<E>(w[k][j]);
          to[k][j] = pack<E>(values.x * by.x, values.y * by.y);
        }
      }
  }

 private:
  __device__ void scale_by_half_decay(const Vectors<C>& vectors) {
    if constexpr (C::kInnerGates) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        state[tile].scale_columns(
            thread, [&](int column) { return *reinterpret_cast<const float2*>(&vectors.half_decay[tile * kTile + column]); });
    }
    if constexpr (C::kOuterGates) {
      const float* outer = vectors.half_decay + (C::kInnerGates ? kTiles * kTile : 0);
      scale_rows(outer[row()], outer[row() + 8]);
    }
  }
  /// Adds convert(pairs of the state) times x^T to out. It needs few registers, and waits for the products.
  template <class F>
  __device__ void add_state_as(Accumulator<kTile>& out, std::uint32_t x, F&& convert) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        LeftOperand left;
#pragma unroll
        for (int j = 0; j < 4; ++j) left[j] = convert(&state[tile][state[tile].element(k, j)]);
        wgmma_begin();
        wgmma<E>(out, left, descriptor(x, tile * kTileStep + k * kColumnStep), 1);
        wgmma_commit();
        wgmma_wait<0>();
        pin(out);
      }
  }
};

}  // namespace glade::cuda::chunk_sm90
