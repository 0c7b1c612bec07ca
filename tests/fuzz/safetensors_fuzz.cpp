// The target of the fuzzers: any bytes as a safetensors file, of which all that can be read is read.
#include <glade/nn/safetensors.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

using namespace glade;

void check(bool good) {
  if (!good) std::abort();
}

void load(const std::string& path, std::size_t size) try {
  const nn::SafetensorsFile file(path);
  std::size_t total = 0;
  for (const auto& [name, info] : file.tensors()) {
    try {
      const Tensor x = file.read(name);
      check(x.dtype() == info.dtype && x.shape() == info.shape);
      const std::size_t bytes = static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype());
      const volatile char* data = static_cast<const char*>(x.raw_data());
      for (std::size_t i = 0; i < bytes; ++i) static_cast<void>(data[i]);
      total += bytes;
    } catch (const CheckpointError&) {
      check(info.dtype == DType::boolean);  // bytes that are no bools; all else was checked
    }
  }
  check(total < size);  // no byte belongs to two tensors
} catch (const CheckpointError&) {
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT: libFuzzer's name
  static const int descriptor = ::memfd_create("damaged.safetensors", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  check(::ftruncate(descriptor, 0) == 0 && ::pwrite(descriptor, data, size, 0) == static_cast<ssize_t>(size));
  load(path, size);
  return 0;
}
