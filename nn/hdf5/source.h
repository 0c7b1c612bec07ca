#pragma once
// The bytes of an HDF5 file as its reader sees them: every access is checked. Not public.
//
// Files come from anywhere, and the HDF5 library crashes or hangs on many damaged ones, so glade reads them with a decoder
// of its own. All of its errors are CheckpointErrors that say the cause alone; HDF5File adds the file and the entry.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <glade/nn/input_file.h>

namespace glade::nn::hdf5 {

using Bytes = std::vector<std::uint8_t>;
using ByteView = std::span<const std::uint8_t>;

/// An address that leads nowhere.
inline constexpr std::uint64_t kUndefined = ~std::uint64_t{0};

/// An unsigned little-endian number.
std::uint64_t little_endian(ByteView bytes);
/// Bytes that hold any number up to `limit`, as HDF5 counts them.
std::size_t encoded_size(std::uint64_t limit);
/// Whether the last four bytes are the checksum (Jenkins' lookup3) of those before.
bool checksum_matches(ByteView block);

/// Takes little-endian numbers from a block, one after the other.
class Cursor {
 public:
  /// `what` names the block in errors.
  Cursor(ByteView bytes, const char* what) : rest_(bytes), what_(what) {}

  ByteView take(std::size_t n);
  void skip(std::size_t n) { take(n); }
  std::uint64_t number(std::size_t n) { return little_endian(take(n)); }
  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  /// A signature of four letters, then, where given, a version.
  void expect(std::string_view signature, int version = -1);
  std::size_t remaining() const { return rest_.size(); }

 private:
  ByteView rest_;
  const char* what_;
};

/// A file open for reading; addresses count from its superblock.
class Source {
 public:
  explicit Source(const std::string& path);

  std::uint64_t size() const { return size_; }
  void set_base(std::uint64_t base);
  /// Fails unless the range lies in the file.
  void check_range(std::uint64_t address, std::uint64_t n) const;
  /// Copies file content; may be called from several threads.
  void read(std::uint64_t address, std::span<std::uint8_t> out) const;
  /// A block of metadata. All of them together may not have much more bytes than the file: it takes cycles or blocks that
  /// overlap to get there.
  Bytes block(std::uint64_t address, std::uint64_t n);
  /// The same, or less at the end of the file.
  Bytes block_up_to(std::uint64_t address, std::uint64_t n);
  /// A block that ends with its checksum, which is checked.
  Bytes checked_block(std::uint64_t address, std::uint64_t n);

 private:
  InputFile file_;
  std::uint64_t size_;  ///< from the superblock on
  std::uint64_t base_ = 0, budget_;
};

}  // namespace glade::nn::hdf5
