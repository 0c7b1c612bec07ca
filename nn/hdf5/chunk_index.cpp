// Where the chunks of a dataset lie: HDF5 has an index for every kind of dataset.
#include <algorithm>
#include <bit>
#include <numeric>

#include <glade/core/format.h>
#include <glade/nn/hdf5/btree.h>
#include <glade/nn/hdf5/dataset.h>

namespace glade::nn::hdf5 {
namespace {

/// The number in `grid` of the chunk with number `index` in the grid `wanted`. An array that can grow along one dimension
/// counts along that one slowest.
std::uint64_t number_in(const Shape& grid, const Shape& wanted, std::uint64_t index, int growing) {
  std::array<std::uint64_t, kMaxDims> at{};
  for (int d = wanted.ndim() - 1; d >= 0; --d) {
    at[static_cast<std::size_t>(d)] = index % static_cast<std::uint64_t>(wanted[d]);
    index /= static_cast<std::uint64_t>(wanted[d]);
  }
  std::uint64_t number = growing >= 0 ? at[static_cast<std::size_t>(growing)] : 0;
  for (int d = 0; d < grid.ndim(); ++d)
    if (d != growing) number = number * static_cast<std::uint64_t>(grid[d]) + at[static_cast<std::size_t>(d)];
  return number;
}

/// Takes the entries of an array in their order, and puts those that are wanted into `chunks`. The array may be as large as the
/// greatest shape: memory is for the present one alone.
class Entries {
 public:
  using Wanted = std::vector<std::pair<std::uint64_t, std::size_t>>;  // numbers of entries, and where they belong

  Entries(std::vector<Chunk>& chunks, Wanted wanted) : chunks_(chunks), wanted_(std::move(wanted)) { std::ranges::sort(wanted_); }

  /// How many have passed.
  std::uint64_t size() const { return size_; }
  void add(const Chunk& chunk) {
    while (next_ < wanted_.size() && wanted_[next_].first < size_) ++next_;
    if (next_ < wanted_.size() && wanted_[next_].first == size_) chunks_[wanted_[next_].second] = chunk;
    ++size_;
  }
  /// Passes over entries that were never written.
  void skip(std::uint64_t n) { size_ += n; }

 private:
  std::vector<Chunk>& chunks_;
  Wanted wanted_;
  std::uint64_t size_ = 0;
  std::size_t next_ = 0;
};

class Index {
 public:
  Index(Source& source, Dataset& dataset, const Shape& max_shape)
      : source_(source), dataset_(dataset), max_shape_(max_shape), grid_(chunk_grid(dataset.extent, dataset.chunk_shape)) {
    chunk_bytes_ = dataset.type.size * static_cast<std::uint64_t>(dataset.chunk_shape.numel());
    dataset.chunks.resize(static_cast<std::size_t>(grid_.numel()));
  }

  // ---- version 1: a B-tree whose keys are positions ----------------------------------------------------------------------
  void read_tree(std::uint64_t address, int expected_level = -1) {
    const auto ndim = static_cast<std::size_t>(grid_.ndim());
    const std::size_t key_size = 8 + 8 * (ndim + 1);
    const Bytes head = source_.block(address, 24);
    Cursor cursor(head, "a chunk index");
    cursor.expect("TREE", 1);
    const int level = cursor.u8();
    if (expected_level >= 0 && level != expected_level) fail<CheckpointError>("damaged: the levels of its chunk index are wrong");
    const std::size_t count = cursor.u16();
    const Bytes entries = source_.block(address + 24, count * (key_size + 8));
    Cursor entry(entries, "a chunk index");
    for (std::size_t i = 0; i < count; ++i) {
      Chunk chunk;
      chunk.size = entry.u32();
      chunk.skipped_filters = entry.u32();
      std::array<std::uint64_t, kMaxDims> at{};
      for (std::size_t d = 0; d < ndim; ++d) {
        const auto size = static_cast<std::uint64_t>(dataset_.chunk_shape[static_cast<int>(d)]);
        const std::uint64_t offset = entry.u64();
        at[d] = offset % size == 0 ? offset / size : kUndefined;
      }
      entry.skip(8);
      chunk.address = entry.u64();
      if (level == 0) place(at, chunk);
      else read_tree(chunk.address, level - 1);
    }
  }

  // ---- version 2: a B-tree with positions in its records -----------------------------------------------------------------
  void read_tree_2(std::uint64_t address) {
    const auto ndim = static_cast<std::size_t>(grid_.ndim());
    for (const Bytes& record : read_btree2(source_, address)) {
      Cursor entry(record, "a chunk index");
      if (record.size() < 8 + 8 * ndim) fail<CheckpointError>("damaged: the records of its chunk index are too short");
      const Chunk chunk = read_entry(entry, record.size() - 8 * ndim);
      std::array<std::uint64_t, kMaxDims> at{};
      for (std::size_t d = 0; d < ndim; ++d) at[d] = entry.u64();
      place(at, chunk);
    }
  }

  // ---- all chunks one after the other --------------------------------------------------------------------------------------
  void read_implicit(std::uint64_t address) {
    for (std::size_t i = 0; i < dataset_.chunks.size(); ++i)
      dataset_.chunks[i] = {address + number_in(grid_of_max(), grid_, i, -1) * chunk_bytes_, chunk_bytes_, 0};
  }

  // ---- an array of fixed size ------------------------------------------------------------------------------------------------
  void read_fixed_array(std::uint64_t address) {
    constexpr std::size_t kHeaderSize = 28, kPrefix = 14;
    const Bytes header = source_.checked_block(address, kHeaderSize);
    Cursor cursor(header, "a chunk index");
    cursor.expect("FAHD", 0);
    cursor.skip(1);
    const std::size_t entry_size = cursor.u8(), page_bits = cursor.u8();
    const std::uint64_t count = cursor.u64(), block = cursor.u64();
    if (block == kUndefined) return;
    source_.check_range(block, count);  // so that the products below cannot overflow
    Entries entries = wanted_entries(-1);
    if (page_bits >= 64 || count <= std::uint64_t{1} << page_bits) {
      const Bytes content = source_.checked_block(block, kPrefix + count * entry_size + 4);
      Cursor at(content, "a chunk index");
      at.expect("FADB", 0);
      at.skip(9);
      append(entries, at, count, entry_size);
    } else {
      const std::uint64_t page = std::uint64_t{1} << page_bits, pages = (count + page - 1) / page;
      const std::uint64_t prefix = kPrefix + (pages + 7) / 8 + 4;
      const Bytes content = source_.checked_block(block, prefix);
      Cursor(content, "a chunk index").expect("FADB", 0);
      read_pages(entries, block + prefix, ByteView(content).subspan(kPrefix), 0, count, page, entry_size);
    }
  }

  // ---- an array that grows along one dimension -------------------------------------------------------------------------------
  void read_extensible_array(std::uint64_t address) {
    constexpr std::size_t kHeaderSize = 72;
    const Bytes header = source_.checked_block(address, kHeaderSize);
    Cursor cursor(header, "a chunk index");
    cursor.expect("EAHD", 0);
    cursor.skip(1);
    const std::size_t entry_size = cursor.u8(), bits = cursor.u8();
    const std::uint64_t in_index = cursor.u8(), least = cursor.u8(), pointers = cursor.u8();
    const std::size_t page_bits = cursor.u8();
    cursor.skip(4 * 8);
    const std::uint64_t count = cursor.u64();
    cursor.skip(8);
    const std::uint64_t index_block = cursor.u64();
    if (index_block == kUndefined) return;
    if (bits > 48 || page_bits > 32 || !std::has_single_bit(least) || !std::has_single_bit(pointers))
      fail<CheckpointError>("damaged: a chunk index has impossible sizes");
    const std::uint64_t page = std::uint64_t{1} << page_bits;
    const std::size_t offset_size = (bits + 7) / 8;

    const std::uint64_t in_block = 2 * (pointers - 1);
    const std::size_t super_blocks = 1 + bits - static_cast<std::size_t>(std::bit_width(least) - 1);
    const std::size_t first_super = 2 * static_cast<std::size_t>(std::bit_width(pointers) - 1);
    if (super_blocks < first_super || super_blocks > 64) fail<CheckpointError>("damaged: a chunk index has impossible sizes");
    const std::uint64_t index_size = 14 + in_index * entry_size + 8 * (in_block + super_blocks - first_super) + 4;
    const Bytes index = source_.checked_block(index_block, index_size);
    Cursor at(index, "a chunk index");
    at.expect("EAIB", 0);
    at.skip(9);
    int growing = 0;
    while (growing + 1 < max_shape_.ndim() && max_shape_[growing] >= 0) ++growing;
    Entries entries = wanted_entries(growing);
    append(entries, at, std::min(in_index, count), entry_size);
    at.skip((in_index - entries.size()) * entry_size);

    // Super block u has 2^(u/2) data blocks of least * 2^((u+1)/2) entries; the first ones have no block of their own.
    for (std::size_t u = 0; u < super_blocks && entries.size() < count; ++u) {
      const std::uint64_t blocks = std::uint64_t{1} << (u / 2), each = least << ((u + 1) / 2);
      const bool paged = each > page;
      const std::uint64_t bitmap = paged ? (each / page + 7) / 8 : 0;
      Bytes super;
      Cursor addresses = at;
      ByteView bitmaps;
      if (u < first_super) {
        if (paged) fail<CheckpointError>("damaged: a chunk index has pages without a bitmap of them");
        at.skip(8 * blocks);
      } else {
        const std::uint64_t super_address = at.u64();
        if (super_address == kUndefined) {
          entries.skip(blocks * each);
          continue;
        }
        source_.check_range(super_address, blocks);
        super = source_.checked_block(super_address, 14 + offset_size + blocks * (bitmap + 8) + 4);
        addresses = {super, "a chunk index"};
        addresses.expect("EASB", 0);
        addresses.skip(9 + offset_size);
        bitmaps = addresses.take(blocks * bitmap);
      }
      for (std::uint64_t b = 0; b < blocks && entries.size() < count; ++b) {
        const std::uint64_t block = addresses.u64();
        if (block == kUndefined) {
          entries.skip(each);
          continue;
        }
        const std::uint64_t prefix = 14 + offset_size;
        if (paged) {
          source_.checked_block(block, prefix + 4);
          read_pages(entries, block + prefix + 4, bitmaps, b * (each / page), each, page, entry_size);
        } else {
          const Bytes content = source_.checked_block(block, prefix + each * entry_size + 4);
          Cursor values(content, "a chunk index");
          values.expect("EADB", 0);
          values.skip(9 + offset_size);
          append(entries, values, each, entry_size);
        }
      }
    }
  }

  std::uint64_t chunk_bytes() const { return chunk_bytes_; }

 private:
  Chunk read_entry(Cursor& cursor, std::size_t entry_size) const {
    Chunk chunk{cursor.u64(), chunk_bytes_, 0};
    if (entry_size > 8) {  // of chunks with filters
      if (entry_size < 13 || entry_size > 20)
        fail<CheckpointError>("damaged: the entries of its chunk index have {} bytes", entry_size);
      chunk.size = cursor.number(entry_size - 12);
      chunk.skipped_filters = cursor.u32();
    }
    return chunk;
  }

  void append(Entries& entries, Cursor& cursor, std::uint64_t count, std::size_t entry_size) const {
    for (std::uint64_t i = 0; i < count; ++i) entries.add(read_entry(cursor, entry_size));
  }

  /// Pages of entries, each with its checksum, as far as their bits say that they were written.
  void read_pages(Entries& entries, std::uint64_t address, ByteView bitmap, std::uint64_t first_bit, std::uint64_t count,
                  std::uint64_t page, std::size_t entry_size) {
    for (std::uint64_t done = 0, i = first_bit; done < count; done += page, ++i) {
      const std::uint64_t n = std::min(page, count - done), bytes = n * entry_size + 4;
      if ((bitmap[i / 8] & (0x80 >> i % 8)) != 0) {
        const Bytes content = source_.checked_block(address, bytes);
        Cursor cursor(content, "a chunk index");
        append(entries, cursor, n, entry_size);
      } else {
        entries.skip(n);
      }
      source_.check_range(address, bytes);
      address += bytes;
    }
  }

  void place(const std::array<std::uint64_t, kMaxDims>& at, const Chunk& chunk) {
    std::uint64_t number = 0;
    for (int d = 0; d < grid_.ndim(); ++d) {
      const std::uint64_t position = at[static_cast<std::size_t>(d)];
      if (position >= static_cast<std::uint64_t>(grid_[d])) fail<CheckpointError>("damaged: a chunk lies outside of it");
      number = number * static_cast<std::uint64_t>(grid_[d]) + position;
    }
    dataset_.chunks[number] = chunk;
  }

  /// For an array whose entries are numbered in the grid of the greatest shape.
  Entries wanted_entries(int growing) {
    const Shape grid = grid_of_max();
    Entries::Wanted wanted;
    for (std::size_t i = 0; i < dataset_.chunks.size(); ++i) wanted.emplace_back(number_in(grid, grid_, i, growing), i);
    return {dataset_.chunks, std::move(wanted)};
  }

  Shape grid_of_max() const {
    Shape largest = max_shape_;
    for (int d = 0; d < largest.ndim(); ++d) largest[d] = std::max(largest[d], dataset_.extent[d]);
    return chunk_grid(largest, dataset_.chunk_shape);
  }

  Source& source_;
  Dataset& dataset_;
  const Shape& max_shape_;
  Shape grid_;
  std::uint64_t chunk_bytes_ = 0;
};

enum IndexType { kSingle = 1, kImplicit = 2, kFixedArray = 3, kExtensibleArray = 4, kTree2 = 5 };

}  // namespace

Shape chunk_grid(const Shape& shape, const Shape& chunk_shape) {
  Shape grid;
  for (int d = 0; d < shape.ndim(); ++d) grid.push_back((shape[d] + chunk_shape[d] - 1) / chunk_shape[d]);
  return grid;
}

void read_chunk_index(Source& source, Dataset& dataset, ByteView layout, const Shape& max_shape) {
  Cursor cursor(layout, "a layout");
  const int version = cursor.u8();
  cursor.skip(1);  // class
  const int flags = version == 3 ? 0 : cursor.u8();
  const int dims = cursor.u8();
  if (dims != dataset.shape.ndim() + 1) fail<CheckpointError>("damaged: its chunks have another number of dimensions");
  std::uint64_t tree = 0;
  if (version == 3) tree = cursor.u64();
  const std::size_t dim_size = version == 3 ? 4 : cursor.u8();
  if (dim_size == 0 || dim_size > 8) fail<CheckpointError>("damaged: its chunks have impossible sizes");
  std::uint64_t bytes = dataset.type.size;
  for (int d = 0; d + 1 < dims; ++d) {
    const std::uint64_t size = cursor.number(dim_size);
    if (size == 0 || size > std::uint64_t{1} << 48 || __builtin_mul_overflow(bytes, size, &bytes) ||
        bytes > std::uint64_t{1} << 48)
      fail<CheckpointError>("damaged: its chunks have impossible sizes");
    dataset.chunk_shape.push_back(static_cast<std::int64_t>(size));
  }
  if (cursor.number(dim_size) != dataset.type.size) fail<CheckpointError>("damaged: its chunks have another element size");
  dataset.extent = dataset.shape;
  // Each chunk takes a byte of the file at least: no more are looked for.
  source.check_range(0, static_cast<std::uint64_t>(chunk_grid(dataset.extent, dataset.chunk_shape).numel()));

  Index index(source, dataset, max_shape);
  if (version == 3) {
    if (tree != kUndefined) index.read_tree(tree);
    return;
  }
  const int type = cursor.u8();
  Chunk single{kUndefined, index.chunk_bytes(), 0};
  if (type == kSingle && (flags & 2) != 0) {
    single.size = cursor.u64();
    single.skipped_filters = cursor.u32();
  }
  if (type == kFixedArray) cursor.skip(1);
  if (type == kExtensibleArray) cursor.skip(5);
  if (type == kTree2) cursor.skip(6);
  const std::uint64_t address = cursor.u64();
  if (address == kUndefined) return;
  switch (type) {
    case kSingle:
      single.address = address;
      if (dataset.chunks.size() != 1) fail<CheckpointError>("damaged: it has one chunk and needs {}", dataset.chunks.size());
      dataset.chunks[0] = single;
      break;
    case kImplicit: index.read_implicit(address); break;
    case kFixedArray: index.read_fixed_array(address); break;
    case kExtensibleArray: index.read_extensible_array(address); break;
    case kTree2: index.read_tree_2(address); break;
    default: fail<CheckpointError>("chunk indices of type {} are not supported", type);
  }
  // Filters leave alone the chunks that reach beyond the shape where a flag says so.
  if ((flags & 1) != 0)
    for (std::size_t i = 0; i < dataset.chunks.size(); ++i) {
      std::size_t rest = i;
      for (int d = dims - 2; d >= 0; --d) {
        const auto n = static_cast<std::size_t>((dataset.extent[d] + dataset.chunk_shape[d] - 1) / dataset.chunk_shape[d]);
        const auto at = static_cast<std::int64_t>(rest % n);
        if ((at + 1) * dataset.chunk_shape[d] > dataset.extent[d]) dataset.chunks[i].skipped_filters = ~0u;
        rest /= n;
      }
    }
}

}  // namespace glade::nn::hdf5
