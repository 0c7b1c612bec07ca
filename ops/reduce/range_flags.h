#pragma once
// Whether arithmetic in float32 left the range of normal numbers, from the flags that the processor keeps: checks that cost
// nothing in the loops.
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace glade::cpu {

class RangeFlags {
 public:
#if defined(__SSE__)
  RangeFlags() {
    const unsigned state = _mm_getcsr();
    if ((state & kFlags) != 0) _mm_setcsr(state & ~kFlags);
  }
  /// Whether results that are not exact became subnormal, or finite numbers infinite, on the way to `results` since this was
  /// made.
  template <class T, int n>
  bool raised(const T (&results)[n]) const {
    asm volatile("" : : "m"(results) : "memory");  // they are computed before the flags are read
    return (_mm_getcsr() & kFlags) != 0;
  }

 private:
  static constexpr unsigned kFlags = _MM_EXCEPT_UNDERFLOW | _MM_EXCEPT_OVERFLOW;
#else
  template <class T, int n>
  bool raised(const T (&)[n]) const {
    return true;
  }
#endif
};

}  // namespace glade::cpu
