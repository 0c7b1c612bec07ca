#include <glade/core/stream.h>

#include <array>

#include <glade/core/format.h>

namespace glade {

namespace {

constexpr int kMaxDevices = 64;

// Trivially destructible, so that tensors destroyed at the end of the process can still ask for it.
thread_local constinit std::array<void*, kMaxDevices> current{};

void*& current_handle(int device) {
  if (device < 0 || device >= kMaxDevices) fail<DeviceError>("stream: device {} is not in [0, {})", device, kMaxDevices);
  return current[static_cast<std::size_t>(device)];
}

}  // namespace

Stream current_stream(int device) { return {device, current_handle(device)}; }

StreamGuard::StreamGuard(Stream stream) : previous_(current_stream(stream.device)) {
  current_handle(stream.device) = stream.handle;
}

StreamGuard::~StreamGuard() { current_handle(previous_.device) = previous_.handle; }

}  // namespace glade
