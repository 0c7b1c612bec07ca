#pragma once
// Folding on the GPU: a run of memory by a group of neighbouring threads, and their states into one. The order of all
// additions follows from the sizes alone.
#include <cstdint>
#include <cstring>

#include <glade/core/cuda/instructions.cuh>
#include <glade/core/cuda/loops.cuh>

namespace glade::cuda {

constexpr int kReduceThreads = 256;
constexpr int kRowThreads = 512;  // that share a row, at most
constexpr int kLoads = 4;         // 16-byte loads that a thread has under way

/// As many T as one load brings.
template <class T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

template <class State>
__device__ State shuffle_xor(State state, int offset) {
  static_assert(sizeof(State) % 4 == 0);
  std::uint32_t words[sizeof(State) / 4];
  memcpy(words, &state, sizeof(State));
#pragma unroll
  for (std::uint32_t& word : words) word = __shfl_xor_sync(~0u, word, offset);
  memcpy(&state, words, sizeof(State));
  return state;
}

/// The number of this thread's group of `lanes` neighbouring threads (a power of two) in the launch: the row it works on.
__device__ inline std::int64_t row_of_thread(int lanes) {
  const int shift = __ffs(lanes) - 1;  // no division: it would cost more than a short row
  return std::int64_t{blockIdx.x} * (blockDim.x >> shift) + (threadIdx.x >> shift);
}

/// The merged state of each group of `lanes` neighbouring threads (a power of two), the same bits in all of them. All
/// threads of the block call it.
template <class Reducer>
__device__ typename Reducer::State merge_lanes(typename Reducer::State state, int lanes) {
  using State = typename Reducer::State;
  for (int offset = 1; offset < min(lanes, 32); offset *= 2) {
    const State other = shuffle_xor(state, offset);
    state = (threadIdx.x & offset) != 0 ? Reducer::merge(other, state) : Reducer::merge(state, other);
  }
  if (lanes <= 32) return state;
  __shared__ State of_warp[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = lanes / 32, first = warp / warps * warps;
  __syncthreads();  // the last call's states have been read
  if (threadIdx.x % 32 == 0) of_warp[warp] = state;
  __syncthreads();
  state = of_warp[first];
  for (int i = 1; i < warps; ++i) state = Reducer::merge(state, of_warp[first + i]);
  return state;
}

/// Takes x[0..n) into `state`, shared with the other lanes of the group. x[0] is number `first` of the reduced dimension.
/// Any alignment: what lies before and behind the 16-byte vectors is read one by one.
template <class Reducer>
__device__ void fold_run(typename Reducer::State& state, const typename Reducer::In* x, std::int64_t n, std::int64_t first,
                         int lane, int lanes) {
  using In = typename Reducer::In;
  using Acc = typename Reducer::Acc;
  constexpr int W = kWidth<In>;
  using Loaded = detail::Vector<In, W>;
  const std::int64_t misaligned = reinterpret_cast<std::uintptr_t>(x) % 16 / sizeof(In);
  const std::int64_t head = misaligned == 0 ? 0 : min(n, W - misaligned), vectors = (n - head) / W;
  const auto single = [&](std::int64_t i) {
    Acc v[1] = {static_cast<Acc>(x[i])};
    Reducer::add(state, v, 1, [=](int) { return first + i; });
  };
#pragma unroll 1
  for (std::int64_t i = lane; i < head; i += lanes) single(i);
  const Loaded* body = reinterpret_cast<const Loaded*>(x + head);
  const auto take = [&]<bool whole>(std::bool_constant<whole>, std::int64_t i) {
    Loaded loaded[kLoads];
    int count = 0;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (whole || i + u * lanes < vectors) {
        loaded[u] = body[i + u * lanes];
        count = (u + 1) * W;
      } else {
#pragma unroll
        for (int w = 0; w < W; ++w) loaded[u].x[w] = In(Reducer::padding());
      }
    }
    Acc v[kLoads * W];
#pragma unroll
    for (int k = 0; k < kLoads * W; ++k) v[k] = static_cast<Acc>(loaded[k / W].x[k % W]);
    Reducer::add(state, v, count, [=](int k) { return first + head + (i + k / W * lanes) * W + k % W; });
  };
  std::int64_t i = lane;
#pragma unroll 1
  for (; i + (kLoads - 1) * lanes < vectors; i += kLoads * lanes) take(std::true_type{}, i);
  if (i < vectors) take(std::false_type{}, i);
#pragma unroll 1
  for (std::int64_t last = head + vectors * W + lane; last < n; last += lanes) single(last);
}

/// Some of a row's elements, to compute with.
template <class Acc, int W>
struct Numbers {
  Acc x[W];
};

template <int W, class T>
__device__ Numbers<compute_t<T>, W> as_numbers(const detail::Vector<T, W>& loaded) {
  Numbers<compute_t<T>, W> numbers;
  if constexpr (sizeof(T) == 2 && W % 2 == 0) {  // one instruction each: nvcc takes two for the upper halves of words
    const auto pairs = reinterpret_cast<const detail::Vector<std::uint32_t, W / 2>&>(loaded);
#pragma unroll
    for (int i = 0; i < W / 2; ++i) {
      const float2 pair = unpack<T>(pairs.x[i]);
      numbers.x[2 * i] = pair.x;
      numbers.x[2 * i + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int w = 0; w < W; ++w) numbers.x[w] = static_cast<compute_t<T>>(loaded.x[w]);
  }
  return numbers;
}
/// From 16 bytes, as which a loop that loads ahead keeps them: elements of 16 bits the compiler would sort, and so wait for,
/// where they are loaded.
template <class T>
__device__ Numbers<compute_t<T>, kWidth<T>> as_numbers(const uint4& bytes) {
  return as_numbers<kWidth<T>>(reinterpret_cast<const detail::Vector<T, kWidth<T>>&>(bytes));
}

template <int W, class T>
__device__ Numbers<compute_t<T>, W> load_numbers(const T* data) {
  return as_numbers<W>(*reinterpret_cast<const detail::Vector<T, W>*>(data));
}

template <int W, class T>
__device__ void store_numbers(T* data, const Numbers<compute_t<T>, W>& numbers) {
  detail::Vector<T, W> out;
#pragma unroll
  for (int w = 0; w < W; ++w) out.x[w] = T(numbers.x[w]);
  detail::store(data, out);
}

/// f(i, numbers...) with W elements of each input from i on, for every such vector of a row of n (a multiple of W) that is
/// this lane's.
template <int W, class F, class... In>
__device__ void for_each_vector(std::int64_t n, int lane, int lanes, const F& f, const In*... in) {
#pragma unroll 4
  for (std::int64_t i = std::int64_t{lane} * W; i < n; i += std::int64_t{lanes} * W) f(i, load_numbers<W>(in + i)...);
}

/// A row of n elements, a multiple of W, that a group of `lanes` threads passes over more than once. With held, for rows of at
/// most kLoads vectors a lane, it is read once and stays in registers.
template <bool held, int W, class T>
class Row {
 public:
  using Vector = Numbers<compute_t<T>, W>;

  __device__ Row(const T* data, std::int64_t n, int lane, int lanes) : data_(data), n_(n), lane_(lane), lanes_(lanes) {
    if constexpr (held) {
      detail::Vector<T, W> loaded[kVectors] = {};  // all of them under way before the first is converted
#pragma unroll
      for (int u = 0; u < kVectors; ++u)
        if (const int i = (lane + u * lanes) * W; i < n) loaded[u] = *reinterpret_cast<const detail::Vector<T, W>*>(data + i);
#pragma unroll
      for (int u = 0; u < kVectors; ++u) vectors_[u] = as_numbers<W>(loaded[u]);
    }
  }

  /// f(i, vector...) with the W elements of this row and of `more` rows of its size from i on, for every vector of this lane.
  /// What f makes of a held vector stays.
  template <class F, class... More>
  __device__ void for_each_vector(const F& f, More&... more) {
    if constexpr (held) {
#pragma unroll
      for (int u = 0; u < kVectors; ++u)
        if (const int i = (lane_ + u * lanes_) * W; i < n_) f(i, vectors_[u], more.vectors_[u]...);
    } else {
      cuda::for_each_vector<W>(n_, lane_, lanes_, f, data_, more.data_...);
    }
  }

 private:
  static constexpr int kVectors = held ? kLoads : 1;
  const T* data_;
  std::int64_t n_;
  int lane_, lanes_;
  Vector vectors_[kVectors];
};

/// a / b for non-negative numbers, mostly small.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (b == 1) return a;
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The smallest power of two that is at least n, but at most `most` (itself one).
inline int lanes_for(std::int64_t n, int most) {
  int lanes = 1;
  while (lanes < most && lanes < n) lanes *= 2;
  return lanes;
}

/// How many threads (at most `most`) share a row of `vectors` vectors: kLoads each, or two in short rows, so that those of
/// neighbouring threads lie side by side.
inline int lanes_of_row(std::int64_t vectors, int most) {
  return std::max(lanes_for(ceil_div(vectors, 2), 4), lanes_for(ceil_div(vectors, kLoads), most));
}

/// A launch in which every group of `lanes` neighbouring threads has one of `rows` rows of `vectors` vectors. The longer the
/// rows, the fewer are under way at once: a second pass over one finds it in the cache.
struct RowGrid {
  int lanes, threads;
  unsigned blocks;

  RowGrid(std::int64_t rows, std::int64_t vectors)
      : lanes(lanes_of_row(vectors, kRowThreads)),
        threads(std::max(lanes, kReduceThreads)),
        blocks(blocks_for(rows * lanes, threads)) {}

  /// Whether the threads' registers hold rows of `vectors` vectors (see Row).
  static bool holds(std::int64_t vectors) { return vectors <= kLoads * kRowThreads; }
};

/// Whether rows of n elements from `data` on can be read in vectors of W.
template <int W, class T>
bool in_vectors(std::int64_t n, const T* data) {
  return n % W == 0 && reinterpret_cast<std::uintptr_t>(data) % (W * sizeof(T)) == 0;
}

}  // namespace glade::cuda
