#pragma once
// How the kernels of the recurrent form locate and read their operands.
#include <cstdint>
#include <type_traits>

#include <glade/core/cuda/cuda.h>
#include <glade/core/dtype.h>
#include <glade/ops/linear_attention/common/safe_exponents.h>
#include <glade/ops/linear_attention/common/sequence.cuh>

namespace glade::cuda::recurrent {

/// The rows of a tensor [tokens, heads, size]. Null data means that the operand is absent, which reads as zeros.
struct Rows {
  const void* data = nullptr;
  DType dtype = DType::float32;
  int size = 0;
  int heads = 1;      ///< heads of the tensor
  int group = 1;      ///< heads of the recurrence that share one head of the tensor
  double factor = 1;  ///< multiplies the elements; gates ignore it

  /// The index of the row that head h of the recurrence reads at `token`.
  __device__ std::int64_t row(std::int64_t token, int h) const { return token * heads + h / group; }
};

/// Sequences with checkpoints: the last position of every `interval` positions, and of the sequence.
struct Sequences : linear_attention::Sequences {
  std::int64_t interval;

  /// An upper bound of the checkpoint numbers. Every checkpoint has a number of its own; some numbers stay unused.
  std::int64_t checkpoints(std::int64_t tokens) const {
    return cu_seqlens != nullptr ? tokens / interval + count : count * longest();
  }
  /// The number of checkpoints of the longest sequence.
  __host__ __device__ std::int64_t longest() const { return (length + interval - 1) / interval; }
};

struct Sequence : linear_attention::Sequence<> {
  std::int64_t first_checkpoint;  ///< its number

  __device__ Sequence(const Sequences& all, std::int64_t n)
      : linear_attention::Sequence<>(all, n),
        first_checkpoint(all.cu_seqlens != nullptr ? begin / all.interval + n : n * all.longest()) {}
  /// In a form that takes fewer instructions in loops over positions.
  __device__ std::int64_t token(std::int64_t position) const { return begin + (reverse ? length - 1 - position : position); }
};

/// Four neighboring elements.
template <class F>
struct alignas(4 * sizeof(F) < 16 ? 4 * sizeof(F) : 16) Quad {
  F x[4];
};

template <class F>
__device__ Quad<F> operator+(const Quad<F>& a, const Quad<F>& b) {
  return {{a.x[0] + b.x[0], a.x[1] + b.x[1], a.x[2] + b.x[2], a.x[3] + b.x[3]}};
}
template <class F>
__device__ Quad<F> operator*(const Quad<F>& a, F b) {
  return {{a.x[0] * b, a.x[1] * b, a.x[2] * b, a.x[3] * b}};
}

/// Returns 1 / x for a normal x; in float32 the result is accurate to 1 ulp.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double reciprocal(double x) { return 1 / x; }
/// Returns 2^x; in float32 the result is accurate to 2 ulp, and 0 where 2^x is below the normal numbers.
template <class F>
__device__ F power_of_2(F x);
template <>
__device__ inline float power_of_2<float>(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <>
__device__ inline double power_of_2<double>(double x) {
  return ::exp2(x);
}
/// Returns 2^x for an x in double precision without rounding x to float32 first, which would lose digits of the result.
template <class F>
__device__ F power_of_2_of(double x) {
  if constexpr (std::is_same_v<F, double>) return power_of_2<double>(x);
  const double bounded = x < -300 ? -300 : x > 300 ? 300 : x, whole = ::rint(bounded);  // NaN stays
  return power_of_2<float>(static_cast<float>(bounded - whole)) * power_of_2<float>(static_cast<float>(whole));
}

/// Calls f with a null pointer to the element type that `dtype` names. Rows of that type are computed in F.
template <class F, class Function>
__device__ void visit_rows(DType dtype, Function f) {
  if constexpr (std::is_same_v<F, double>) f(static_cast<const double*>(nullptr));
  else if (dtype == DType::bfloat16) f(static_cast<const bfloat16*>(nullptr));
  else if (dtype == DType::float16) f(static_cast<const float16*>(nullptr));
  else f(static_cast<const float*>(nullptr));
}

/// Whether the operand is present and has elements of type T.
template <class T>
__host__ __device__ bool has_type(const Rows& rows) {
  return rows.data != nullptr && rows.dtype == dtype_of<T>();
}

/// The bits of an element as they lie in memory. A load of bits does not stall the thread; a conversion waits for the load.
template <class F>
using Bits = std::conditional_t<sizeof(F) == 8, std::uint64_t, std::uint32_t>;
template <class F, class T>
using Word = std::conditional_t<sizeof(T) == 2, std::uint16_t, Bits<F>>;

/// Loads the bits of element `at`; returns 0 if the operand is absent.
template <class F>
__device__ Bits<F> load_bits(const Rows& rows, std::int64_t at) {
  Bits<F> bits = 0;
  if (rows.data == nullptr) return bits;
  if (sizeof(F) == 4 && rows.dtype != DType::float32) bits = static_cast<const std::uint16_t*>(rows.data)[at];
  else bits = static_cast<const Bits<F>*>(rows.data)[at];
  return bits;
}
/// Converts bits that load_bits() returned.
template <class F, int n>
__device__ void decode(const Rows& rows, const Bits<F> (&bits)[n], F (&values)[n]) {
  visit_rows<F>(rows.dtype, [&]<class T>(const T*) {
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = static_cast<F>(__builtin_bit_cast(T, static_cast<Word<F, T>>(bits[i])));
  });
}

/// The bits of four neighboring elements as they lie in memory.
template <class T>
struct alignas(sizeof(T) == 2 ? 8 : 16) Raw {
  std::uint32_t words[sizeof(T)] = {};

  template <class F>
  __device__ Quad<F> values() const {
    Quad<F> quad;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (sizeof(T) == 2) {
        T half;
        half.bits = static_cast<std::uint16_t>(words[j / 2] >> (j % 2 * 16));
        quad.x[j] = static_cast<F>(half);
      } else if constexpr (sizeof(T) == 4) {
        quad.x[j] = __uint_as_float(words[j]);
      } else {
        quad.x[j] = __hiloint2double(static_cast<int>(words[2 * j + 1]), static_cast<int>(words[2 * j]));
      }
    }
    return quad;
  }
  /// Folds the magnitudes of the elements into the running maximum `bits`, which exceeds() reads. It skips float16, whose
  /// elements are all below 2^16.
  __device__ std::uint32_t largest(std::uint32_t bits) const {
    if constexpr (std::is_same_v<T, bfloat16>) {
      bits = __vmaxu2(bits, __vmaxu2(words[0] & 0x7fff7fffu, words[1] & 0x7fff7fffu));
    } else if constexpr (sizeof(T) > 2) {
#pragma unroll
      for (std::size_t i = sizeof(T) / 4 - 1; i < sizeof(T); i += sizeof(T) / 4) bits = max(bits, words[i] & 0x7fffffffu);
    }
    return bits;
  }
  /// Whether the running maximum of largest() is 2^exponent or more; always false for float16.
  static __device__ bool exceeds(std::uint32_t bits, int exponent) {
    if constexpr (std::is_same_v<T, bfloat16>) bits = max(bits & 0xffffu, bits >> 16) << 16;
    return bits >= (sizeof(T) == 8 ? (exponent + 1023u) << 20 : (exponent + 127u) << 23);
  }
  __device__ void set(int j, T value) {
    if constexpr (sizeof(T) == 2) {
      const std::uint32_t half = value.bits;
      words[j / 2] = j % 2 == 0 ? (words[j / 2] & 0xffff0000u) | half : (words[j / 2] & 0xffffu) | half << 16;
    } else if constexpr (sizeof(T) == 4) {
      words[j] = __float_as_uint(value);
    } else {
      words[2 * j] = static_cast<std::uint32_t>(__double2loint(value));
      words[2 * j + 1] = static_cast<std::uint32_t>(__double2hiint(value));
    }
  }
};

/// Loads the first `count` of four elements, or none if `present` is false; the others keep their values. kVector requires
/// is_vector() of the rows and loads all four elements; without it, each element is converted from U to T.
template <bool kVector, class U, class T>
__device__ __forceinline__ void load_quad(const U* from, int count, bool present, Raw<T>& raw) {
  static_assert(!kVector || std::is_same_v<T, U>);
  if constexpr (kVector) {
    using Vector = std::conditional_t<sizeof(T) == 2, uint2, uint4>;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Raw<T>) / sizeof(Vector)); ++i)
      if (present) reinterpret_cast<Vector*>(raw.words)[i] = reinterpret_cast<const Vector*>(from)[i];
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!present || j >= count) continue;
      raw.set(j, static_cast<T>(from[j]));
    }
  }
}

__host__ __device__ inline bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }
/// Whether every quad of the rows is whole and aligned.
__host__ __device__ inline bool is_vector(const Rows& rows) { return rows.size % 4 == 0 && is_aligned(rows.data); }

/// Loads the bits of a quad of channels of a row; absent channels are zeros. See Producer (recurrent_cuda/producer.cuh) for T, G
/// and kVector.
template <bool kVector, class G, class T = G>
__device__ __forceinline__ Raw<G> load_row(const Rows& rows, std::int64_t row, int channel) {
  Raw<G> raw;
  const bool present = rows.data != nullptr && channel < rows.size;
  const std::int64_t at = row * rows.size + channel;
  if constexpr (!kVector && !std::is_same_v<G, T>) {
    if (rows.dtype == dtype_of<T>()) {
      load_quad<kVector>(static_cast<const T*>(rows.data) + at, rows.size - channel, present, raw);
      return raw;
    }
  }
  load_quad<kVector>(static_cast<const G*>(rows.data) + at, rows.size - channel, present, raw);
  return raw;
}

/// The decays of a quad of channels, whose log decays are log + shared.
template <class F>
__device__ __forceinline__ Quad<F> decays(Quad<F> log, F shared) {
#pragma unroll
  for (F& x : log.x) x = power_of_2<F>((x + shared) * static_cast<F>(linear_attention::kLog2e));
  return log;
}

/// Stores a quad from column `at` of a row of `size` elements on, up to the end of the row. kVector requires that the quad is
/// aligned and ends within the row.
template <bool kVector, class F, class T>
__device__ __forceinline__ void store_quad(const Quad<F>& quad, T* row, int at, int size) {
  if constexpr (kVector) {
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

/// Loads element `at` and converts it; returns 0 if the operand is absent.
template <class F>
__device__ F load_element(const Rows& rows, std::int64_t at) {
  const Bits<F> bits[1] = {load_bits<F>(rows, at)};
  F value[1];
  decode(rows, bits, value);
  return value[0];
}

/// Converts a value to `dtype` and stores it as element `at`.
template <class F>
__device__ void store_element(F value, void* data, DType dtype, std::int64_t at) {
  visit_rows<F>(dtype, [&]<class T>(const T*) { static_cast<T*>(data)[at] = T(value); });
}

}  // namespace glade::cuda::recurrent
