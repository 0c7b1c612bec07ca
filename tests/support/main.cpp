// Runs a test program. Tests take their devices from test_devices(), so that one test covers every device present.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
