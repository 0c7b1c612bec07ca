#pragma once
// How a process finds those that were started with it. For .cpp files only.
#include <memory>
#include <utility>
#include <vector>

#include <glade/core/mpi/communicator.h>

namespace glade::launcher {

/// How many processes a launcher says that it started with this one; 1 where there is none. Open MPI, MPICH and Slurm say so in
/// the environment. (SLURM_PROCID and SLURM_NTASKS say less: a batch script, which srun did not start, has them too.)
int announced_size();

/// Connects this process with the others, by libglade_mpi.so. DistributedError where that is missing, or where MPI finds fewer
/// processes than were announced.
std::unique_ptr<mpi::Communicator> connect();
/// Ends the connection; waits for all.
void disconnect();

/// The number of this process among those of `host` that see the same GPUs, and how many these are: launchers may show each
/// process GPUs of its own (CUDA_VISIBLE_DEVICES).
std::pair<int, int> place_among_gpus(const mpi::Communicator& host);

/// Where OMP_NUM_THREADS is not set: the threads of this process are the cores that it may use, divided by the processes of
/// `host` that may use the same ones.
void divide_cores(const mpi::Communicator& host);

}  // namespace glade::launcher
