// The environment variable GLADE_SIMD.
#include <glade/core/instruction_set.h>

#include <cstdlib>

#include "support/testing.h"

namespace glade::testing_support {
namespace {

class InstructionSets : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("GLADE_SIMD"); }
};

TEST_F(InstructionSets, GladeSimdAsksForLess) {
  const InstructionSet widest = instruction_set();
  for (const auto& [name, allowed] :
       {std::pair("portable", InstructionSet::portable), {"avx2", InstructionSet::avx2}, {"avx512", InstructionSet::avx512}}) {
    setenv("GLADE_SIMD", name, 1);
    EXPECT_EQ(instruction_set(), std::min(allowed, widest));
  }
}

TEST_F(InstructionSets, OtherValuesAreRefused) {
  for (const std::string name : {"foo", "", "AVX2"}) {
    setenv("GLADE_SIMD", name.c_str(), 1);
    EXPECT_TRUE(
        throws_with<ValueError>([] { instruction_set(); }, "GLADE_SIMD is " + name + ", expected portable, avx2 or avx512"));
  }
}

}  // namespace
}  // namespace glade::testing_support
