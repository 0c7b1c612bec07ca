// Vector functions for AVX2. CMake compiles this file for processors that have it, and no others run it.
#include <glade/core/vector_math_loops.h>

namespace glade::cpu {

extern const VectorMath<float> kAvx2MathOfFloat;
extern const VectorMath<double> kAvx2MathOfDouble;
const VectorMath<float> kAvx2MathOfFloat = kLoops<float, Sleef_sinf8_u10avx2, Sleef_cosf8_u10avx2, Sleef_powf8_u10avx2>;
const VectorMath<double> kAvx2MathOfDouble = kLoops<double, Sleef_sind4_u10avx2, Sleef_cosd4_u10avx2, Sleef_powd4_u10avx2>;

}  // namespace glade::cpu
