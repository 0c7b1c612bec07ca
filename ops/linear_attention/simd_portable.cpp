// The recurrence's inner loops for any processor, and the choice among those for particular ones.
#define GLADE_SIMD_BYTES 16
#include <cstdlib>
#include <string_view>
#include <type_traits>

#include <glade/ops/linear_attention/simd_kernels.h>

namespace glade::cpu {

#if defined(__x86_64__)
extern const SimdKernels<float> kAvx2Float, kAvx512Float;
extern const SimdKernels<double> kAvx2Double, kAvx512Double;
#endif

namespace {

enum class InstructionSet { portable, avx2, avx512 };

InstructionSet widest_allowed() {
  const char* name = std::getenv("GLADE_SIMD");
  if (name == nullptr) return InstructionSet::avx512;
  return std::string_view(name) == "portable" ? InstructionSet::portable
         : std::string_view(name) == "avx2"   ? InstructionSet::avx2
                                              : InstructionSet::avx512;
}

/// What the processor has, of what is allowed.
InstructionSet instruction_set() {
#if defined(__x86_64__)
  const InstructionSet allowed = widest_allowed();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512 && allowed == InstructionSet::avx512) return InstructionSet::avx512;
  if (avx2 && allowed != InstructionSet::portable) return InstructionSet::avx2;
#endif
  return InstructionSet::portable;
}

}  // namespace

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
