#pragma once
// The state as a consumer of a pass of the chunk form holds it (chunk_pass.cuh), and its products.
#include <glade/ops/linear_attention/chunk_stage.cuh>

namespace glade::cuda::passes {

template <class C>
struct State {
  using E = typename C::Element;
  static constexpr Gates kGates = C::kGates;
  static constexpr int kTiles = C::kTiles;
  static constexpr bool kLarge = kTiles > 2;  ///< leaves few registers

  int thread;
  float state[kTiles][32];  ///< wgmma's accumulators: rows are channels of w, columns those of y
  __device__ int lane() const { return thread % 32; }
  __device__ int row() const { return thread / 32 * 16 + lane() / 4; }  ///< the first of this thread's two

  /// Calls f(element, its place) for every element of the state inside its matrix.
  template <class F>
  __device__ void each_of_state(const Pass& p, int first_outer, F&& f) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int outer = first_outer + row() + i / 2 % 2 * 8, inner = tile * kTile + i / 4 * 8 + lane() % 4 * 2 + i % 2;
        if (outer < p.outer && inner < p.inner)
          f(state[tile][i], std::int64_t{outer} * p.outer_stride + std::int64_t{inner} * p.inner_stride);
      }
      pin(state[tile]);  // or the addresses of all would take registers at once
    }
  }
  __device__ void scale_rows(float first, float second) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 32; ++i) state[tile][i] *= i / 2 % 2 ? second : first;
  }
  /// R into the frame of a step.
  __device__ void scale_state(const Vectors<C>& vectors) {
    if constexpr (kGates == Gates::inner) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int m = 0; m < 8; ++m) {
          const float2 factor = *reinterpret_cast<const float2*>(&vectors.before[tile * kTile + m * 8 + lane() % 4 * 2]);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float by = i % 2 ? factor.y : factor.x;
            state[tile][4 * m + i] = state[tile][4 * m + i] * by * by;
          }
        }
    } else if constexpr (kGates == Gates::outer) {
      const float first = vectors.before[row()], second = vectors.before[row() + 8];
      scale_rows(first, second);
      scale_rows(first, second);
    }
  }

  static constexpr int kRounded = kLarge ? 1 : kTiles;  ///< tiles of the state rounded at a time
  using Rounded = std::uint32_t[kRounded][4][4];
  __device__ void round_state(Rounded& rounded, int first) const {
#pragma unroll
    for (int tile = 0; tile < kRounded; ++tile)
#pragma unroll
      for (int i = 0; i < 16; ++i)
        rounded[tile][i / 4][i % 4] = pack<E>(state[first + tile][2 * i], state[first + tile][2 * i + 1]);
  }
  /// The state rounded (again), times x, to out,
  __device__ void add_rounded_state(float (&out)[32], std::uint32_t x) {
    add_state_as(out, x, [](const float* pair) { return pack<E>(pair[0], pair[1]); });
  }
  /// and what rounding takes away from it.
  __device__ void add_rest_of_state(float (&out)[32], std::uint32_t x) {
    add_state_as(out, x, [](const float* pair) { return pack_rest<E>(pair[0], pair[1], pack<E>(pair[0], pair[1])); });
  }

  using Left = std::uint32_t[4][4];  ///< a tile as the left operand
  __device__ void load(Left& to, SwizzledTile<E>& tile) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) load_transposed(to[k], tile, k, thread);
  }
  /// out (+)= left tile^T.
  __device__ static void add_product(float (&out)[32], const Left& left, std::uint32_t tile, int add) {
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma<E, 0>(out, left[k], descriptor(tile, k * kColumnStep), add + k);
  }
  __device__ void add_to_state(const Left& left, std::uint32_t y) {
    wgmma_begin();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma<E, 1>(state[tile], left[k], descriptor(y, tile * kTileStep + k * kRowStep), 1);
    wgmma_commit();
  }
  /// The same with few registers, and waiting.
  __device__ void add_to_state(SwizzledTile<E>& w, std::uint32_t y) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t left[4];
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
  /// Gates::none: w times the decays after its tokens.
  __device__ void weigh(Left& to, const Left& w, const Vectors<C>& vectors) const {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 by = *reinterpret_cast<const float2*>(&vectors.after[16 * k + j / 2 * 8 + lane() % 4 * 2]);
        const float2 values = unpack<E>(w[k][j]);
        to[k][j] = pack<E>(values.x * by.x, values.y * by.y);
      }
  }

 private:
  /// convert(pair of the state) times x, to out: with few registers, and waiting.
  template <class F>
  __device__ void add_state_as(float (&out)[32], std::uint32_t x, F&& convert) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::uint32_t left[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) left[j] = convert(&state[tile][8 * k + 2 * j]);
        wgmma_begin();
        wgmma<E, 0>(out, left, descriptor(x, tile * kTileStep + k * kColumnStep), 1);
        wgmma_commit();
        wgmma_wait<0>();
        pin(out);
      }
  }
};

}  // namespace glade::cuda::passes
