#include <glade/nn/hdf5/source.h>

#include <algorithm>
#include <bit>

#include <glade/core/format.h>

namespace glade::nn::hdf5 {
namespace {

// Bob Jenkins' lookup3 (public domain), as far as HDF5 uses it: of bytes, with initial value 0.
std::uint32_t lookup3(ByteView bytes) {
  std::uint32_t a = 0xdeadbeef + static_cast<std::uint32_t>(bytes.size()), b = a, c = a;
  if (bytes.empty()) return c;
  const auto word = [&](std::size_t at) {
    const std::size_t begin = std::min(at, bytes.size());
    return static_cast<std::uint32_t>(little_endian(bytes.subspan(begin, std::min<std::size_t>(4, bytes.size() - begin))));
  };
  std::size_t at = 0;
  for (; bytes.size() - at > 12; at += 12) {
    a += word(at), b += word(at + 4), c += word(at + 8);
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
  }
  a += word(at), b += word(at + 4), c += word(at + 8);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

}  // namespace

std::uint64_t little_endian(ByteView bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

std::size_t encoded_size(std::uint64_t limit) {
  return limit == 0 ? 1 : (static_cast<std::size_t>(std::bit_width(limit)) + 7) / 8;
}

bool checksum_matches(ByteView block) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  return block.size() >= 4;  // a fuzzer would never get past it
#else
  return block.size() >= 4 && lookup3(block.first(block.size() - 4)) == little_endian(block.last(4));
#endif
}

ByteView Cursor::take(std::size_t n) {
  if (n > rest_.size()) fail<CheckpointError>("damaged: {} is cut off", what_);
  const ByteView taken = rest_.first(n);
  rest_ = rest_.subspan(n);
  return taken;
}

void Cursor::expect(std::string_view signature, int version) {
  if (!std::ranges::equal(take(signature.size()), signature, {}, {}, [](char c) { return static_cast<std::uint8_t>(c); }))
    fail<CheckpointError>("damaged: no {} where one should be", what_);
  if (version < 0) return;
  if (const int found = u8(); found != version) fail<CheckpointError>("{} has version {}, which is not supported", what_, found);
}

Source::Source(const std::string& path) : file_(path), size_(file_.size()), budget_((std::uint64_t{1} << 20) + 4 * size_) {}

void Source::set_base(std::uint64_t base) {
  check_range(0, base);
  base_ = base;
  size_ -= base;
}

void Source::check_range(std::uint64_t address, std::uint64_t n) const {
  if (address > size_ || n > size_ - address)
    fail<CheckpointError>("truncated or damaged: {} bytes at {} lie beyond the file's end", n, address);
}

void Source::read(std::uint64_t address, std::span<std::uint8_t> out) const {
  check_range(address, out.size());
  file_.read(base_ + address, out);
}

Bytes Source::block(std::uint64_t address, std::uint64_t n) {
  constexpr std::uint64_t kLeast = 32;  // so that many empty blocks end, too
  check_range(address, n);
  if (n + kLeast > budget_) fail<CheckpointError>("damaged: its metadata go in circles");
  budget_ -= n + kLeast;
  Bytes bytes(n);
  read(address, bytes);
  return bytes;
}

Bytes Source::block_up_to(std::uint64_t address, std::uint64_t n) {
  check_range(address, 0);
  return block(address, std::min(n, size_ - address));
}

Bytes Source::checked_block(std::uint64_t address, std::uint64_t n) {
  Bytes bytes = block(address, n);
  if (!checksum_matches(bytes)) fail<CheckpointError>("damaged: a checksum of its metadata does not match");
  return bytes;
}

}  // namespace glade::nn::hdf5
