#pragma once
// How the kernels of the recurrent form find and read their operands.
#include <cstdint>

#include <glade/core/cuda/cuda.h>
#include <glade/core/dtype.h>

namespace glade::cuda::recurrent {

/// Rows of a tensor [tokens, heads of its own, size]; null data: not given, zeros.
struct Rows {
  const void* data = nullptr;
  DType dtype = DType::float32;
  int size = 0;
  int group = 1;      ///< heads of the recurrence that share one of the tensor's
  double factor = 1;  ///< multiplies the elements (not of gates)

  /// Number of the row of head h, of `heads`.
  __device__ std::int64_t row(std::int64_t token, int heads, int h) const { return token * (heads / group) + h / group; }
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

/// Calls f with a null pointer to the element type of `dtype`, one of those that are computed in F.
template <class F, class Function>
__device__ void visit_rows(DType dtype, Function f) {
  if constexpr (std::is_same_v<F, double>) f(static_cast<const double*>(nullptr));
  else if (dtype == DType::bfloat16) f(static_cast<const bfloat16*>(nullptr));
  else if (dtype == DType::float16) f(static_cast<const float16*>(nullptr));
  else f(static_cast<const float*>(nullptr));
}

__device__ inline int element_size(DType dtype) { return dtype == DType::float64 ? 8 : dtype == DType::float32 ? 4 : 2; }

/// Element `at` of the data, without the factor; zero where there is none.
template <class F>
__device__ F load_element(const Rows& rows, std::int64_t at) {
  F value = 0;
  if (rows.data != nullptr)
    visit_rows<F>(rows.dtype, [&]<class T>(const T*) { value = static_cast<F>(static_cast<const T*>(rows.data)[at]); });
  return value;
}

template <class F>
__device__ void store_element(F value, void* data, DType dtype, std::int64_t at) {
  visit_rows<F>(dtype, [&]<class T>(const T*) { static_cast<T*>(data)[at] = T(value); });
}

}  // namespace glade::cuda::recurrent
