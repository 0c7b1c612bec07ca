#pragma once
// What a block of chunk_apart.cuh gets and keeps in shared memory.
#include <glade/ops/linear_attention/chunk_apart.h>
#include <glade/ops/linear_attention/chunk_wgmma.cuh>

namespace glade::cuda::passes {

/// Tensors whose rows a block reads or writes.
enum Tensors { kQueries, kKeys, kValues, kGradO, kGateRows, kGradQ, kGradK, kGradV, kGradGates, kPlaces };
/// Where a block's rows lie in one of them. In shared memory, as registers are few.
struct Place {
  char* first;  ///< of the chunk's first token
  int step;     ///< elements to the next token
  int size;     ///< of a row
  template <class T>
  __device__ T* row(int t) const {
    return reinterpret_cast<T*>(first) + std::int64_t{t} * step;
  }
};
/// Apart as a kernel takes it.
struct ApartArguments : Apart {
  struct Tensor {
    char* data;
    std::int64_t step;  ///< elements to the next token
    int group, size, element_size;
  };
  Tensor tensors[kPlaces];

  ApartArguments(const Apart& a, int element_size) : Apart(a) {
    auto set = [&](Tensors tensor, const void* data, std::int64_t step, int group, int size, bool wide) {
      const int bytes = wide ? static_cast<int>(sizeof(float)) : element_size;
      tensors[tensor] = {static_cast<char*>(const_cast<void*>(data)), step, group, size, bytes};
    };
    auto rows = [&](Tensors tensor, const Rows& r) {
      set(tensor, r.data, std::int64_t{r.heads} * r.size, r.group, r.size, false);
    };
    rows(kQueries, q);
    rows(kKeys, k);
    rows(kValues, v);
    rows(kGradO, grad_o);
    set(kGateRows, gk, std::int64_t{heads} * q.size, 1, q.size, wide_gates);
    set(kGradQ, dq.data, dq.step, 1, q.size, dq.wide);
    set(kGradK, dk.data, dk.step, 1, q.size, dk.wide);
    set(kGradV, dv.data, dv.step, 1, v.size, dv.wide);
    set(kGradGates, dgk, std::int64_t{heads} * q.size, 1, q.size, wide_gates);
  }
};

template <class E, int kTiles>
struct ApartShared {
  using Tile = SwizzledTile<E>;
  std::uint64_t states_full;
  Place places[kPlaces];
  const Tile *state_before, *state_after;  ///< in memory, the first tiles
  std::int64_t first_token;
  int count;                   ///< tokens
  alignas(16) float b[kTile];  ///< gates that all channels share, base 2, in the order of rows
  alignas(16)
      E scale[kTiles * kTile];  ///< by channel: what keys with their factors lack to those up to the chunk's end, a power of 2

  Tile k[kTiles];       ///< keys with their factors (first without), [token][channel],
  Tile k_rest[kTiles];  ///< and their rests; first the gates
  Tile before[kTiles];  ///< a tile of values of the state before the chunk; at last the gates
  Tile after[kTiles];   ///< and of the gradient of that after it; at last the queries
  Tile scores[2];       ///< transposed, and their rests; first (rests of) queries; later those of do and v
  /// v and do, of two tiles in turn; at last exponents. The second pair first has queries with their factors; where there is one
  /// tile of values and of keys it is not needed, and may be missing.
  Tile values[2][2];

  __device__ Tile (&queries())[kTiles] {
    if constexpr (kTiles == 1) return reinterpret_cast<Tile(&)[1]>(scores[1]);
    else return values[1];
  }
  __device__ Tile (&query_rests())[kTiles] { return reinterpret_cast<Tile(&)[kTiles]>(scores); }
};

}  // namespace glade::cuda::passes
