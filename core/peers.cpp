#include <glade/core/peers.h>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <thread>

#include <glade/core/format.h>
#include <glade/core/interrupt.h>

namespace glade::peers {
namespace {

using Clock = std::chrono::steady_clock;

std::string failure;  // of this process, once there is one

/// All agreements of this process, and the thread that uses them.
std::vector<Agreement*> agreements;
std::thread::id user;

/// Called while the host waits.
void look_at_answers() {
  static bool is_looking = false;
  if (is_looking || !failure.empty() || std::this_thread::get_id() != user) return;
  if (const char* const error = watchdog::take_error()) {
    failure = error;  // once: what is destroyed on the way out may wait for a GPU
    check_usable();
  }
  is_looking = true;
  try {
    for (Agreement* const agreement : agreements) agreement->look();
  } catch (...) {
    is_looking = false;
    throw;
  }
  is_looking = false;
}

}  // namespace

double timeout() {
  static const double seconds = [] {
    const char* const given = std::getenv("GLADE_DISTRIBUTED_TIMEOUT");
    if (given == nullptr) return 50.0;
    char* end = nullptr;
    const double value = std::strtod(given, &end);
    if (end == given || *end != '\0' || !(value > 0))
      fail<ValueError>("GLADE_DISTRIBUTED_TIMEOUT is {}, expected a number of seconds above 0", given);
    return value;
  }();
  return seconds;
}

void check_usable() {
  if (const char* const error = watchdog::take_error()) fail<DistributedError>("{}", error);
  if (!failure.empty()) fail<DistributedError>("{}", failure);
}

void set_failed(const char* operation) {
  if (failure.empty()) failure = fmt::format("the processes cannot go on together: an earlier {} did not end", operation);
}

void wait_for(mpi::Request& request, const char* operation, watchdog::Activity activity) {
  check_usable();
  constexpr int kYields = 2000;  // then the processor is left to others
  const bool is_limited = activity != watchdog::Activity::shutdown && !watchdog::is_running();  // which says more
  const Clock::time_point begin = Clock::now();
  const watchdog::During during(activity, operation);
  try {
    for (int i = 0; !request.is_done(); ++i) {
      if (i < kYields) sched_yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(50));
      check_interrupt();
      if (is_limited && i % 64 == 0 && std::chrono::duration<double>(Clock::now() - begin).count() > timeout())
        fail<DistributedError>(
            "{}: another process did not come for {:g} s: it hangs or has ended (GLADE_DISTRIBUTED_TIMEOUT sets the seconds)",
            operation, timeout());
    }
  } catch (...) {
    set_failed(operation);
    throw;
  }
}

const char* name_of(Operation operation) {
  constexpr std::array names{"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
                             "send",       "recv",      "barrier",    "split"};
  const auto i = static_cast<std::size_t>(operation);
  return i < names.size() ? names[i] : "an unknown operation";
}

Call::Call(Operation operation, int how, const Tensors& tensors) {
  fields_[0] = static_cast<std::int64_t>(operation);
  fields_[1] = how;
  fields_[3] = static_cast<std::int64_t>(tensors.size());
  if (tensors.empty()) return;
  const Tensor& first = tensors.front();
  fields_[2] = static_cast<std::int64_t>(first.device().type);
  fields_[4] = static_cast<std::int64_t>(first.dtype());
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::int64_t value) { hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3u + 1; };
  for (const Tensor& x : tensors) {
    mix(static_cast<std::int64_t>(x.dtype()));
    for (const std::int64_t size : x.shape()) mix(size);
    mix(-1);
  }
  fields_[5] = static_cast<std::int64_t>(hash);
  fields_[6] = first.ndim();
  static_assert(kFields == 7 + kMaxDims);
  std::ranges::copy(first.shape(), fields_.begin() + 7);
}

std::string Call::str() const {
  if (fields_[3] == 0) return "no tensor";
  const Shape shape(std::span(fields_.begin() + 7, static_cast<std::size_t>(fields_[6])));
  const std::string others = fields_[3] > 1 ? fmt::format(" and {} more", fields_[3] - 1) : "";
  return fmt::format("{} {}{} on {}", static_cast<DType>(fields_[4]), shape, others, is_cuda() ? "cuda" : "cpu");
}

bool Call::matches(const Call& other) const { return std::equal(fields_.begin() + 2, fields_.end(), other.fields_.begin() + 2); }

void Call::fail_disagreement(const std::vector<Call>& calls, const std::vector<int>& ranks) {
  const auto differ = [&](std::size_t field) {
    return std::ranges::any_of(calls, [&](const Call& call) { return call.fields_[field] != calls.front().fields_[field]; });
  };
  const bool is_message =
      calls.size() == 2 && calls[0].operation() != calls[1].operation() && std::ranges::all_of(calls, [](const Call& call) {
        return call.operation() == Operation::send || call.operation() == Operation::recv;
      });
  std::string text;
  std::vector<Call> seen;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (std::ranges::find(seen, calls[i]) != seen.end() || seen.size() == 4) continue;
    seen.push_back(calls[i]);
    const std::string how = differ(1) && !differ(0) ? fmt::format(" (root or reduction {})", calls[i].fields_[1]) : "";
    text += fmt::format("{} rank {}: {} of {}{}", seen.size() == 1 ? "" : ";", ranks[i], name_of(calls[i].operation()),
                        calls[i].str(), how);
  }
  const std::string message = fmt::format("the ranks do not agree:{}", text);
  if (!differ(0) || is_message) {
    if (differ(2)) throw DeviceError(message);
    if (differ(4)) throw DTypeError(message);
    if (differ(5)) throw ShapeError(message);
  }
  throw DistributedError(message);
}

void Agreement::abandon(std::unique_ptr<Check> check) {
  [[maybe_unused]] const Check* const kept = check.release();  // MPI may still write to its memory
}

Agreement::Agreement(const mpi::Communicator& communicator) : communicator_(communicator) {
  user = std::this_thread::get_id();
  agreements.push_back(this);
  set_peer_check(look_at_answers);
}

Agreement::~Agreement() {
  std::erase(agreements, this);
  for (auto& check : waiting_) abandon(std::move(check));
}

void Agreement::add(const Call& call) {
  check_usable();
  auto check = std::make_unique<Check>();
  check->mine = call;
  check->all.resize(static_cast<std::size_t>(communicator_.size()));
  static_assert(sizeof(Call) == Call::kFields * sizeof(std::int64_t));
  check->request = communicator_.all_gather(&check->mine, check->all.data(), sizeof(Call));
  waiting_.push_back(std::move(check));
  if (call.is_cuda() && known_.contains(call)) return look();
  while (!waiting_.empty()) {
    auto next = std::move(waiting_.front());  // look() may be called while this waits
    waiting_.pop_front();
    try {
      wait_for(*next->request, name_of(call.operation()));
    } catch (...) {
      abandon(std::move(next));
      throw;
    }
    settle(*next);
  }
  known_.insert(call);
}

void Agreement::look() {
  while (!waiting_.empty() && waiting_.front()->request->is_done()) {
    const auto done = std::move(waiting_.front());
    waiting_.pop_front();
    settle(*done);
  }
}

void Agreement::settle(const Check& check) {
  if (std::ranges::all_of(check.all, [&](const Call& other) { return other == check.mine; })) return;
  std::vector<int> ranks(check.all.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  Call::fail_disagreement(check.all, ranks);
}

}  // namespace glade::peers
