#pragma once
// What an HDF5 file is made of: objects (groups and datasets), each a list of messages. Not public.
#include <optional>
#include <string>
#include <vector>

#include <glade/core/dtype.h>
#include <glade/core/shape.h>
#include <glade/nn/hdf5/source.h>

namespace glade::nn::hdf5 {

/// Finds the superblock and returns the address of the root group.
std::uint64_t open_superblock(Source& source);

enum class MessageType : std::uint16_t {
  dataspace = 0x01,
  link_info = 0x02,
  datatype = 0x03,
  link = 0x06,
  external_files = 0x07,
  layout = 0x08,
  group_info = 0x0a,
  filters = 0x0b,
  attribute = 0x0c,
  continuation = 0x10,
  symbol_table = 0x11,
  attribute_info = 0x15,
};

struct Message {
  MessageType type;
  bool shared;  ///< it lies elsewhere
  Bytes data;
};
using Messages = std::vector<Message>;

/// The messages of the object whose header is at `address`.
Messages read_object(Source& source, std::uint64_t address);
/// The first message of a type, or nullptr.
const Message* find(const Messages& messages, MessageType type);
/// The content of a message that must be there.
ByteView require(const Messages& messages, MessageType type, const char* what);

bool is_group(const Messages& messages);
bool is_dataset(const Messages& messages);

// ---- groups ----------------------------------------------------------------------------------------------------------

struct Link {
  std::string name;
  std::optional<std::uint64_t> address;  ///< of a hard link's object; soft and external links are not followed
};

/// The links of a group, however they are stored.
std::vector<Link> read_links(Source& source, const Messages& group);

/// The messages (links or attributes) that an info message keeps in a heap with an index instead of the object's header.
std::vector<Bytes> read_dense(Source& source, const Message& info);

// ---- types, shapes, attributes -----------------------------------------------------------------------------------------

/// How numbers are stored, and the dtype that holds them all.
struct ElementType {
  DType dtype;
  std::size_t size;  ///< of a stored element
  bool is_signed = true;
  bool big_endian = false;

  /// Whether the stored bytes are the tensor's.
  bool direct() const { return !big_endian && size == dtype_size(dtype) && (is_signed || size == 1); }
};

/// CheckpointError for a type that is no number, or one that no dtype holds.
ElementType parse_element_type(ByteView datatype);

struct Extent {
  Shape shape, max_shape;  ///< -1: no maximum
};
/// CheckpointError for what is no array of up to kMaxDims dimensions, or too large to count its elements.
Extent parse_dataspace(ByteView dataspace);

/// The scalar attribute of an object as a string or an integer; nothing where it is missing. CheckpointError where it is
/// something else.
std::optional<std::string> string_attribute(Source& source, const Messages& object, const std::string& name);
std::optional<std::int64_t> integer_attribute(Source& source, const Messages& object, const std::string& name);

}  // namespace glade::nn::hdf5
