// The recurrence's inner loops for AVX2. CMake compiles this file with AVX2 enabled; simd_kernels() uses it only on processors
// that have AVX2.
#define GLADE_SIMD_BYTES 32
#include <glade/ops/linear_attention/cpu/simd_kernels.h>

namespace glade::cpu {

extern const SimdKernels<float> kAvx2Float;
extern const SimdKernels<double> kAvx2Double;
const SimdKernels<float> kAvx2Float = kKernels<float>;
const SimdKernels<double> kAvx2Double = kKernels<double>;

}  // namespace glade::cpu
