#pragma once
// Functions of many numbers at once on the CPU: those that have no short formula (core/cpu_math.h has the others). For the
// widest instruction set that the processor has, by SLEEF but for fmod; within 1 ulp of the true value. Zeros, infinities and NaN
// as in <cmath>. A result depends on its own arguments alone, wherever they stand.
#include <cstdint>

namespace glade::cpu {

template <class T>
struct VectorMath {
  void (*sin)(std::int64_t n, const T* x, T* out);  ///< out[i] = sin(x[i]); out may be x
  void (*cos)(std::int64_t n, const T* x, T* out);
  void (*pow)(std::int64_t n, const T* x, const T* y, T* out);
  void (*fmod)(std::int64_t n, const T* x, const T* y, T* out);  ///< exact; out is neither x nor y
};

/// T is float or double. ValueError where GLADE_SIMD is wrong: to be asked for before a parallel loop, not in it.
template <class T>
const VectorMath<T>& vector_math();

}  // namespace glade::cpu
