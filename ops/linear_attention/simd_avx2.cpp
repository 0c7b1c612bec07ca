// The recurrence's inner loops for AVX2. CMake compiles this file for processors that have it, and no others run it.
#define GLADE_SIMD_BYTES 32
#include <glade/ops/linear_attention/simd_kernels.h>

namespace glade::cpu {

extern const SimdKernels<float> kAvx2Float;
extern const SimdKernels<double> kAvx2Double;
const SimdKernels<float> kAvx2Float = kKernels<float>;
const SimdKernels<double> kAvx2Double = kKernels<double>;

}  // namespace glade::cpu
