#include <glade/autograd/side_stream.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <glade/autograd/grad_mode.h>
#include <glade/core/error.h>

namespace glade::autograd {

namespace {

constexpr std::size_t kMost = 16;  // pieces of work that wait: the tensors that they use are kept so long

/// A thread's side streams, one for each device. Two threads must not share one, because one of them may capture it. A stream is
/// never destroyed: a thread that begins later takes it over.
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

Stream side_stream(int device) {
  thread_local Streams streams;
  return streams.of(device);
}

/// While one lives, the calling thread queues its work on `stream`; `done` marks the end of that work, also after an exception.
class Queue {
 public:
  Queue(Stream stream, cuda::Event& done) : guard_(stream), done_(done) {}
  ~Queue() {
    try {
      done_.record();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): an earlier failure, which ends the pass
    }
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

 private:
  StreamGuard guard_;
  cuda::Event& done_;
};

}  // namespace

SideStream::~SideStream() {
  waiting_.clear();  // nothing reads it
  try {
    finish();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): an earlier failure, which ends the pass
  }
}

void SideStream::defer(Stream pass, const Tensor& out, std::function<void(const Tensor&)> f) {
  if (pass.device != pass_.device || pass.handle != pass_.handle) join();
  pass_ = pass;
  waiting_.push_back({out, std::move(f)});
  if (waiting_.size() == kMost) start();
}

void SideStream::start() {
  if (waiting_.empty()) return;
  finish();
  const Stream side = side_stream(pass_.device);
  side.wait(pass_);
  queued_ = std::exchange(waiting_, {});
  started_ += queued_.size();
  const Queue queue(side, done_.emplace(pass_.device));
  const NoGradGuard no_grad;
  for (auto& [out, f] : queued_) f(std::exchange(out, {}));
}

void SideStream::run_after(const std::function<void()>& f) {
  const Stream side = side_stream(pass_.device);
  side.wait(pass_);
  const Queue queue(side, *done_);
  f();
}

void SideStream::join() {
  start();
  finish();
}

void SideStream::finish() {
  if (!done_) return;
  done_->wait_on(pass_);
  done_.reset();
  queued_.clear();
  joined_ = started_;
}

}  // namespace glade::autograd
