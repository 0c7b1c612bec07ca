#include <glade/nn/hdf5/btree.h>

#include <glade/core/format.h>

namespace glade::nn::hdf5 {
namespace {

constexpr std::size_t kNodeOverhead = 10;  // signature, version, type, checksum

struct Tree {
  explicit Tree(Source& file) : source(file) {}

  Source& source;
  std::uint64_t node_size = 0;
  std::size_t record_size = 0;
  /// Sizes of the counts in a pointer to a child: of its records, and, by its level, of all records below it.
  std::size_t count_size = 0;
  std::vector<std::size_t> total_size;
  std::vector<Bytes> records;

  void read_node(std::uint64_t address, std::uint64_t count, std::size_t level) {
    const Bytes node = source.block(address, node_size);
    const bool is_leaf = level == 0;
    const std::size_t pointer = 8 + count_size + (is_leaf ? 0 : total_size[level - 1]);
    const std::size_t used = kNodeOverhead + count * record_size + (is_leaf ? 0 : (count + 1) * pointer);
    if (used > node_size || !checksum_matches(ByteView(node).first(used)))
      fail<CheckpointError>("damaged: a node of an index is wrong");
    Cursor cursor(node, "a node of an index");
    cursor.expect(is_leaf ? "BTLF" : "BTIN", 0);
    cursor.skip(1);
    std::vector<Bytes> own;
    for (std::uint64_t i = 0; i < count; ++i) {
      const ByteView record = cursor.take(record_size);
      own.emplace_back(record.begin(), record.end());
    }
    for (std::uint64_t i = 0; i <= count; ++i) {
      if (!is_leaf) {
        const std::uint64_t child = cursor.u64(), child_count = cursor.number(count_size);
        cursor.skip(total_size[level - 1]);
        read_node(child, child_count, level - 1);
      }
      if (i < count) records.push_back(std::move(own[i]));
    }
  }
};

}  // namespace

std::vector<Bytes> read_btree2(Source& source, std::uint64_t address) {
  constexpr std::size_t kHeaderSize = 38;
  const Bytes header = source.checked_block(address, kHeaderSize);
  Cursor cursor(header, "an index");
  cursor.expect("BTHD", 0);
  cursor.skip(1);
  Tree tree(source);
  tree.node_size = cursor.u32();
  tree.record_size = cursor.u16();
  const std::size_t depth = cursor.u16();
  cursor.skip(2);
  const std::uint64_t root = cursor.u64(), root_count = cursor.u16();
  if (tree.record_size == 0 || tree.node_size < kNodeOverhead + tree.record_size || depth > 16)
    fail<CheckpointError>("damaged: an index has impossible sizes");
  if (root == kUndefined) return {};

  // How many records fit into a node of a level, and below it in all, decides how their numbers are stored.
  std::uint64_t below = (tree.node_size - kNodeOverhead) / tree.record_size;
  tree.count_size = encoded_size(below);
  tree.total_size = {0};
  for (std::size_t level = 1; level <= depth; ++level) {
    const std::size_t pointer = 8 + tree.count_size + tree.total_size.back();
    if (tree.node_size < kNodeOverhead + pointer) fail<CheckpointError>("damaged: an index has impossible sizes");
    const std::uint64_t here = (tree.node_size - kNodeOverhead - pointer) / (tree.record_size + pointer);
    if (__builtin_mul_overflow(here + 1, below, &below) || __builtin_add_overflow(below, here, &below)) below = kUndefined;
    tree.total_size.push_back(encoded_size(below));
  }
  tree.read_node(root, root_count, depth);
  return std::move(tree.records);
}

}  // namespace glade::nn::hdf5
