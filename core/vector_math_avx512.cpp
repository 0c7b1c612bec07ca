// Vector functions for AVX-512. CMake compiles this file for processors that have it, and no others run it.
#include <glade/core/vector_math_loops.h>

namespace glade::cpu {

extern const VectorMath<float> kAvx512MathOfFloat;
extern const VectorMath<double> kAvx512MathOfDouble;
const VectorMath<float> kAvx512MathOfFloat =
    kLoops<float, Sleef_sinf16_u10avx512f, Sleef_cosf16_u10avx512f, Sleef_powf16_u10avx512f>;
const VectorMath<double> kAvx512MathOfDouble =
    kLoops<double, Sleef_sind8_u10avx512f, Sleef_cosd8_u10avx512f, Sleef_powd8_u10avx512f>;

}  // namespace glade::cpu
