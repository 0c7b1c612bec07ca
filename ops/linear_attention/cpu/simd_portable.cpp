// The recurrence's inner loops for any processor, and the choice between these and those for AVX2 and AVX-512.
#define GLADE_SIMD_BYTES 16
#include <type_traits>

#include <glade/core/instruction_set.h>
#include <glade/ops/linear_attention/cpu/simd_kernels.h>

namespace glade::cpu {

#if defined(__x86_64__)
extern const SimdKernels<float> kAvx2Float, kAvx512Float;
extern const SimdKernels<double> kAvx2Double, kAvx512Double;
#endif

template <class F>
const SimdKernels<F>& simd_kernels() {
  static const SimdKernels<F>& kernels = []() -> const SimdKernels<F>& {
#if defined(__x86_64__)
    switch (instruction_set()) {
      case InstructionSet::avx512:
        if constexpr (std::is_same_v<F, float>) return kAvx512Float;
        else return kAvx512Double;
      case InstructionSet::avx2:
        if constexpr (std::is_same_v<F, float>) return kAvx2Float;
        else return kAvx2Double;
      case InstructionSet::portable: break;
    }
#endif
    return kKernels<F>;
  }();
  return kernels;
}

template const SimdKernels<float>& simd_kernels<float>();
template const SimdKernels<double>& simd_kernels<double>();

}  // namespace glade::cpu
