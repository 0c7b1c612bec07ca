#pragma once
// How the kernels of the recurrent form find and read their operands.
#include <cstdint>
#include <type_traits>

#include <glade/core/cuda/cuda.h>
#include <glade/core/dtype.h>

namespace glade::cuda::recurrent {

/// Rows of a tensor [tokens, heads of its own, size]; null data: not given, zeros.
struct Rows {
  const void* data = nullptr;
  DType dtype = DType::float32;
  int size = 0;
  int heads = 1;      ///< of its own
  int group = 1;      ///< heads of the recurrence that share one of the tensor's
  double factor = 1;  ///< multiplies the elements (not of gates)

  /// Number of the row of head h of the recurrence.
  __device__ std::int64_t row(std::int64_t token, int h) const { return token * heads + h / group; }
};

/// Where the sequences lie, and their checkpoints: the last position of every `interval` and of a sequence.
struct Sequences {
  const std::int64_t* boundaries;  ///< null: `length` tokens each
  std::int64_t count, length;      ///< length: of the longest
  std::int64_t interval;
  bool flip;  ///< position 0 is a sequence's last token

  /// Checkpoints of different sequences never share a number; some numbers stay unused.
  std::int64_t checkpoints(std::int64_t tokens) const {
    return boundaries != nullptr ? tokens / interval + count : count * longest();
  }
  /// Checkpoints of the longest sequence.
  __host__ __device__ std::int64_t longest() const { return (length + interval - 1) / interval; }
};

/// One sequence.
struct Sequence {
  std::int64_t begin, length, first_checkpoint;
  bool flip;

  __device__ Sequence(const Sequences& all, std::int64_t n) : flip(all.flip) {
    const bool packed = all.boundaries != nullptr;
    begin = packed ? all.boundaries[n] : n * all.length;
    length = packed ? all.boundaries[n + 1] - begin : all.length;
    first_checkpoint = packed ? begin / all.interval + n : n * all.longest();
  }
  __device__ std::int64_t token(std::int64_t position) const { return begin + (flip ? length - 1 - position : position); }
};

template <class F>
struct alignas(4 * sizeof(F) < 16 ? 4 * sizeof(F) : 16) Quad {
  F x[4];
};

template <class F>
__device__ Quad<F> operator+(const Quad<F>& a, const Quad<F>& b) {
  return {{a.x[0] + b.x[0], a.x[1] + b.x[1], a.x[2] + b.x[2], a.x[3] + b.x[3]}};
}

/// Of a normal number; in float32 within 1 ulp.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double reciprocal(double x) { return 1 / x; }

/// Calls f with a null pointer to the element type of `dtype`, one of those that are computed in F.
template <class F, class Function>
__device__ void visit_rows(DType dtype, Function f) {
  if constexpr (std::is_same_v<F, double>) f(static_cast<const double*>(nullptr));
  else if (dtype == DType::bfloat16) f(static_cast<const bfloat16*>(nullptr));
  else if (dtype == DType::float16) f(static_cast<const float16*>(nullptr));
  else f(static_cast<const float*>(nullptr));
}

/// An element as it lies in memory. Unlike a conversion, loading it does not wait for it.
template <class F>
using Bits = std::conditional_t<sizeof(F) == 8, std::uint64_t, std::uint32_t>;
template <class F, class T>
using Word = std::conditional_t<sizeof(T) == 2, std::uint16_t, Bits<F>>;

/// Element `at` of the data; zero where there is none.
template <class F>
__device__ Bits<F> load_bits(const Rows& rows, std::int64_t at) {
  Bits<F> bits = 0;
  if (rows.data == nullptr) return bits;
  if (sizeof(F) == 4 && rows.dtype != DType::float32) bits = static_cast<const std::uint16_t*>(rows.data)[at];
  else bits = static_cast<const Bits<F>*>(rows.data)[at];
  return bits;
}
template <class F, int n>
__device__ void decode(const Rows& rows, const Bits<F> (&bits)[n], F (&values)[n]) {
  visit_rows<F>(rows.dtype, [&]<class T>(const T*) {
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = static_cast<F>(__builtin_bit_cast(T, static_cast<Word<F, T>>(bits[i])));
  });
}

/// Four elements as they lie in memory.
template <class F>
struct RawQuad {
  std::uint32_t halves[2];         ///< elements of 2 bytes
  std::uint32_t words[sizeof(F)];  ///< larger ones

  template <class T>
  __device__ F element(int j) const {
    if constexpr (sizeof(T) == 2)
      return static_cast<F>(__builtin_bit_cast(T, static_cast<std::uint16_t>(halves[j / 2] >> (j % 2 * 16))));
    else if constexpr (sizeof(F) == 4) return __uint_as_float(words[j]);
    else return __hiloint2double(static_cast<int>(words[2 * j + 1]), static_cast<int>(words[2 * j]));
  }
};

/// Loads 8 or 16 bytes, or zeros where they are not present. Without a branch: the results of conditional loads would be
/// waited for where the branches meet.
__device__ inline void load_8_bytes(std::uint32_t* words, const void* from, bool present) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @p ld.global.v2.b32 {%0, %1}, [%2];}"
               : "=&r"(words[0]), "=&r"(words[1])
               : "l"(from), "r"(static_cast<int>(present)));
}
__device__ inline void load_16_bytes(std::uint32_t* words, const void* from, bool present) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
      "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];}"
      : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3])
      : "l"(from), "r"(static_cast<int>(present)));
}

__host__ __device__ inline bool is_vector(const Rows& rows) {
  return rows.size % 4 == 0 && reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0;
}

/// Loads n quads of elements, `step` elements apart, of which the first `count` are there; zeros where the bit in `present`
/// is not set. kVector: is_vector(rows).
template <bool kVector, class F, int n>
__device__ void load_quads(const Rows& rows, std::int64_t at, std::int64_t step, int count, unsigned present,
                           RawQuad<F> (&quads)[n]) {
  const bool narrow = sizeof(F) == 4 && rows.dtype != DType::float32;
  const int size = narrow ? 2 : static_cast<int>(sizeof(F));
  const char* from = static_cast<const char*>(rows.data) + at * size;
  step *= size;
#pragma unroll
  for (int t = 0; t < n; ++t, from += step) {
    const bool there = present >> t & 1;
    if constexpr (kVector) {
      load_8_bytes(quads[t].halves, from, there && narrow);
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(F)); i += 4) load_16_bytes(quads[t].words + i, from + i * 4, there && !narrow);
    } else {
      quads[t].halves[0] = quads[t].halves[1] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool inside = j < count && there;
        const auto* half = reinterpret_cast<const std::uint16_t*>(from) + j;
        if (inside && narrow) quads[t].halves[j / 2] |= static_cast<std::uint32_t>(*half) << (j % 2 * 16);
#pragma unroll
        for (int i = j * static_cast<int>(sizeof(F)) / 4; i < (j + 1) * static_cast<int>(sizeof(F)) / 4; ++i)
          quads[t].words[i] = inside && !narrow ? reinterpret_cast<const std::uint32_t*>(from)[i] : 0;
      }
    }
  }
}
template <class F, int n>
__device__ void decode(const Rows& rows, const RawQuad<F> (&raw)[n], Quad<F> (&quads)[n]) {
  visit_rows<F>(rows.dtype, [&]<class T>(const T*) {
#pragma unroll
    for (int i = 0; i < n; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) quads[i].x[j] = raw[i].template element<T>(j);
  });
}

template <class F, class T>
__device__ void store_quad(const Quad<F>& quad, T* row, int at, int size) {
  if (size % 4 == 0 && reinterpret_cast<std::uintptr_t>(row) % sizeof(Quad<T>) == 0) {
    Quad<T> converted;
#pragma unroll
    for (int j = 0; j < 4; ++j) converted.x[j] = T(quad.x[j]);
    *reinterpret_cast<Quad<T>*>(row + at) = converted;
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (at + j < size) row[at + j] = T(quad.x[j]);
  }
}

/// Element `at` of the data, converted; zero where there is none.
template <class F>
__device__ F load_element(const Rows& rows, std::int64_t at) {
  const Bits<F> bits[1] = {load_bits<F>(rows, at)};
  F value[1];
  decode(rows, bits, value);
  return value[0];
}

template <class F>
__device__ void store_element(F value, void* data, DType dtype, std::int64_t at) {
  visit_rows<F>(dtype, [&]<class T>(const T*) { static_cast<T*>(data)[at] = T(value); });
}

}  // namespace glade::cuda::recurrent
