#include <glade/autograd/aside.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <glade/core/error.h>

namespace glade::autograd {

namespace {

/// How many pieces of work are under way at most: the tensors that they use are kept so long.
constexpr std::size_t kUnderWay = 6;

thread_local Aside* innermost = nullptr;

/// A thread's streams for work aside, one a device: two threads must not share one, as one of them may capture it. They are never
/// destroyed, but taken over by threads that begin later.
class Streams {
 public:
  ~Streams() {
    std::lock_guard lock(mutex());
    for (const auto& [device, stream] : streams_) free_streams()[device].push_back(stream);
  }
  Stream of(int device) {
    const auto [entry, is_new] = streams_.try_emplace(device);
    if (!is_new) return entry->second;
    {
      std::lock_guard lock(mutex());
      std::vector<Stream>& free = free_streams()[device];
      if (!free.empty()) {
        entry->second = free.back();
        free.pop_back();
        return entry->second;
      }
    }
    return entry->second = Stream::create(device);
  }

 private:
  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::map<int, std::vector<Stream>>& free_streams() {
    static auto& streams = *new std::map<int, std::vector<Stream>>;
    return streams;
  }
  std::map<int, Stream> streams_;
};

}  // namespace

Aside::Aside() : outer_(std::exchange(innermost, this)) {}

Aside::~Aside() {
  innermost = outer_;
  try {
    join();
  } catch (const Error&) {  // an earlier failure, which ends the pass
  }
}

void Aside::join() {
  while (!work_.empty()) finish_first();
}

void Aside::finish_first() {
  work_.front().done.wait_on(work_.front().pass);
  work_.pop_front();
}

void run_aside(Device device, const Tensors& used, const std::function<void()>& f) {
  if (device.is_cpu() || innermost == nullptr) return f();
  thread_local Streams streams;
  const Stream pass = current_stream(device.index), aside = streams.of(device.index);
  aside.wait(pass);
  cuda::Event done(device.index);
  {
    StreamGuard guard(aside);
    f();
    done.record();
  }
  innermost->work_.push_back({used, pass, std::move(done)});
  if (innermost->work_.size() > kUnderWay) innermost->finish_first();
}

}  // namespace glade::autograd
