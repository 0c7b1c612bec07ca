// What core declares for CUDA, in a build without it.
#if !defined(GLADE_WITH_CUDA)

#include <glade/core/allocator.h>
#include <glade/core/cuda/nccl.h>
#include <glade/core/device.h>
#include <glade/core/dispatch.h>
#include <glade/core/event.h>
#include <glade/core/graph.h>
#include <glade/core/memory.h>
#include <glade/core/stream.h>

namespace glade {

void detail::throw_no_cuda() { throw DeviceError("glade was built without CUDA"); }

void* detail::cuda_allocate(std::size_t, int) { throw_no_cuda(); }
void detail::cuda_free(void*, std::size_t, int) noexcept {}
void* detail::pinned_allocate(std::size_t) { throw_no_cuda(); }
void detail::pinned_free(void*) noexcept {}

Stream Stream::create(int) { detail::throw_no_cuda(); }
void Stream::synchronize() const {}
void Stream::wait(Stream) const {}
void cuda::set_multiprocessors_left(int, int) {}

namespace cuda {

bool is_built() { return false; }
int device_count() { return 0; }
void synchronize(int) { detail::throw_no_cuda(); }
MemoryStats memory_stats(int) { detail::throw_no_cuda(); }
void reset_peak_memory_stats(int) { detail::throw_no_cuda(); }
void empty_cache(int) { detail::throw_no_cuda(); }
std::string memory_summary(int, const MemoryCategories&) { detail::throw_no_cuda(); }

Event::Event(int) : device_(0), handle_(nullptr) { detail::throw_no_cuda(); }
Event::~Event() = default;
void Event::record() {}
void Event::wait_on(Stream) const {}
void Event::synchronize() const {}
double Event::milliseconds_since(const Event&) const { return 0; }

Graph::Graph(int) : device_(0) { detail::throw_no_cuda(); }
void Graph::capture(const std::function<void()>&) {}
void Graph::begin_capture() {}
void Graph::end_capture() {}
void Graph::abandon_capture() noexcept {}
bool Graph::is_captured() const { return false; }
void Graph::replay() {}
bool is_capturing() { return false; }
void before_replay(std::function<void()>) {}  // NOLINT(performance-unnecessary-value-param): with CUDA it is kept
void check_not_capturing(std::string_view, std::string_view) {}

}  // namespace cuda

namespace nccl {

Id make_id() { detail::throw_no_cuda(); }
Stream make_stream(int) { detail::throw_no_cuda(); }
bool has_copy_engines() { return false; }
void* allocate(std::size_t, int) { return nullptr; }
void deallocate(void*, int) noexcept {}
Communicator::Communicator(int device, int size, int, const Id&, int max_ctas)
    : device_(device), size_(size), max_ctas_(max_ctas) {
  detail::throw_no_cuda();
}
bool Communicator::share(void*, std::size_t) const { return false; }
void Communicator::all_reduce(const Tensors&, ReduceOp, Stream) const {}
void Communicator::broadcast(const Tensors&, int, Stream) const {}
void Communicator::all_gather(const Tensor&, const Tensor&, Stream) const {}
void Communicator::reduce_scatter(const Tensor&, const Tensor&, ReduceOp, Stream) const {}
void Communicator::all_to_all(const Tensor&, const Tensor&, Stream) const {}
void Communicator::send(const Tensor&, int, Stream) const {}
void Communicator::receive(const Tensor&, int, Stream) const {}

}  // namespace nccl

}  // namespace glade

#endif
