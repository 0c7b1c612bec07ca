#include <glade/core/instruction_set.h>

#include <cstdlib>
#include <string_view>

namespace glade {
namespace {

InstructionSet widest_allowed() {
  const char* name = std::getenv("GLADE_SIMD");
  if (name == nullptr) return InstructionSet::avx512;
  return std::string_view(name) == "portable" ? InstructionSet::portable
         : std::string_view(name) == "avx2"   ? InstructionSet::avx2
                                              : InstructionSet::avx512;
}

}  // namespace

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

}  // namespace glade
