#pragma once
// Running programs on several ranks.
#include <string>

#include "support/process.h"

namespace glade::testing_support {

/// As root and with more processes than cores, for every MPI; each with one thread, and without test reports of its own. Not
/// bound to cores: runs side by side would all be bound to the first ones. Open MPI takes what it takes on one host in any case,
/// without a look for networks at every start.
inline const std::string kRanksEnvironment =
    "env -u GTEST_OUTPUT OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    "OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "
    "OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none "
    "OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_pml=ob1 ";

/// Tests that start processes with mpirun; skipped where glade was built without MPI.
class RanksTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (std::string(GLADE_MPIEXEC).empty()) GTEST_SKIP() << "built without MPI (openmpi-bin libopenmpi-dev)";
  }
  /// `variables` are more of the environment: "NAME=value ...".
  static ProcessResult run_ranks(int ranks, const std::string& program,
                                 const std::string& variables = "GLADE_DISTRIBUTED_TIMEOUT=30") {
    return run_shell(kRanksEnvironment + variables + " " GLADE_MPIEXEC " -n " + std::to_string(ranks) + " " + program);
  }
};

}  // namespace glade::testing_support
