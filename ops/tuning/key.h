#pragma once
// What the best configuration of an operation depends on.
#include <array>
#include <cstdint>
#include <string>

#include <glade/core/device.h>
#include <glade/core/dtype.h>

namespace glade::tuning {

/// The half of an operation that a configuration is for.
enum class Pass : unsigned char { forward, backward };
const char* pass_name(Pass pass);  ///< "forward" or "backward".

/// The smallest power of two that is not smaller: sizes that a kernel treats alike.
std::int64_t bucket(std::int64_t size);

/// Looked up at every call, so it is numbers; the strings come with to_json().
class Key {
 public:
  static constexpr std::size_t kMostFacts = 14;  ///< The most facts of a key; add() throws beyond them.

  /// `operation` is a literal, as all names and texts here: they are kept by address.
  Key(const char* operation, Pass pass, DType dtype, Device device);
  /// Adds a fact: a size, in a bucket, or a choice. `name` is a literal.
  Key& add(const char* name, std::int64_t number) { return add({name, number, nullptr}); }
  Key& add(const char* name, const char* text) { return add({name, 0, text}); }

  const char* operation() const { return operation_; }  ///< As given to the constructor.
  bool operator==(const Key& other) const;
  std::size_t hash() const;  ///< Of all facts, for the process's cache.
  /// An object of all facts, and of what is the same for a whole process: the device's name and capability, glade's version
  /// and the hash of its kernels' sources and compilers.
  std::string to_json() const;

 private:
  struct Fact {
    const char* name;
    std::int64_t number;
    const char* text;  // instead of the number, or null
  };
  Key& add(const Fact& fact);

  const char* operation_;
  Pass pass_;
  DType dtype_;
  Device device_;
  std::size_t count_ = 0;
  std::array<Fact, kMostFacts> facts_;
};

}  // namespace glade::tuning
