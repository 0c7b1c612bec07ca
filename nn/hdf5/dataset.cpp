#include <glade/nn/hdf5/dataset.h>

#include <zlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>

#include <glade/core/format.h>
#include <glade/core/parallel.h>
#include <glade/nn/hdf5/fletcher32.h>

namespace glade::nn::hdf5 {
namespace {

constexpr std::size_t kChecksumSize = 4;
constexpr std::uint64_t kBestCompression = 1100;               // deflate reaches 1032 : 1
constexpr std::uint64_t kGrainBytes = std::uint64_t{1} << 20;  // that are worth a thread

enum LayoutClass { kCompact = 0, kContiguous = 1, kChunked = 2 };

std::vector<Filter> parse_filters(ByteView message) {
  Cursor cursor(message, "a filter pipeline");
  const int version = cursor.u8();
  if (version != 1 && version != 2) fail<CheckpointError>("filter pipelines have version {}, which is not supported", version);
  const int count = cursor.u8();
  if (version == 1) cursor.skip(6);
  std::vector<Filter> filters;
  for (int i = 0; i < count; ++i) {
    const std::uint16_t kind = cursor.u16();
    const std::size_t name_size = version == 1 || kind >= 256 ? cursor.u16() : 0;
    cursor.skip(2);
    const std::size_t parameters = cursor.u16();
    cursor.skip(version == 1 ? (name_size + 7) / 8 * 8 : name_size);
    Filter filter{kind, 0};
    for (std::size_t p = 0; p < parameters; ++p) {
      const std::uint32_t value = cursor.u32();
      if (p == 0) filter.parameter = value;
    }
    if (version == 1 && parameters % 2 == 1) cursor.skip(4);
    if (kind != Filter::deflate && kind != Filter::shuffle && kind != Filter::fletcher32)
      fail<CheckpointError>("its filter {} is not supported", kind);
    filters.push_back(filter);
  }
  return filters;
}

/// Values one after the other, cut into pieces so that they are read in parallel.
void add_contiguous(Dataset& dataset, std::uint64_t address, std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  const std::uint64_t numel = bytes / dataset.type.size, piece = kPiece / dataset.type.size;
  dataset.extent = {static_cast<std::int64_t>(numel)};
  dataset.chunk_shape = {static_cast<std::int64_t>(piece)};
  for (std::uint64_t at = 0; at < bytes; at += kPiece) dataset.chunks.push_back({address + at, std::min(kPiece, bytes - at), 0});
}

/// The chunk's size must be one that its filters could have left of `bytes`.
void check_chunk(const Dataset& dataset, const Chunk& chunk, std::uint64_t bytes) {
  bool compressed = false;
  for (std::size_t i = 0; i < dataset.filters.size(); ++i) {
    if ((chunk.skipped_filters >> i & 1) != 0) continue;
    compressed |= dataset.filters[i].kind == Filter::deflate;
    if (dataset.filters[i].kind == Filter::fletcher32) bytes += kChecksumSize;
  }
  if (compressed ? chunk.size < bytes / kBestCompression : chunk.size != bytes)
    fail<CheckpointError>("damaged: a chunk of {} bytes takes {} in the file", bytes, chunk.size);
}

void check_sum(std::uint32_t sum, ByteView expected) {
  if (sum != little_endian(expected)) fail<CheckpointError>("damaged: the checksum of its values does not match");
}

/// Undoes the filters of chunks, in memory that is kept from one to the next.
class Decoder {
 public:
  /// The chunk's `bytes` bytes as they were before the filters.
  ByteView decode(const Source& source, const Dataset& dataset, const Chunk& chunk, std::uint64_t bytes) {
    data_.resize(chunk.size);
    source.read(chunk.address, data_);
    std::size_t size = data_.size();
    for (std::size_t i = dataset.filters.size(); i-- > 0;) {
      if ((chunk.skipped_filters >> i & 1) != 0) continue;
      switch (dataset.filters[i].kind) {
        case Filter::fletcher32:
          if (size < kChecksumSize) fail<CheckpointError>("damaged: a chunk has no checksum");
          size -= kChecksumSize;
          check_sum(fletcher32(ByteView(data_).first(size)), ByteView(data_).subspan(size, kChecksumSize));
          break;
        case Filter::deflate: size = inflate(size, bytes + overhead_before(dataset, chunk, i)); break;
        case Filter::shuffle: unshuffle(size, dataset.filters[i].parameter); break;
        default: break;  // no other kind came through reading the header
      }
    }
    if (size != bytes) fail<CheckpointError>("damaged: a chunk has {} bytes, expected {}", size, bytes);
    return ByteView(data_).first(size);
  }

  /// Memory that nobody uses between calls of decode.
  Bytes& buffer() { return data_; }

 private:
  /// The checksums that were part of filter i's input.
  static std::size_t overhead_before(const Dataset& dataset, const Chunk& chunk, std::size_t i) {
    std::size_t overhead = 0;
    for (std::size_t j = 0; j < i; ++j)
      if ((chunk.skipped_filters >> j & 1) == 0 && dataset.filters[j].kind == Filter::fletcher32) overhead += kChecksumSize;
    return overhead;
  }

  std::size_t inflate(std::size_t size, std::size_t expected) {
    other_.resize(expected);
    uLongf n = expected;
    if (::uncompress(other_.data(), &n, data_.data(), size) != Z_OK)
      fail<CheckpointError>("damaged: its values cannot be decompressed");
    data_.swap(other_);
    return n;
  }

  void unshuffle(std::size_t size, std::size_t element) {
    if (element <= 1 || size < element) return;
    const std::size_t n = size / element;
    other_.resize(std::max(other_.size(), size));
    for (std::size_t b = 0; b < element; ++b)
      for (std::size_t i = 0; i < n; ++i) other_[i * element + b] = data_[b * n + i];
    std::copy(data_.begin() + static_cast<std::ptrdiff_t>(n * element), data_.begin() + static_cast<std::ptrdiff_t>(size),
              other_.begin() + static_cast<std::ptrdiff_t>(n * element));
    data_.swap(other_);
  }

  Bytes data_, other_;
};

/// A stored number: with its sign extended, or its bits where it is floating-point.
std::uint64_t stored_number(const ElementType& type, const std::uint8_t* at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < type.size; ++i) value = value << 8 | at[type.big_endian ? i : type.size - 1 - i];
  const auto unused = static_cast<int>(64 - 8 * type.size);
  if (is_integral(type.dtype) && type.is_signed)
    value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
  return value;
}

/// Fails for values that the dtype does not hold.
void check_range_of(const ElementType& type, ByteView values) {
  if (type.dtype == DType::boolean && std::ranges::any_of(values, [](std::uint8_t v) { return v > 1; }))
    fail<CheckpointError>("holds values that are no bools");
  if (type.dtype == DType::int64 && type.size == 8 && !type.is_signed)
    for (std::size_t i = 0; i < values.size(); i += 8)
      if (stored_number(type, values.data() + i) > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail<CheckpointError>("holds unsigned values that are too large for int64");
}

/// `values` as elements of the dtype, to out[first...].
void convert(const ElementType& type, ByteView values, std::size_t first, void* out) {
  const std::size_t width = dtype_size(type.dtype);
  auto* to = static_cast<std::uint8_t*>(out) + first * width;
  if (type.direct()) {
    std::copy(values.begin(), values.end(), to);
    return;
  }
  for (std::size_t i = 0; i < values.size(); i += type.size, to += width) {
    const std::uint64_t value = stored_number(type, values.data() + i);
    std::memcpy(to, &value, width);
  }
}

/// The part of a chunk that lies within the dataset, as runs of elements.
class Part {
 public:
  Part(const Dataset& dataset, std::size_t index)
      : origin_(dataset.extent),
        counts_(dataset.extent),
        strides_(dataset.extent.contiguous_strides()),
        chunk_strides_(dataset.chunk_shape.contiguous_strides()) {
    const Shape &extent = dataset.extent, &chunk = dataset.chunk_shape, grid = chunk_grid(extent, chunk);
    for (int d = extent.ndim() - 1; d >= 0; --d) {
      origin_[d] = static_cast<std::int64_t>(index) % grid[d] * chunk[d];
      counts_[d] = std::min(chunk[d], extent[d] - origin_[d]);
      index /= static_cast<std::size_t>(grid[d]);
    }
    // Dimensions that the chunk covers go into the run.
    outer_ = extent.ndim();
    while (outer_ > 0) {
      --outer_;
      length_ *= counts_[outer_];
      if (chunk[outer_] != extent[outer_]) break;
    }
    for (int d = 0; d < outer_; ++d) runs_ *= counts_[d];
  }

  std::int64_t runs() const { return runs_; }
  std::size_t length() const { return static_cast<std::size_t>(length_); }

  struct Run {
    std::size_t from, to;  ///< its first element in the chunk and in the dataset
  };
  Run run(std::int64_t r) const {
    std::int64_t from = 0, to = 0;
    for (int d = counts_.ndim() - 1; d >= 0; --d) {
      const std::int64_t at = d < outer_ ? r % counts_[d] : 0;
      if (d < outer_) r /= counts_[d];
      from += at * chunk_strides_[d];
      to += (origin_[d] + at) * strides_[d];
    }
    return {static_cast<std::size_t>(from), static_cast<std::size_t>(to)};
  }

 private:
  Shape origin_, counts_;  ///< the part's first element and its size
  Shape strides_, chunk_strides_;
  int outer_;
  std::int64_t runs_ = 1, length_ = 1;
};

/// Whether the chunk lies in the file as its part does in the tensor, at most with a checksum behind it.
bool is_plain(const Dataset& dataset, const Chunk& chunk, const Part& part, std::uint64_t bytes) {
  bool filtered = false;
  for (std::size_t i = 0; i < dataset.filters.size(); ++i)
    filtered |= (chunk.skipped_filters >> i & 1) == 0 && dataset.filters[i].kind != Filter::fletcher32;
  return !filtered && dataset.type.direct() && part.runs() == 1 && part.length() * dataset.type.size == bytes &&
         chunk.size <= bytes + kChecksumSize;
}

/// Reads a chunk of `bytes` bytes that is_plain: to `out`, or nowhere where that is nullptr. In blocks that are still in the
/// cache when they are checked, through `buffer` where they are not to be kept.
void read_plain(const Source& source, const Chunk& chunk, const ElementType& type, std::uint64_t bytes, std::uint8_t* out,
                Bytes& buffer) {
  constexpr std::uint64_t kBlock = std::uint64_t{1} << 19;  // half of most second-level caches
  if (out == nullptr) buffer.resize(std::max(buffer.size(), std::min(bytes, kBlock)));
  const bool has_sum = chunk.size > bytes;
  Fletcher32 sum;
  for (std::uint64_t at = 0; at < bytes; at += kBlock) {
    const std::span block(out != nullptr ? out + at : buffer.data(), std::min(kBlock, bytes - at));
    source.read(chunk.address + at, block);
    if (has_sum) sum.add(block);
    check_range_of(type, block);
  }
  if (!has_sum) return;
  std::array<std::uint8_t, kChecksumSize> expected;
  source.read(chunk.address + bytes, expected);
  check_sum(sum.value(), expected);
}

/// Reads chunk `index` of a dataset; `out` is its values, or nullptr.
void read_chunk(const Source& source, const Dataset& dataset, std::size_t index, Decoder& decoder, void* out) {
  const Chunk& chunk = dataset.chunks[index];
  const ElementType& type = dataset.type;
  const Part part(dataset, index);
  const std::uint64_t bytes =
      dataset.filters.empty() ? chunk.size : type.size * static_cast<std::uint64_t>(dataset.chunk_shape.numel());
  if (is_plain(dataset, chunk, part, bytes)) {
    auto* to = out != nullptr ? static_cast<std::uint8_t*>(out) + part.run(0).to * type.size : nullptr;
    read_plain(source, chunk, type, bytes, to, decoder.buffer());
    return;
  }
  const ByteView values = decoder.decode(source, dataset, chunk, bytes);
  for (std::int64_t r = 0; r < part.runs(); ++r) {
    const auto [from, to] = part.run(r);
    const ByteView run = values.subspan(from * type.size, part.length() * type.size);
    check_range_of(type, run);
    if (out != nullptr) convert(type, run, to, out);
  }
}

void read_compact(const Dataset& dataset, void* out) {
  check_range_of(dataset.type, dataset.compact);
  if (out != nullptr) convert(dataset.type, dataset.compact, 0, out);
}

}  // namespace

std::uint64_t Dataset::stored_bytes() const {
  std::uint64_t total = compact.size();
  for (const Chunk& chunk : chunks) total += chunk.size;
  return total;
}

Dataset open_dataset(Source& source, const Messages& object) {
  if (find(object, MessageType::external_files) != nullptr) fail<CheckpointError>("its data lie outside of the file");
  Dataset dataset;
  dataset.type = parse_element_type(require(object, MessageType::datatype, "element type"));
  const Extent extent = parse_dataspace(require(object, MessageType::dataspace, "shape"));
  dataset.shape = extent.shape;
  if (find(object, MessageType::filters) != nullptr)
    dataset.filters = parse_filters(require(object, MessageType::filters, "filter pipeline"));
  const std::uint64_t bytes = static_cast<std::uint64_t>(dataset.shape.numel()) * dataset.type.size;
  if (bytes == 0) return dataset;

  const ByteView layout = require(object, MessageType::layout, "layout");
  Cursor cursor(layout, "a layout");
  const int version = cursor.u8(), kind = cursor.u8();
  if (version < 3 || version > 5) fail<CheckpointError>("layout version {} is not supported", version);
  switch (kind) {
    case kCompact: {
      const std::size_t size = cursor.u16();
      const ByteView values = cursor.take(size);
      if (values.size() < bytes) fail<CheckpointError>("damaged: it holds {} bytes, its shape needs {}", values.size(), bytes);
      dataset.compact.assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(bytes));
      return dataset;
    }
    case kContiguous: {
      const std::uint64_t address = cursor.u64(), size = cursor.u64();
      if (address == kUndefined || size < bytes) fail<CheckpointError>("incomplete: its values were never written");
      source.check_range(address, bytes);
      dataset.filters.clear();
      add_contiguous(dataset, address, bytes);
      return dataset;
    }
    case kChunked: read_chunk_index(source, dataset, layout, extent.max_shape); break;
    default: fail<CheckpointError>("its data lie outside of the file");  // a virtual dataset
  }
  const std::uint64_t chunk_bytes = dataset.type.size * static_cast<std::uint64_t>(dataset.chunk_shape.numel());
  std::uint64_t total = 0;
  for (const Chunk& chunk : dataset.chunks) {
    if (chunk.address == kUndefined || chunk.size == 0)
      fail<CheckpointError>("incomplete: some of its values were never written");
    source.check_range(chunk.address, chunk.size);
    source.check_range(0, total += chunk.size);  // chunks upon each other would make much out of a small file
    check_chunk(dataset, chunk, chunk_bytes);
  }
  return dataset;
}

void read_values(const Source& source, std::span<const ReadJob> jobs) {
  struct Piece {
    std::uint64_t address;
    const ReadJob* job;
    std::size_t chunk;
  };
  std::vector<Piece> pieces;
  std::uint64_t bytes = 0;
  for (const ReadJob& job : jobs) {
    const std::vector<Chunk>& chunks = job.dataset->chunks;
    for (std::size_t i = 0; i < chunks.size(); ++i) pieces.push_back({chunks[i].address, &job, i});
    if (!job.dataset->compact.empty()) pieces.push_back({0, &job, 0});
    bytes += job.dataset->stored_bytes();
  }
  // The threads go through the file together, from its beginning to its end: so the system reads ahead of them.
  std::ranges::sort(pieces, {}, &Piece::address);
  std::atomic<std::size_t> next = 0;
  std::atomic_flag failed;
  std::exception_ptr error;
  const auto keep = [&](const std::exception_ptr& exception) {
    if (!failed.test_and_set()) error = exception;
  };
  parallel_for(static_cast<std::int64_t>(bytes / kGrainBytes) + 1, 1, [&](std::int64_t, std::int64_t) {
    Decoder decoder;
    for (std::size_t i; (i = next++) < pieces.size() && !failed.test();) {
      const auto& [address, job, chunk] = pieces[i];
      try {
        if (job->dataset->compact.empty()) read_chunk(source, *job->dataset, chunk, decoder, job->out);
        else read_compact(*job->dataset, job->out);
      } catch (const CheckpointError& cause) {
        keep(std::make_exception_ptr(CheckpointError(fmt::format("{}: {}", job->name, cause.what()))));
      } catch (...) {
        keep(std::current_exception());
      }
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace glade::nn::hdf5
