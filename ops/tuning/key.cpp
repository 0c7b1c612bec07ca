#include <glade/ops/tuning/key.h>

#include <algorithm>
#include <bit>
#include <string_view>

#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/ops/tuning/device_kernels.h>

#include "kernel_hash.h"

namespace glade::tuning {

const char* pass_name(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

std::int64_t bucket(std::int64_t size) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1))));
}

Key::Key(const char* operation, Pass pass, DType dtype, Device device)
    : operation_(operation), pass_(pass), dtype_(dtype), device_(device) {}

Key& Key::add(const Fact& fact) {
  if (count_ == kMostFacts) fail<ValueError>("{}: a key has at most {} facts", operation_, kMostFacts);
  facts_[count_++] = fact;
  return *this;
}

bool Key::operator==(const Key& other) const {
  auto same_text = [](const char* a, const char* b) { return a == b || (a && b && std::string_view(a) == std::string_view(b)); };
  return same_text(operation_, other.operation_) && pass_ == other.pass_ && dtype_ == other.dtype_ && device_ == other.device_ &&
         std::equal(facts_.begin(), facts_.begin() + count_, other.facts_.begin(), other.facts_.begin() + other.count_,
                    [&](const Fact& a, const Fact& b) {
                      return a.number == b.number && same_text(a.name, b.name) && same_text(a.text, b.text);
                    });
}

std::size_t Key::hash() const {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over whole numbers, with more mixing
  auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  mix(std::hash<std::string_view>()(operation_));
  mix(static_cast<std::uint64_t>(pass_) | static_cast<std::uint64_t>(dtype_) << 8 |
      static_cast<std::uint64_t>(device_.type) << 16 | static_cast<std::uint64_t>(device_.index) << 32);
  for (std::size_t i = 0; i < count_; ++i)
    mix(facts_[i].text ? std::hash<std::string_view>()(facts_[i].text) : static_cast<std::uint64_t>(facts_[i].number));
  return static_cast<std::size_t>(hash);
}

std::string Key::to_json() const {
  DeviceFacts device;
  GLADE_DISPATCH(device_, read_facts, device_, device);
  std::string json;
  const auto add = [&](std::string_view name, const std::string& value) {
    json += fmt::format("{}{}:{}", json.empty() ? '{' : ',', json_string(name), value);
  };
  add("operation", json_string(operation_));
  add("pass", json_string(pass_name(pass_)));
  add("dtype", json_string(dtype_name(dtype_)));
  for (std::size_t i = 0; i < count_; ++i)
    add(facts_[i].name, facts_[i].text ? json_string(facts_[i].text) : std::to_string(facts_[i].number));
  add("device", json_string(device.name));
  add("capability", json_string(device.capability));
  add("glade", json_string(GLADE_VERSION));
  add("kernels", json_string(GLADE_KERNEL_HASH));
  return json + '}';
}

}  // namespace glade::tuning
