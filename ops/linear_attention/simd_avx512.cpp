// The recurrence's inner loops for AVX-512. CMake compiles this file for processors that have it, and no others run it.
#define GLADE_SIMD_BYTES 64
#include <glade/ops/linear_attention/simd_kernels.h>

namespace glade::cpu {

extern const SimdKernels<float> kAvx512Float;
extern const SimdKernels<double> kAvx512Double;
const SimdKernels<float> kAvx512Float = kKernels<float>;
const SimdKernels<double> kAvx512Double = kKernels<double>;

}  // namespace glade::cpu
