#include <glade/core/device.h>

#include <charconv>

#include <glade/core/format.h>

namespace glade {

std::string Device::name() const { return is_cpu() ? "cpu" : fmt::format("cuda:{}", index); }

Device Device::parse(std::string_view text) {
  if (text == "cpu") return kCPU;
  if (text == "auto") return cuda::is_available() ? kCUDA : kCPU;
  int index = 0;
  bool valid = text == "cuda";
  if (text.starts_with("cuda:")) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + 5, end, index);
    valid = error == std::errc() && rest == end && index >= 0;
  }
  if (!valid) fail<ValueError>("device: expected cpu, cuda, cuda:N or auto, got '{}'", text);
  cuda::check_device(index);
  return {DeviceType::cuda, index};
}

void cuda::check_device(int device) {
  const int count = device_count();
  if (device >= 0 && device < count) return;
  if (!is_built()) fail<DeviceError>("cuda:{} is not there: glade was built without CUDA", device);
  if (count == 0) fail<DeviceError>("cuda:{} is not there: no CUDA device and driver were found", device);
  fail<DeviceError>("cuda:{} is not there: the CUDA devices are cuda:0 to cuda:{}", device, count - 1);
}

}  // namespace glade
