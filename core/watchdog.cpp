#include <glade/core/watchdog.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <glade/core/format.h>

namespace glade::watchdog {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{50};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

template <std::size_t N>
void copy_text(char (&to)[N], const char* from) {
  std::snprintf(to, N, "%s", from);
}

/// Who a rank is.
struct Name {
  char host[64] = "";
  int process = 0;
};

enum class State : int { alive, stopping, ended };

/// What a rank says to rank 0.
struct Report {
  State state = State::alive;
  Activity activity = Activity::other;
  double seconds = 0;           // since the activity began
  std::int64_t activities = 0;  // so far
  char what[40] = "";
};

/// What rank 0 says to a rank.
struct Answer {
  State state = State::alive;
  char error[508] = "";  // or none
};

/// What the thread that computes does: it writes, the watchdog reads. A report may mix two activities, each of which began then.
struct Current {
  std::atomic<Activity> activity{Activity::other};
  std::atomic<const char*> what{""};
  std::atomic<Clock::time_point> since{Clock::time_point()};
  std::atomic<std::int64_t> activities{0};
} current;

std::thread::id owner;  // the thread that computes
std::atomic<const char*> found{nullptr};
std::atomic<bool> is_taken{false};

class Watchdog {
 public:
  Watchdog(std::unique_ptr<mpi::Communicator> communicator, double timeout)
      : communicator_(std::move(communicator)),
        rank_(communicator_->rank()),
        timeout_(timeout),
        silence_(timeout / 3),
        grace_(std::min(timeout, 5.0)),
        names_(static_cast<std::size_t>(communicator_->size())),
        peers_(rank_ == 0 ? names_.size() : 0) {
    Name mine;
    mine.process = getpid();
    gethostname(mine.host, sizeof mine.host - 1);
    const auto request = communicator_->all_gather(&mine, names_.data(), sizeof mine);
    while (!request->is_done()) std::this_thread::sleep_for(milliseconds(1));
    owner = std::this_thread::get_id();
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    set(is_stopping_);
    thread_.join();
  }

  /// Says that this process ends. In exit().
  void leave() {
    if (getpid() != names_[static_cast<std::size_t>(rank_)].process || found != nullptr) return;  // a child process
    set(is_leaving_);
    for (const auto begin = Clock::now(); !has_left_ && found == nullptr && seconds_since(begin) < 1;)
      std::this_thread::sleep_for(milliseconds(5));
  }

 private:
  /// What rank 0 knows of a rank.
  struct Peer {
    Report report, next;
    Answer answer;
    std::unique_ptr<mpi::Request> received, sent;
    Clock::time_point heard = Clock::now(), changed = heard;  // the last report, and another number of activities
  };

  void run() {
    try {
      if (rank_ == 0) watch();
      else report();
    } catch (const std::exception& e) {
      fail_with(e.what());
    }
    if (found != nullptr) end_process();
  }

  /// Sets one of those that pause() looks at.
  void set(std::atomic<bool>& flag) {
    {
      const std::lock_guard lock(mutex_);
      flag = true;
    }
    changed_.notify_all();
  }
  /// Between two looks at what the others say: short at the end, which all wait for.
  void pause() {
    std::unique_lock lock(mutex_);
    if (is_stopping_ || is_leaving_) changed_.wait_for(lock, milliseconds(1), [] { return false; });
    else changed_.wait_for(lock, kPoll, [this] { return is_stopping_ || is_leaving_; });
  }

  std::string name(int rank) const {
    const Name& known = names_[static_cast<std::size_t>(rank)];
    return fmt::format("rank {} (process {} on {})", rank, known.process, known.host);
  }
  std::string silence_of(int rank) const {
    return fmt::format("{} has ended or does not run any more: nothing was heard of it for {:.3g} s", name(rank), silence_);
  }
  std::string end_of(int rank) const { return fmt::format("{} ended before the others", name(rank)); }

  bool is_time_to_send() {
    const double interval = std::min(1.0, silence_ / 10);
    if (seconds_since(sent_) < interval && !is_stopping_ && !is_leaving_) return false;
    sent_ = Clock::now();
    return true;
  }

  /// Whether this process itself did not run meanwhile: that it heard nothing is no fault of the others then.
  bool was_stopped() { return seconds_since(std::exchange(polled_, Clock::now())) > silence_ / 2; }

  static Report own_report() {
    Report report;
    report.activity = current.activity;
    report.activities = current.activities;
    report.seconds = seconds_since(current.since);
    copy_text(report.what, current.what);
    return report;
  }

  // ---- rank 0 ----

  void watch() {
    for (int rank = 1; rank < communicator_->size(); ++rank) receive_from(rank);
    for (;; pause()) {
      Report& own = peers_[0].report;
      const std::int64_t before = own.activities;
      own = own_report();
      peers_[0].heard = Clock::now();
      if (own.activities != before) peers_[0].changed = Clock::now();
      if (was_stopped())
        for (Peer& other : peers_) other.heard = Clock::now();
      hear();
      if (is_leaving_) return tell_all(State::ended, end_of(0)), set_left();
      if (const std::string fault = find_fault(); !fault.empty()) return tell_all(State::ended, fault), fail_with(fault);
      const bool all_stop =
          std::all_of(peers_.begin() + 1, peers_.end(), [](const Peer& peer) { return peer.report.state == State::stopping; });
      if (is_stopping_ && all_stop) return tell_all(State::stopping, "");
      if (is_time_to_send())
        for (int rank = 1; rank < communicator_->size(); ++rank) send_to(rank);
    }
  }

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void receive_from(int rank) { peer(rank).received = communicator_->receive(&peer(rank).next, sizeof(Report), rank); }
  /// Where the message before has gone.
  bool send_to(int rank) {
    Peer& to = peer(rank);
    if (to.sent && !to.sent->is_done()) return false;
    to.answer = answer_;
    to.sent = communicator_->send(&to.answer, sizeof(Answer), rank);
    return true;
  }

  void hear() {
    for (int rank = 1; rank < communicator_->size(); ++rank) {
      Peer& from = peer(rank);
      while (from.report.state == State::alive && from.received->is_done()) {
        if (from.next.activities != from.report.activities) from.changed = Clock::now();
        from.report = from.next;
        from.heard = Clock::now();
        if (from.report.state == State::alive) receive_from(rank);
      }
    }
  }

  /// The last message to all; those whose message before does not go are gone.
  void tell_all(State state, const std::string& error) {
    answer_.state = state;
    copy_text(answer_.error, error.c_str());
    std::vector<bool> told(peers_.size(), false);
    told[0] = true;
    for (const auto begin = Clock::now(); seconds_since(begin) < 1;) {
      for (int rank = 1; rank < communicator_->size(); ++rank)
        if (const auto i = static_cast<std::size_t>(rank); !told[i]) told[i] = send_to(rank);
      const bool all_gone = std::ranges::all_of(told, [](bool x) { return x; }) &&
                            std::all_of(peers_.begin() + 1, peers_.end(), [](Peer& to) { return to.sent->is_done(); });
      if (all_gone) return;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  /// Empty while all is well.
  std::string find_fault() {
    for (int rank = 0; rank < communicator_->size(); ++rank) {
      const Peer& of = peer(rank);
      if (of.report.state == State::ended) return end_of(rank);
      if (of.report.state == State::alive && seconds_since(of.heard) > silence_) return silence_of(rank);
      if (of.report.activity == Activity::busy) busy_ = Clock::now();
    }
    for (const Peer& of : peers_) {
      const bool waits = of.report.activity == Activity::peers || of.report.activity == Activity::device;
      if (waits && std::min(of.report.seconds, seconds_since(busy_)) > timeout_)
        if (std::string fault = fault_of_wait(of.report); !fault.empty()) return fault;
    }
    return {};
  }

  /// One has waited for too long: because of a rank that does not wait itself, or else because all wait for one another. A GPU
  /// may take as long as it likes by itself: others are at fault there only if they have not been waiting for anything meanwhile.
  std::string fault_of_wait(const Report& waiting) const {
    const bool is_device = waiting.activity == Activity::device;
    std::string activities;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Report& other = peers_[i].report;
      if (other.activity == Activity::other && (!is_device || seconds_since(peers_[i].changed) > timeout_))
        return fmt::format("{}: {} did not come for {:g} s: it hangs (GLADE_DISTRIBUTED_TIMEOUT sets the seconds)", waiting.what,
                           name(static_cast<int>(i)), timeout_);
      if (i < 4) activities += fmt::format("{} rank {}: {}", i == 0 ? "" : ";", i, other.what);
    }
    if (is_device) return {};
    return fmt::format("the ranks waited for one another for {:g} s:{} (GLADE_DISTRIBUTED_TIMEOUT sets the seconds)", timeout_,
                       activities);
  }

  // ---- the others ----

  void report() {
    Answer answer;
    Report mine;
    auto received = communicator_->receive(&answer, sizeof answer, 0);
    std::unique_ptr<mpi::Request> sent;
    for (auto heard = Clock::now();; pause()) {
      if (was_stopped()) heard = Clock::now();
      if (received->is_done()) {
        heard = Clock::now();
        if (answer.state == State::ended) return fail_with(answer.error);
        if (answer.state == State::stopping) return;  // after this rank's own last message
        received = communicator_->receive(&answer, sizeof answer, 0);
      }
      const bool has_sent = !sent || sent->is_done();
      if (mine.state == State::ended && has_sent) return set_left();
      if (seconds_since(heard) > silence_) return fail_with(silence_of(0));
      if (mine.state != State::alive || !has_sent || !is_time_to_send()) continue;
      mine = own_report();
      if (is_leaving_) mine.state = State::ended;
      else if (is_stopping_) mine.state = State::stopping;
      sent = communicator_->send(&mine, sizeof mine, 0);
    }
  }

  void set_left() { has_left_ = true; }

  static void fail_with(const std::string& error) {
    found = strdup(error.c_str());  // for as long as the process lives
  }

  [[noreturn]] void end_process() const {
    std::this_thread::sleep_for(std::chrono::duration<double>(grace_));
    if (!is_taken) {
      const std::string line = fmt::format("glade: {}\n", found.load());
      [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
    }
    _exit(1);
  }

  const std::unique_ptr<mpi::Communicator> communicator_;
  const int rank_;
  const double timeout_, silence_, grace_;  // grace: from the error to the end
  std::vector<Name> names_;
  std::vector<Peer> peers_;                // on rank 0
  Answer answer_;                          // of rank 0 to all
  Clock::time_point busy_ = Clock::now();  // when a rank was last seen to be busy
  Clock::time_point sent_{}, polled_ = Clock::now();
  std::atomic<bool> is_stopping_{false}, is_leaving_{false}, has_left_{false};
  std::mutex mutex_;  // of changes of the first two
  std::condition_variable changed_;
  std::thread thread_;
};

std::atomic<Watchdog*> watchdog{nullptr};  // without stop() never destroyed: its thread may run until the process has ended

}  // namespace

void start(std::unique_ptr<mpi::Communicator> communicator, double timeout) {
  if (!communicator->allows_threads()) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // signals are for the program's own threads
  watchdog = new Watchdog(std::move(communicator), timeout);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::atexit([] {
    if (Watchdog* const running = watchdog) running->leave();
  });
}

bool is_running() { return watchdog != nullptr; }

void stop() {
  if (const std::unique_ptr<Watchdog> running{watchdog.exchange(nullptr)}) running->stop();
}

const char* error() { return found; }

const char* take_error() {
  const char* const text = found;
  if (text != nullptr) is_taken = true;
  return text;
}

During::During(Activity activity, const char* what) : is_noted_(is_running() && std::this_thread::get_id() == owner) {
  if (!is_noted_) return;
  activity_ = current.activity;
  what_ = current.what;
  since_ = current.since;
  current.since = Clock::now();
  current.what = what;
  current.activity = activity;
  ++current.activities;
}

During::~During() {
  if (!is_noted_) return;
  current.activity = activity_;
  current.what = what_;
  current.since = since_;
}

}  // namespace glade::watchdog
