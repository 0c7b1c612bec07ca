// Groups: the ways in which HDF5 stores the names in them.
#include <algorithm>
#include <bit>

#include <glade/core/format.h>
#include <glade/nn/hdf5/btree.h>
#include <glade/nn/hdf5/objects.h>

namespace glade::nn::hdf5 {
namespace {

void check_name(const std::string& name) {
  const auto is_bad = [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' ' || c == 127; };
  if (name.empty() || name == "." || name == ".." || std::ranges::any_of(name, is_bad))
    fail<CheckpointError>("a name in it is empty or has unprintable characters");
}

Link parse_link(ByteView message) {
  Cursor cursor(message, "a link");
  if (const int version = cursor.u8(); version != 1)
    fail<CheckpointError>("links have version {}, which is not supported", version);
  const int flags = cursor.u8();
  const int type = (flags & 8) != 0 ? cursor.u8() : 0;
  if ((flags & 4) != 0) cursor.skip(8);   // order of creation
  if ((flags & 16) != 0) cursor.skip(1);  // character set
  const ByteView name = cursor.take(cursor.number(std::size_t{1} << (flags & 3)));
  Link link{{name.begin(), name.end()}, std::nullopt};
  check_name(link.name);
  if (type == 0) link.address = cursor.u64();
  return link;
}

// ---- old groups: a B-tree of version 1 whose leaves point into a heap of names ---------------------------------------------

void read_symbols(Source& source, std::uint64_t address, ByteView names, std::vector<Link>& links) {
  const Bytes head = source.block(address, 8);
  Cursor cursor(head, "a symbol table");
  cursor.expect("SNOD", 1);
  cursor.skip(1);
  const std::size_t count = cursor.u16();
  const Bytes entries = source.block(address + 8, 40 * count);
  Cursor entry(entries, "a symbol table");
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t at = entry.u64(), object = entry.u64();
    const bool is_soft = entry.u32() == 2;
    entry.skip(20);
    if (at >= names.size()) fail<CheckpointError>("damaged: a name lies outside of its heap");
    const ByteView rest = names.subspan(at);
    const auto end = std::ranges::find(rest, 0);
    if (end == rest.end()) fail<CheckpointError>("damaged: a name has no end");
    Link link{{rest.begin(), end}, std::nullopt};
    check_name(link.name);
    if (!is_soft) link.address = object;
    links.push_back(std::move(link));
  }
}

void read_symbol_tree(Source& source, std::uint64_t address, int expected_level, ByteView names, std::vector<Link>& links) {
  const Bytes head = source.block(address, 24);
  Cursor cursor(head, "a group's tree");
  cursor.expect("TREE", 0);
  const int level = cursor.u8();
  if (expected_level >= 0 && level != expected_level) fail<CheckpointError>("damaged: the levels of a group's tree are wrong");
  const std::size_t count = cursor.u16();
  const Bytes entries = source.block(address + 24, 16 * count + 8);
  Cursor entry(entries, "a group's tree");
  for (std::size_t i = 0; i < count; ++i) {
    entry.skip(8);  // the key
    const std::uint64_t child = entry.u64();
    if (level == 0) read_symbols(source, child, names, links);
    else read_symbol_tree(source, child, level - 1, names, links);
  }
}

std::vector<Link> read_symbol_table(Source& source, ByteView message) {
  Cursor cursor(message, "a group's symbol table");
  const std::uint64_t tree = cursor.u64(), heap = cursor.u64();
  const Bytes head = source.block(heap, 32);
  Cursor header(head, "a heap of names");
  header.expect("HEAP", 0);
  header.skip(3);
  const std::uint64_t size = header.u64();
  header.skip(8);
  const Bytes names = source.block(header.u64(), size);
  std::vector<Link> links;
  read_symbol_tree(source, tree, -1, names, links);
  return links;
}

// ---- large new groups: messages in a fractal heap, found through a B-tree of version 2 ---------------------------------

class FractalHeap {
 public:
  FractalHeap(Source& source, std::uint64_t address) : source_(source) {
    constexpr std::size_t kHeaderSize = 146;
    const Bytes header = source.checked_block(address, kHeaderSize);
    Cursor cursor(header, "a heap");
    cursor.expect("FRHP", 0);
    cursor.skip(2);
    if (cursor.u16() != 0) fail<CheckpointError>("its heaps are compressed, which is not supported");
    cursor.skip(1);
    const std::uint64_t max_object = cursor.u32();
    cursor.skip(12 * 8);
    width_ = cursor.u16();
    start_ = cursor.u64();
    max_direct_ = cursor.u64();
    const std::size_t bits = cursor.u16();
    cursor.skip(2);
    root_ = cursor.u64();
    root_rows_ = cursor.u16();
    if (width_ == 0 || !std::has_single_bit(start_) || !std::has_single_bit(max_direct_) || max_direct_ < start_ || bits > 64 ||
        max_direct_ > std::uint64_t{1} << 32)
      fail<CheckpointError>("damaged: a heap has impossible sizes");
    offset_size_ = (bits + 7) / 8;
    const auto direct_bits = static_cast<std::size_t>(std::bit_width(max_direct_) - 1);
    length_size_ = std::min((direct_bits + 7) / 8, encoded_size(max_object));
    direct_rows_ = static_cast<std::size_t>(std::bit_width(max_direct_) - std::bit_width(start_)) + 2;
  }

  Bytes object(ByteView id) {
    Cursor cursor(id, "a heap's identifier");
    if (cursor.u8() != 0) fail<CheckpointError>("it has a link or attribute of a size that is not supported");
    const std::uint64_t offset = cursor.number(offset_size_);
    const std::uint64_t length = cursor.number(length_size_);
    if (root_rows_ == 0) return from_direct(root_, start_, offset, length);
    return from_indirect(root_, root_rows_, offset, length);
  }

 private:
  Bytes from_direct(std::uint64_t address, std::uint64_t size, std::uint64_t offset, std::uint64_t length) {
    if (offset > size || length > size - offset) fail<CheckpointError>("damaged: an entry lies outside of its heap");
    source_.check_range(address, size);
    return source_.block(address + offset, length);
  }

  Bytes from_indirect(std::uint64_t address, std::size_t rows, std::uint64_t offset, std::uint64_t length) {
    // The blocks of the first two rows have the starting size, those of each row after twice the size before.
    std::uint64_t begin = 0, size = start_;
    for (std::size_t row = 0; row < rows; ++row) {
      if (row > 1 && __builtin_mul_overflow(size, 2, &size)) break;
      std::uint64_t row_size = 0;
      if (__builtin_mul_overflow(size, width_, &row_size)) break;
      if (offset - begin >= row_size) {
        begin += row_size;
        continue;
      }
      const std::uint64_t column = (offset - begin) / size;
      const std::uint64_t entry = 13 + offset_size_ + 8 * (row * width_ + column);
      source_.check_range(address, entry + 8);
      const std::uint64_t child = little_endian(source_.block(address + entry, 8));
      const std::uint64_t within = (offset - begin) % size;
      if (row < direct_rows_) return from_direct(child, size, within, length);
      const int child_rows = std::bit_width(size) - std::bit_width(start_ * width_) + 1;
      if (child_rows < 1 || static_cast<std::size_t>(child_rows) >= rows) break;
      return from_indirect(child, static_cast<std::size_t>(child_rows), within, length);
    }
    fail<CheckpointError>("damaged: an entry lies outside of its heap");
  }

  Source& source_;
  std::uint64_t width_, start_, max_direct_, root_;
  std::size_t offset_size_, length_size_, root_rows_, direct_rows_;
};

}  // namespace

std::vector<Bytes> read_dense(Source& source, const Message& info) {
  const bool is_link = info.type == MessageType::link_info;
  Cursor cursor(info.data, "a group's links");
  cursor.skip(1);
  if ((cursor.u8() & 1) != 0) cursor.skip(is_link ? 8 : 2);  // greatest order of creation
  const std::uint64_t heap_address = cursor.u64(), index = cursor.u64();
  std::vector<Bytes> messages;
  if (heap_address == kUndefined) return messages;
  FractalHeap heap(source, heap_address);
  for (const Bytes& record : read_btree2(source, index)) {
    // A link's record is the hash of its name and the identifier; an attribute's begins with the identifier.
    Cursor entry(record, "an index of names");
    if (is_link) entry.skip(4);
    messages.push_back(heap.object(entry.take(is_link ? 7 : 8)));
  }
  return messages;
}

std::vector<Link> read_links(Source& source, const Messages& group) {
  if (const Message* table = find(group, MessageType::symbol_table)) return read_symbol_table(source, table->data);
  std::vector<Link> links;
  for (const Message& message : group)
    if (message.type == MessageType::link) links.push_back(parse_link(message.data));
  if (const Message* info = find(group, MessageType::link_info))
    for (const Bytes& message : read_dense(source, *info)) links.push_back(parse_link(message));
  return links;
}

}  // namespace glade::nn::hdf5
