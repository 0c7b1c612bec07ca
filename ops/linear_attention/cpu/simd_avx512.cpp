// The recurrence's inner loops for AVX-512. CMake compiles this file with AVX-512 enabled; simd_kernels() uses it only on
// processors that have AVX-512.
#define GLADE_SIMD_BYTES 64
#include <glade/ops/linear_attention/cpu/simd_kernels.h>

namespace glade::cpu {

extern const SimdKernels<float> kAvx512Float;
extern const SimdKernels<double> kAvx512Double;
const SimdKernels<float> kAvx512Float = kKernels<float>;
const SimdKernels<double> kAvx512Double = kKernels<double>;

}  // namespace glade::cpu
