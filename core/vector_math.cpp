// Vector functions for any processor, in 128 bits, and the choice among the loops for particular ones.
#include <glade/core/instruction_set.h>
#include <glade/core/vector_math_loops.h>

namespace glade::cpu {

extern const VectorMath<float> kAvx2MathOfFloat, kAvx512MathOfFloat;
extern const VectorMath<double> kAvx2MathOfDouble, kAvx512MathOfDouble;

template <>
const VectorMath<float>& vector_math<float>() {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::avx512: return kAvx512MathOfFloat;
    case InstructionSet::avx2: return kAvx2MathOfFloat;
#endif
    default: break;
  }
  static constexpr VectorMath<float> portable = kLoops<float, Sleef_sinf4_u10, Sleef_cosf4_u10, Sleef_powf4_u10>;
  return portable;
}

template <>
const VectorMath<double>& vector_math<double>() {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::avx512: return kAvx512MathOfDouble;
    case InstructionSet::avx2: return kAvx2MathOfDouble;
#endif
    default: break;
  }
  static constexpr VectorMath<double> portable = kLoops<double, Sleef_sind2_u10, Sleef_cosd2_u10, Sleef_powd2_u10>;
  return portable;
}

}  // namespace glade::cpu
