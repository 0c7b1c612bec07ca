#pragma once
// What the processor has, for loops that are compiled for several instruction sets (*_avx2.cpp, *_avx512.cpp).

namespace glade {

enum class InstructionSet { portable, avx2, avx512 };

/// The widest that this processor has. The environment variable GLADE_SIMD (portable, avx2, avx512) can ask for less. ValueError
/// for any other value of it: what computes in parallel asks before.
InstructionSet instruction_set();

}  // namespace glade
