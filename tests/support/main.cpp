// Runs a test program. Tests take their devices from test_devices(), so that one test covers every device present.
#include <gtest/gtest.h>

#include <glade/core/generator.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  glade::manual_seed(0);
  return RUN_ALL_TESTS();
}
