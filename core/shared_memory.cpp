#include <glade/core/shared_memory.h>

#include <algorithm>

#include <glade/core/format.h>
#include <glade/core/graph.h>
#include <glade/core/peers.h>

namespace glade {
namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;  // bytes: sizes are multiples of it

}  // namespace

bool SharedMemory::holds(const Tensor& x) const {
  const auto* const at = static_cast<const char*>(x.raw_data());
  return std::ranges::any_of(blocks_, [at](const Block& block) { return at >= block.data && at < block.data + block.bytes; });
}

/// Of each number, that of the rank where it is largest.
std::vector<std::int64_t> SharedMemory::largest(std::vector<std::int64_t> numbers) const {
  peers::wait_for(*group_.ranks.all_reduce(numbers.data(), numbers.size(), DType::int64, ReduceOp::max), "empty_shared");
  return numbers;
}

/// False where the GPUs cannot reach each other's memory.
bool SharedMemory::add_block(int device, std::size_t bytes) {
  void* memory = nccl::allocate(bytes, device);
  if (memory == nullptr) {
    cuda::empty_cache(device);  // NCCL cannot have what glade's pool keeps
    memory = nccl::allocate(bytes, device);
  }
  if (largest({memory == nullptr ? 1 : 0})[0] != 0) {
    if (memory != nullptr) nccl::deallocate(memory, device);
    fail<OutOfMemoryError>("empty_shared: a rank has no {} bytes of GPU memory left", bytes);
  }
  const nccl::Communicator& copies = group_.nccl(device, nccl::Communicator::kCopyEngines);
  if (!copies.share(memory, bytes)) return false;
  blocks_.push_back({static_cast<char*>(memory), bytes, std::make_shared<std::atomic<bool>>(false)});
  // A graph waits for flags of 1, which the first collective outside of one leaves behind: there must be a later one.
  const int size = group_.ranks.size();
  const std::int64_t piece = static_cast<std::int64_t>(bytes) / size;
  const Tensor whole = Tensor::from_blob(memory, {piece * size}, {DType::uint8, {DeviceType::cuda, device}});
  const Tensor mine = whole.as_strided({piece}, {1}, piece * group_.ranks.rank());
  for (int i = 0; i < 2; ++i) copies.all_gather(whole, mine, group_.stream(device));
  return true;
}

/// Whether copies between the GPUs work, which it tries with a first block. That block is kept.
bool SharedMemory::find_copies(int device) {
  group_.nccl(device, 0);  // throws where NCCL is missing
  const bool is_possible = group_.ranks.split_by_host()->size() == group_.ranks.size() && nccl::has_copy_engines();
  return largest({is_possible ? 0 : 1})[0] == 0 && add_block(device, kPage);
}

Tensor SharedMemory::take(std::int64_t count, const TensorOptions& options) {
  const int device = options.device.index;
  cuda::check_not_capturing("ProcessGroup::empty_shared", "the GPUs make each other's memory known then; call it before");
  if (!has_copies_) has_copies_ = find_copies(device);
  if (!*has_copies_) return {};
  const std::size_t wanted = static_cast<std::size_t>(count) * dtype_size(options.dtype);
  const std::size_t bytes = std::max((wanted + kPage - 1) / kPage, std::size_t{1}) * kPage;
  const auto free = std::ranges::find_if(blocks_, [&](const Block& block) { return block.bytes == bytes && !*block.is_used; });
  const auto size_asked = static_cast<std::int64_t>(bytes), found = static_cast<std::int64_t>(free - blocks_.begin());
  const auto all = largest({size_asked, -size_asked, found, -found});
  if (all[0] != -all[1]) fail<ShapeError>("empty_shared: the ranks ask for {} to {} bytes of memory", -all[1], all[0]);
  const bool have_one = all[2] == -all[3] && free != blocks_.end();  // the same one
  if (!have_one) add_block(device, bytes);
  const Block& taken = have_one ? *free : blocks_.back();
  cuda::synchronize(device);  // who had it before may still use it
  *taken.is_used = true;
  return Tensor::from_blob(taken.data, {count}, options, [is_used = taken.is_used] { *is_used = false; });
}

}  // namespace glade
