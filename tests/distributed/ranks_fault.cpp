// Run by distributed_test: what happens where processes do not find one another, or one is at fault that others wait for.
#include <unistd.h>

#include <csignal>

#include <glade/core/process_group.h>
#include <glade/core/watchdog.h>

#include "support/testing.h"

namespace glade {
namespace {

TEST(Fault, World) {
  try {
    ProcessGroup::world();
  } catch (const DistributedError& error) {
    std::printf("%s\n", error.what());
  }
  std::fflush(stdout);
  _exit(0);
}

/// What the last rank does in place of the second all_reduce; the others wait for it there, say what they get, and end.
template <class F>
void expect_end_of_others(const F& fault) {
  const ProcessGroup world = ProcessGroup::world();
  world.all_reduce({zeros({2})}).wait();
  try {
    if (world.rank() == world.size() - 1) fault();
    else world.all_reduce({zeros({2})}).wait();
  } catch (const std::exception& error) {
    std::printf("rank %d got: %s\n", world.rank(), error.what());
    std::fflush(stdout);
    if (world.rank() < world.size() - 1) {
      EXPECT_THROW(world.barrier(), DistributedError) << "and nothing works any more";
    }
  }
  std::exit(1);  // as programs do, without GoogleTest
}

TEST(Fault, AKilledRank) {
  expect_end_of_others([] { raise(SIGKILL); });
}
TEST(Fault, ARankThatThrows) {
  expect_end_of_others([] { throw std::runtime_error("an error of one rank"); });
}
TEST(Fault, ARankWithoutMemory) {
  expect_end_of_others([] { zeros({std::int64_t{1} << 46}); });
}
TEST(Fault, AHangingRank) {
  expect_end_of_others([] { sleep(600); });
}

TEST(Fault, RanksThatWaitForOneAnother) {
  const ProcessGroup world = ProcessGroup::world(), same = world.split(0);
  (world.rank() == 0 ? world : same).barrier();
}

// Longer than the timeout.
TEST(Fault, ABusyRankIsWaitedFor) {
  const ProcessGroup world = ProcessGroup::world();
  if (world.rank() == 0) {
    const watchdog::During during(watchdog::Activity::busy, "a test");
    sleep(3);
  }
  world.barrier();
  ProcessGroup::shutdown();
}

}  // namespace
}  // namespace glade
