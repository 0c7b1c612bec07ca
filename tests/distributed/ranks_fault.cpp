// Run by distributed_test: what happens where processes do not find one another, or do not come.
#include <unistd.h>

#include <glade/core/process_group.h>

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

TEST(Fault, AHangingRank) {
  const ProcessGroup world = ProcessGroup::world();
  if (world.rank() == 0) {
    sleep(60);  // mpirun ends it
    return;
  }
  try {
    world.all_reduce({zeros({2})}).wait();
  } catch (const DistributedError& error) {
    std::printf("%s\n", error.what());
  }
  std::fflush(stdout);
  _exit(1);
}

}  // namespace
}  // namespace glade
