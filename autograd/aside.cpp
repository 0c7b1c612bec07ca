#include <glade/autograd/aside.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <glade/core/error.h>

namespace glade::autograd {

namespace {

constexpr std::size_t kMost = 16;  // pieces of work that wait: the tensors that they use are kept so long

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

Stream aside_stream(int device) {
  thread_local Streams streams;
  return streams.of(device);
}

}  // namespace

Aside::Aside() : outer_(std::exchange(innermost, this)) {}

Aside::~Aside() {
  innermost = outer_;
  waiting_.clear();  // nobody has asked for it
  try {
    finish();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): an earlier failure, which ends the pass
  }
}

void Aside::add(Stream pass, std::function<void()> f) {
  if (pass.device != pass_.device || pass.handle != pass_.handle) join();
  pass_ = pass;
  waiting_.push_back(std::move(f));
  if (waiting_.size() == kMost) start();
}

void Aside::start() {
  if (waiting_.empty()) return;
  finish();
  const Stream aside = aside_stream(pass_.device);
  aside.wait(pass_);
  StreamGuard guard(aside);
  queued_ = std::exchange(waiting_, {});
  done_.emplace(pass_.device);
  for (const auto& f : queued_) f();
  done_->record();
}

void Aside::join() {
  start();
  finish();
}

void Aside::finish() {
  if (!done_) return;
  done_->wait_on(pass_);
  done_.reset();
  queued_.clear();
}

void run_aside(Device device, std::function<void()> f) {
  if (device.is_cpu() || innermost == nullptr) f();
  else innermost->add(current_stream(device.index), std::move(f));
}

void start_aside() {
  if (innermost != nullptr) innermost->start();
}

}  // namespace glade::autograd
