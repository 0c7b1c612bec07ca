#include <glade/core/launcher.h>

#include <dlfcn.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include <glade/core/format.h>
#include <glade/core/peers.h>
#include <glade/core/processors.h>

namespace glade::launcher {
namespace {

void* open_library() {
  std::string name = "libglade_mpi.so";
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&announced_size), &here) != 0) {
    const std::filesystem::path beside = std::filesystem::path(here.dli_fname).parent_path() / name;
    if (std::filesystem::exists(beside)) name = beside;
  }
  // Global, because MPI's own plug-ins look for MPI's symbols.
  if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
  const std::string reason = dlerror();
  fail<DistributedError>(
      "this program was started as one of {} processes, for which glade must be built where MPI is: "
      "apt-get install openmpi-bin libopenmpi-dev, then build again ({})",
      announced_size(), reason);
}

void* library() {
  static void* const opened = open_library();
  return opened;
}

}  // namespace

int announced_size() {
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* const value = std::getenv(name); value != nullptr) return std::max(std::atoi(value), 1);
  return 1;
}

std::unique_ptr<mpi::Communicator> connect() {
  const auto start = reinterpret_cast<mpi::Start>(dlsym(library(), mpi::kStartName));
  std::unique_ptr<mpi::Communicator> world(start());
  if (world->size() < announced_size())
    fail<DistributedError>(
        "the launcher started {} processes, but MPI finds {}: with Slurm, srun --mpi=pmix; else use the mpirun "
        "of the MPI that glade was built with",
        announced_size(), world->size());
  return world;
}

void disconnect() { reinterpret_cast<mpi::Finish>(dlsym(library(), mpi::kFinishName))(); }

std::pair<int, int> place_among_gpus(const mpi::Communicator& host) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::uint64_t mine = std::hash<std::string>()(visible != nullptr ? visible : "all");
  std::vector<std::uint64_t> all(static_cast<std::size_t>(host.size()));
  peers::wait_for(*host.all_gather(&mine, all.data(), sizeof mine), "ProcessGroup::world");
  return {static_cast<int>(std::count(all.begin(), all.begin() + host.rank(), mine)),
          static_cast<int>(std::ranges::count(all, mine))};
}

void divide_cores(const mpi::Communicator& host) {
  cpu_set_t mine;
  if (std::getenv("OMP_NUM_THREADS") != nullptr || sched_getaffinity(0, sizeof mine, &mine) != 0) return;
  std::vector<cpu_set_t> all(static_cast<std::size_t>(host.size()));
  peers::wait_for(*host.all_gather(&mine, all.data(), sizeof mine), "ProcessGroup::world");
  const auto sharing = std::ranges::count_if(all, [&](const cpu_set_t& other) { return CPU_EQUAL(&other, &mine); });
  omp_set_num_threads(std::max(processors::usable() / static_cast<int>(sharing), 1));
}

}  // namespace glade::launcher
