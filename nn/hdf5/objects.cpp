#include <glade/nn/hdf5/objects.h>

#include <algorithm>
#include <array>
#include <deque>

#include <glade/core/format.h>

namespace glade::nn::hdf5 {
namespace {

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

void require_8_byte_offsets(Cursor& cursor) {
  const int offsets = cursor.u8(), lengths = cursor.u8();
  if (offsets != 8 || lengths != 8) fail<CheckpointError>("its addresses have {} bytes, only 8 are supported", offsets);
}

struct Block {
  std::uint64_t address, size;
};

/// Appends the messages of a block, and the blocks that continue it.
void append_messages(Cursor cursor, int version, bool has_order, Messages& messages, std::deque<Block>& blocks) {
  const std::size_t prefix = version == 1 ? 8 : has_order ? 6 : 4;
  while (cursor.remaining() >= prefix) {
    const auto type = static_cast<MessageType>(version == 1 ? cursor.u16() : cursor.u8());
    const std::size_t size = cursor.u16();
    const bool shared = (cursor.u8() & 2) != 0;
    cursor.skip(prefix - (version == 1 ? 5 : 4));
    const ByteView data = cursor.take(size);
    if (type == MessageType::continuation) {
      Cursor target(data, "the continuation of an object header");
      const std::uint64_t address = target.u64();
      blocks.push_back({address, target.u64()});
    } else if (static_cast<int>(type) != 0) {
      messages.push_back({type, shared, {data.begin(), data.end()}});
    }
  }
}

struct Attribute {
  std::string name;
  ByteView type, space, data;
};

Attribute parse_attribute(ByteView message) {
  Cursor cursor(message, "an attribute");
  const int version = cursor.u8();
  if (version < 1 || version > 3) fail<CheckpointError>("attributes have version {}, which is not supported", version);
  const bool shared = cursor.u8() != 0 && version > 1;
  const std::size_t name_size = cursor.u16(), type_size = cursor.u16(), space_size = cursor.u16();
  if (version == 3) cursor.skip(1);  // the name's character set
  const auto take = [&](std::size_t n) { return cursor.take(version == 1 ? (n + 7) / 8 * 8 : n).first(n); };
  const ByteView name = take(name_size);
  Attribute result;
  result.name.assign(name.begin(), std::find(name.begin(), name.end(), 0));
  result.type = take(type_size);
  result.space = take(space_size);
  result.data = cursor.take(cursor.remaining());
  if (shared) result.type = {};  // which no reader of its value accepts
  return result;
}

/// The value of a named scalar attribute as `parse` takes it from its Attribute.
template <class T, class Parse>
std::optional<T> scalar_attribute(Source& source, const Messages& object, const std::string& name, const Parse& parse) {
  const auto look = [&](ByteView message) -> std::optional<T> {
    const Attribute attribute = parse_attribute(message);
    if (attribute.name != name) return std::nullopt;
    if (parse_dataspace(attribute.space).shape.ndim() != 0) fail<CheckpointError>("attribute {} is not a scalar", name);
    return parse(attribute);
  };
  for (const Message& message : object)
    if (message.type == MessageType::attribute)
      if (auto value = look(message.data)) return value;
  if (const Message* info = find(object, MessageType::attribute_info))
    for (const Bytes& message : read_dense(source, *info))
      if (auto value = look(message)) return value;
  return std::nullopt;
}

/// An object of a global heap, where strings of variable length are.
Bytes global_heap_object(Source& source, std::uint64_t address, std::uint32_t index) {
  const Bytes prefix = source.block(address, 16);
  Cursor cursor(prefix, "a global heap");
  cursor.expect("GCOL", 1);
  cursor.skip(3);
  const Bytes heap = source.block(address, cursor.u64());
  Cursor objects(heap, "a global heap");
  objects.skip(16);
  while (objects.remaining() >= 16) {
    const std::uint16_t found = objects.u16();
    objects.skip(6);
    const std::uint64_t size = objects.u64();
    if (found == 0) break;  // the free space at the end
    const ByteView data = objects.take(size);
    if (found == index) return {data.begin(), data.end()};
    objects.skip(std::min<std::size_t>((8 - size % 8) % 8, objects.remaining()));
  }
  fail<CheckpointError>("damaged: a string is missing in its heap");
}

}  // namespace

std::uint64_t open_superblock(Source& source) {
  // It follows a block of the user's, of 0, 512, 1024, ... bytes.
  std::uint64_t base = 0;
  for (;; base = base == 0 ? 512 : 2 * base) {
    if (base > source.size() || source.size() - base < kSignature.size()) fail<CheckpointError>("not an HDF5 file");
    const Bytes start = source.block(base, kSignature.size());
    if (std::ranges::equal(start, kSignature, {}, {}, [](char c) { return static_cast<std::uint8_t>(c); })) break;
  }
  const std::uint64_t whole = source.size();
  source.set_base(base);
  const Bytes bytes = source.block_up_to(0, 100);
  Cursor cursor(bytes, "the superblock");
  cursor.skip(kSignature.size());
  const int version = cursor.u8();
  if (version > 3) fail<CheckpointError>("superblock version {} is not supported", version);
  if (version < 2) {
    cursor.skip(4);
    require_8_byte_offsets(cursor);
    cursor.skip(version == 0 ? 9 : 13);
  } else {
    require_8_byte_offsets(cursor);
    cursor.skip(1);
  }
  cursor.skip(16);  // the base address, found already; free space or extension
  if (const std::uint64_t end = cursor.u64(); end > whole)
    fail<CheckpointError>("truncated: it has {} bytes, and should have {}", whole, end);
  if (version < 2) cursor.skip(16);  // driver information, and the name of the root group
  const std::uint64_t root = cursor.u64();
  if (version >= 2 && !checksum_matches(ByteView(bytes).first(48)))
    fail<CheckpointError>("damaged: its superblock's checksum does not match");
  return root;
}

Messages read_object(Source& source, std::uint64_t address) {
  Messages messages;
  std::deque<Block> blocks;
  const Bytes prefix = source.block_up_to(address, 34);
  Cursor cursor(prefix, "an object header");
  if (cursor.u8() == 1) {
    cursor.skip(7);
    blocks.push_back({address + 16, cursor.u32()});
    for (; !blocks.empty(); blocks.pop_front()) {
      const Bytes block = source.block(blocks.front().address, blocks.front().size);
      append_messages({block, "an object header"}, 1, false, messages, blocks);
    }
    return messages;
  }
  cursor = {prefix, "an object header"};
  cursor.expect("OHDR", 2);
  const int flags = cursor.u8();
  if ((flags & 0x20) != 0) cursor.skip(16);  // times
  if ((flags & 0x10) != 0) cursor.skip(4);   // when to store attributes densely
  const std::uint64_t size = cursor.number(std::size_t{1} << (flags & 3));
  source.check_range(address, size);  // so that the sum below cannot overflow
  const std::size_t before = prefix.size() - cursor.remaining();
  blocks.push_back({address, before + size + 4});
  for (bool first = true; !blocks.empty(); blocks.pop_front(), first = false) {
    const Bytes block = source.checked_block(blocks.front().address, blocks.front().size);
    Cursor content(ByteView(block).first(block.size() - 4), "an object header");
    if (first) content.skip(before);
    else content.expect("OCHK");
    append_messages(content, 2, (flags & 4) != 0, messages, blocks);
  }
  return messages;
}

const Message* find(const Messages& messages, MessageType type) {
  const auto found = std::ranges::find(messages, type, &Message::type);
  return found != messages.end() ? &*found : nullptr;
}

ByteView require(const Messages& messages, MessageType type, const char* what) {
  const Message* message = find(messages, type);
  if (message == nullptr) fail<CheckpointError>("damaged: it has no {}", what);
  if (message->shared) fail<CheckpointError>("its {} is shared with other objects, which is not supported", what);
  return message->data;
}

bool is_group(const Messages& messages) {
  return find(messages, MessageType::symbol_table) != nullptr || find(messages, MessageType::link_info) != nullptr;
}

bool is_dataset(const Messages& messages) { return find(messages, MessageType::layout) != nullptr; }

namespace {

enum Class { kInteger = 0, kFloat = 1, kString = 3, kEnum = 8, kVariableLength = 9 };

struct Datatype {
  int type, version;
  std::uint32_t flags;
  std::size_t size;
  Cursor properties;
};

Datatype parse_datatype(ByteView message) {
  Cursor cursor(message, "an element type");
  const int head = cursor.u8();
  const auto flags = static_cast<std::uint32_t>(cursor.number(3));
  const std::size_t size = cursor.u32();
  return {head & 15, head >> 4, flags, size, cursor};
}

ElementType parse_integer(Datatype& type) {
  const std::size_t offset = type.properties.u16(), precision = type.properties.u16();
  ElementType result{DType::int64, type.size, (type.flags & 8) != 0, (type.flags & 1) != 0};
  const std::size_t size = type.size;
  if (offset != 0 || precision != 8 * size || (size != 1 && size != 2 && size != 4 && size != 8))
    fail<CheckpointError>("its integers of {} bits are none of glade's types", precision);
  if (size == 1 && !result.is_signed) result.dtype = DType::uint8;
  else if (size < 4 || (size == 4 && result.is_signed)) result.dtype = DType::int32;
  return result;
}

ElementType parse_float(Datatype& type) {
  struct Format {
    DType dtype;
    std::size_t size, mantissa, exponent;
    std::uint32_t bias;
  };
  constexpr std::array<Format, 4> formats{{{DType::float64, 8, 52, 11, 1023},
                                           {DType::float32, 4, 23, 8, 127},
                                           {DType::float16, 2, 10, 5, 15},
                                           {DType::bfloat16, 2, 7, 8, 127}}};
  Cursor& p = type.properties;
  const std::size_t offset = p.u16(), precision = p.u16(), exponent_at = p.u8(), exponent = p.u8(), mantissa_at = p.u8(),
                    mantissa = p.u8(), bias = p.u32(), sign_at = type.flags >> 8 & 255;
  const bool implied_bit = (type.flags >> 4 & 3) == 2, is_vax = (type.flags & 0x40) != 0;
  for (const Format& f : formats)
    if (type.size == f.size && offset == 0 && precision == 8 * f.size && exponent_at == f.mantissa && exponent == f.exponent &&
        mantissa_at == 0 && mantissa == f.mantissa && bias == f.bias && sign_at == 8 * f.size - 1 && implied_bit && !is_vax)
      return {f.dtype, f.size, true, (type.flags & 1) != 0};
  fail<CheckpointError>("its floating-point type of {} bits is none of glade's types", precision);
}

/// As h5py stores NumPy's bool: an enumeration of FALSE and TRUE over int8.
ElementType parse_bool(Datatype& type) {
  const std::size_t members = type.flags & 0xffff;
  const ByteView base = type.properties.take(12);  // an integer's
  bool good = members == 2 && type.size == 1 && (base[0] & 15) == kInteger;
  std::array<std::string, 2> names;
  for (std::size_t i = 0; good && i < 2; ++i) {
    while (const auto c = type.properties.u8()) names[i] += static_cast<char>(c);
    if (type.version < 3) type.properties.skip((8 - (names[i].size() + 1) % 8) % 8);
  }
  if (!good || names[0] != "FALSE" || names[1] != "TRUE" || type.properties.u8() != 0 || type.properties.u8() != 1)
    fail<CheckpointError>("its element type is an enumeration other than bool");
  return {DType::boolean, 1};
}

}  // namespace

ElementType parse_element_type(ByteView message) {
  Datatype type = parse_datatype(message);
  switch (type.type) {
    case kInteger: return parse_integer(type);
    case kFloat: return parse_float(type);
    case kEnum: return parse_bool(type);
    default: fail<CheckpointError>("its elements are not numbers");
  }
}

Extent parse_dataspace(ByteView message) {
  Cursor cursor(message, "a shape");
  const int version = cursor.u8(), ndim = cursor.u8(), flags = cursor.u8();
  if (version != 1 && version != 2) fail<CheckpointError>("shapes have version {}, which is not supported", version);
  if (version == 2 && cursor.u8() == 2) fail<CheckpointError>("it is a null dataspace, without values");
  if (version == 1) cursor.skip(5);
  if (ndim > kMaxDims) fail<CheckpointError>("it has {} dimensions, more than {}", ndim, kMaxDims);
  Extent extent;
  std::int64_t numel = 1;  // of the dimensions that are not empty, so that strides cannot overflow either
  for (int d = 0; d < ndim; ++d) {
    const std::uint64_t size = cursor.u64();
    if (size > std::uint64_t{1} << 48 ||
        __builtin_mul_overflow(numel, std::max<std::int64_t>(static_cast<std::int64_t>(size), 1), &numel) ||
        numel >= std::int64_t{1} << 56)
      fail<CheckpointError>("its size overflows");
    extent.shape.push_back(static_cast<std::int64_t>(size));
  }
  extent.max_shape = extent.shape;
  for (int d = 0; d < ndim && (flags & 1) != 0; ++d) {
    const std::uint64_t size = cursor.u64();
    if (size != kUndefined && (size > std::uint64_t{1} << 48 || static_cast<std::int64_t>(size) < extent.shape[d]))
      fail<CheckpointError>("its size is larger than its maximum");
    extent.max_shape[d] = size == kUndefined ? -1 : static_cast<std::int64_t>(size);
  }
  return extent;
}

std::optional<std::string> string_attribute(Source& source, const Messages& object, const std::string& name) {
  return scalar_attribute<std::string>(source, object, name, [&](const Attribute& attribute) {
    Datatype type = parse_datatype(attribute.type);
    Cursor data(attribute.data, "an attribute");
    Bytes text;
    if (type.type == kString) {
      const ByteView bytes = data.take(type.size);
      text.assign(bytes.begin(), bytes.end());
    } else if (type.type == kVariableLength && (type.flags & 15) == 1) {
      const std::size_t size = data.u32();
      const std::uint64_t heap = data.u64();
      const std::uint32_t index = data.u32();
      if (size > 0) text = global_heap_object(source, heap, index);
      text.resize(std::min(text.size(), size));
    } else {
      fail<CheckpointError>("attribute {} is not a string", name);
    }
    return std::string(text.begin(), std::find(text.begin(), text.end(), 0));
  });
}

std::optional<std::int64_t> integer_attribute(Source& source, const Messages& object, const std::string& name) {
  return scalar_attribute<std::int64_t>(source, object, name, [&](const Attribute& attribute) {
    Datatype type = parse_datatype(attribute.type);
    if (type.type != kInteger || type.size > 8 || type.size == 0) fail<CheckpointError>("attribute {} is not an integer", name);
    Cursor data(attribute.data, "an attribute");
    const ByteView stored = data.take(type.size);
    Bytes bytes(stored.begin(), stored.end());
    if ((type.flags & 1) != 0) std::ranges::reverse(bytes);
    const std::uint64_t value = little_endian(bytes);
    const auto unused = static_cast<int>(64 - 8 * type.size);
    const bool is_signed = (type.flags & 8) != 0;
    const auto result = is_signed ? static_cast<std::int64_t>(value << unused) >> unused : static_cast<std::int64_t>(value);
    if (!is_signed && result < 0) fail<CheckpointError>("attribute {} is {}, out of range", name, value);
    return result;
  });
}

}  // namespace glade::nn::hdf5
