#include <glade/core/instruction_set.h>

#include <cstdlib>
#include <string_view>

#include <glade/core/format.h>

namespace glade {
namespace {

InstructionSet widest_allowed() {
  const char* variable = std::getenv("GLADE_SIMD");
  const std::string_view name = variable == nullptr ? "avx512" : variable;
  if (name == "portable") return InstructionSet::portable;
  if (name == "avx2") return InstructionSet::avx2;
  if (name == "avx512") return InstructionSet::avx512;
  fail<ValueError>("GLADE_SIMD is {}, expected portable, avx2 or avx512", name);
}

}  // namespace

InstructionSet instruction_set() {
  [[maybe_unused]] const InstructionSet allowed = widest_allowed();
#if defined(__x86_64__)
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
