#pragma once
// What the processor has, for loops that are compiled for several instruction sets (*_avx2.cpp, *_avx512.cpp).

namespace glade {

enum class InstructionSet { portable, avx2, avx512 };

/// The widest that this processor has. The environment variable GLADE_SIMD (portable, avx2, avx512) can ask for less.
InstructionSet instruction_set();

}  // namespace glade
