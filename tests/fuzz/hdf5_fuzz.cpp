// The target of the fuzzers: any bytes as a file.
#include "fuzz/load_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT: libFuzzer's name
  glade::nn::load_everything({reinterpret_cast<const char*>(data), size});
  return 0;
}
