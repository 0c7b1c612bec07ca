// Processes that compute together: runs distributed_ranks, whose tests are in ranks_*.cpp, under mpirun.
#include <chrono>
#include <cstdlib>
#include <future>

#include <glade/core/process_group.h>
#include <glade/nn/distributed/data_parallel.h>
#include <glade/ops/collective/collective.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>

#include "distributed/mpirun.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

class Distributed : public RanksTest {
 protected:
  static std::string tests(const std::string& filter) { return GLADE_RANKS " --gtest_brief=1 --gtest_filter='" + filter + "'"; }
  static void expect_passes(int ranks, const std::string& filter) {
    const ProcessResult result = run_ranks(ranks, tests(filter));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("[  PASSED  ]"), std::string::npos) << result.output;
    EXPECT_EQ(result.output.find("[  PASSED  ] 0 tests"), std::string::npos) << "no test is called " << filter;
  }
};

// Each in one start. The 100 steps of training in float64 are those of data parallel on two ranks; the matrix has the others.
TEST_F(Distributed, TestsOfTwoProcesses) {
  expect_passes(2,
                "Collective*:DataParallel*:ShardedParameters*:*ShardedTraining.OfTwoRanks*:*ShardedTraining.WithGradients*:"
                "DividedCheckpoint*:SequenceParallel*:-SequenceParallelTraining.HasTheLosses*");
}
TEST_F(Distributed, TestsOfFourProcesses) {
  expect_passes(4,
                "Collective*:DataParallelTraining.WithShares*:ShardedParameters*:*ShardedTraining.BesideSequenceParallel/*:"
                "*ShardedTraining.InFloat32/*:DividedCheckpoint.GoesOn*:SequenceParallel.*:"
                "SequenceParallelTraining.BesideDataParallel*");
}

// All of them on two and four processes.
TEST_F(Distributed, MatrixOfTraining) {
  if (std::getenv("GLADE_TEST_MATRIX") == nullptr) GTEST_SKIP() << "a part of scripts/check.sh";
  for (const int ranks : {2, 4}) expect_passes(ranks, "-Cuda*:Fault*");
}

TEST_F(Distributed, OnTheGPUsOfThisHost) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "fewer than two GPUs";
  expect_passes(cuda::device_count() < 4 ? 2 : 4, "CudaRanks.*");
}

TEST_F(Distributed, GPUsWithoutNCCLSayWhatToInstall) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "fewer than two GPUs";
  const ProcessResult result =
      run_ranks(2, tests("CudaRanks.SplitGroups*"), "GLADE_DISTRIBUTED_TIMEOUT=30 GLADE_NCCL_LIBRARY=none.so");
  EXPECT_NE(result.output.find("several GPUs need NCCL, which was not found: pip install nvidia-nccl-cu"), std::string::npos)
      << result.output;
}

/// Where one rank is at fault, the others end in time with an error that names it, whether the launcher ends them (as mpirun
/// does) or not (as srun may).
class DistributedFaults : public Distributed {
 protected:
  /// Starts a test on ranks that sleep most of the time: several run at once.
  static std::future<ProcessResult> start(int ranks, const std::string& test, const std::string& variables) {
    return std::async(std::launch::async, [=] { return run_ranks(ranks, tests("Fault." + test), variables); });
  }
  /// Without a launcher that ends the others.
  static std::future<ProcessResult> start_fault(const std::string& test, const std::string& variables = "") {
    const std::string goes_on =  // in Open MPI 4, and in 5
        "OMPI_MCA_orte_enable_recovery=1 PRTE_MCA_state_base_error_non_zero_exit=0 PRTE_MCA_state_base_continuous=1 ";
    return start(kRanks, test, goes_on + variables);
  }
  static void expect_error(std::future<ProcessResult> run, const std::string& error) {
    const ProcessResult result = run.get();
    for (int rank = 0; rank < kRanks - 1; ++rank) {
      const std::size_t line = result.output.find("rank " + std::to_string(rank) + " got: ");
      ASSERT_NE(line, std::string::npos) << result.output;
      const std::string text = result.output.substr(line, result.output.find('\n', line) - line);
      EXPECT_NE(text.find("rank 2 (process "), std::string::npos) << text;
      EXPECT_NE(text.find(error), std::string::npos) << text;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << result.output;
  }
  static constexpr int kRanks = 3;
  inline static std::chrono::steady_clock::time_point begin;
  void SetUp() override {
    Distributed::SetUp();
    begin = std::chrono::steady_clock::now();
  }
};

TEST_F(DistributedFaults, AFaultyRankEndsTheOthers) {
  auto killed = start_fault("AKilledRank", "GLADE_DISTRIBUTED_TIMEOUT=3");
  auto throwing = start_fault("ARankThatThrows"), out_of_memory = start_fault("ARankWithoutMemory");
  expect_error(std::move(throwing), "ended before the others");
  expect_error(std::move(out_of_memory), "ended before the others");
  expect_error(std::move(killed), "has ended or does not run any more");
}
TEST_F(DistributedFaults, RanksThatHangEndAndBusyOnesAreWaitedFor) {
  auto waiting = start(2, "RanksThatWait*", "GLADE_DISTRIBUTED_TIMEOUT=2"),
       busy = start(2, "ABusyRank*", "GLADE_DISTRIBUTED_TIMEOUT=2");
  expect_error(start_fault("AHangingRank", "GLADE_DISTRIBUTED_TIMEOUT=2"), "did not come for 2 s: it hangs");
  const ProcessResult waited = waiting.get(), was_busy = busy.get();
  EXPECT_NE(waited.exit_code, 0);
  EXPECT_NE(waited.output.find("waited for one another for 2 s: rank 0: barrier; rank 1: barrier"), std::string::npos)
      << waited.output;
  EXPECT_EQ(was_busy.exit_code, 0) << was_busy.output;
}

// libglade.so without libglade_mpi.so beside it.
using DistributedWithoutMPI = FolderTest;
TEST_F(DistributedWithoutMPI, SaysWhatToInstall) {
  std::filesystem::copy_file(std::filesystem::canonical(GLADE_LIBRARY), "libglade.so.0");
  const ProcessResult result =
      run_shell("env -u GTEST_OUTPUT OMPI_COMM_WORLD_SIZE=2 LD_LIBRARY_PATH=. " GLADE_RANKS " --gtest_filter=Fault.World");
  EXPECT_NE(result.output.find("apt-get install openmpi-bin libopenmpi-dev"), std::string::npos) << result.output;
}

TEST_F(Distributed, ALauncherThatMPIDoesNotKnowIsAnError) {
  const ProcessResult result = run_shell(kRanksEnvironment + "SLURM_STEP_NUM_TASKS=2 " GLADE_RANKS " --gtest_filter=Fault.World");
  EXPECT_NE(result.output.find("the launcher started 2 processes, but MPI finds 1"), std::string::npos) << result.output;
}

TEST(DistributedAlone, IsAGroupOfOneWithoutMPI) {
  const ProcessGroup world = ProcessGroup::world();
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.share(5), (std::pair<std::int64_t, std::int64_t>(0, 5)));
  Tensor x = Tensor::from_vector(std::vector{1.0, 2.0, 3.0}).set_requires_grad();
  const std::vector<Tensor> results{
      all_reduce(x), all_reduce(x, ReduceOp::average), broadcast(x), all_gather(x), reduce_scatter(x), all_to_all(x)};
  for (const Tensor& y : results) EXPECT_EQ(y.to_vector<double>(), x.to_vector<double>());
  for (const Tensor& y : results) sum(y * y).backward();
  EXPECT_TRUE(all_close(x.grad(), 12.0 * x.detach()));
  EXPECT_TRUE(throws_with<ValueError>([&] { send(x, 0); }, "alone in its group"));
  world.barrier();
  EXPECT_EQ(world.split(3).size(), 1);
  EXPECT_EQ(world.device("cpu"), kCPU);
  EXPECT_EQ(run_shell("grep -c libmpi /proc/" + std::to_string(getpid()) + "/maps").output, "0\n");
}

}  // namespace
}  // namespace glade::testing_support
