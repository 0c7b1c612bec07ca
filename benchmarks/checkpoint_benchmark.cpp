// Checkpoints of a GLA model of 340 million parameters in float32 (1.4 GB), beside the plain file operations: writing and
// syncing, and reading into the same memory. Both are timed in turns, because disks change their mind; `ratio` is the plain
// operation's best time over glade's. `extra_MB` is what loading took at its peak beside the model itself.
//
// Files go into the folder $GLADE_BENCHMARK_FOLDER, or the present one.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <glade/glade.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace glade;

std::string in_folder(const char* name) {
  const char* folder = std::getenv("GLADE_BENCHMARK_FOLDER");
  return (std::filesystem::path(folder != nullptr ? folder : ".") / name).string();
}

nn::models::GLAForCausalLM& model() {
  static nn::models::GLAForCausalLM instance([] {
    nn::models::GLAConfig config;
    config.vocab_size = 32000;
    config.hidden_size = 1024;
    config.num_hidden_layers = 24;
    config.num_heads = 4;
    return config;
  }());
  return instance;
}

nn::Checkpoint checkpoint() {
  nn::Checkpoint result;
  result.config = model().config_json();
  result.model = model().state_dict();
  return result;
}

class File {
 public:
  File(const std::string& path, int flags) : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    check(descriptor_ >= 0);
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(const char* data, std::size_t size) {
    for (ssize_t n = 0; size > 0; data += n, size -= static_cast<std::size_t>(n))
      check((n = ::write(descriptor_, data, size)) > 0);
  }
  void read(char* data, std::size_t size) {
    for (ssize_t n = 0; size > 0; data += n, size -= static_cast<std::size_t>(n))
      check((n = ::read(descriptor_, data, size)) > 0);
  }
  void sync() { check(::fsync(descriptor_) == 0); }
  /// The next reader must wait for the disk.
  void forget() { check(::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED) == 0); }

 private:
  static void check(bool good) {
    if (!good) throw std::runtime_error("a plain file operation failed");
  }
  int descriptor_;
};

/// f(memory, bytes) for the values of every tensor.
template <class F>
std::size_t for_all_values(const F& f) {
  std::size_t total = 0;
  for (const auto& [name, x] : model().state_dict()) {
    const std::size_t bytes = static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype());
    f(static_cast<char*>(x.raw_data()), bytes);
    total += bytes;
  }
  return total;
}

std::size_t write_plainly(const std::string& path) {
  std::filesystem::remove(path);
  File file(path, O_WRONLY | O_CREAT);
  const std::size_t total = for_all_values([&](const char* data, std::size_t size) { file.write(data, size); });
  file.sync();
  return total;
}

std::size_t read_plainly(const std::string& path) {
  File file(path, O_RDONLY);
  return for_all_values([&](char* data, std::size_t size) { file.read(data, size); });
}

template <class F>
double seconds(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A line of /proc/self/status, in MB.
double memory(const char* what) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (double kilobytes = 0; word == what && status >> kilobytes) return kilobytes * 1024e-6;
  return 0;
}

/// Forgets the peak of the resident memory so far.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

/// Runs plain(), which returns the bytes, and glade() in turns, each after prepare().
template <class Prepare, class Plain, class Glade>
void compare(benchmark::State& state, const Prepare& prepare, const Plain& plain, const Glade& glade) {
  double best_plain = std::numeric_limits<double>::infinity(), best = best_plain, extra = 0;
  std::size_t bytes = 0;
  for (auto _ : state) {
    prepare();
    best_plain = std::min(best_plain, seconds([&] { bytes = plain(); }));
    prepare();
    reset_peak();
    const double before = memory("VmRSS:"), time = seconds(glade);
    extra = std::max(extra, memory("VmHWM:") - before);
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["plain_GB/s"] = static_cast<double>(bytes) / best_plain * 1e-9;
  state.counters["glade_GB/s"] = static_cast<double>(bytes) / best * 1e-9;
  state.counters["ratio"] = best_plain / best;
  state.counters["extra_MB"] = extra;
}

void save(benchmark::State& state) {
  const nn::Checkpoint saved = checkpoint();
  compare(
      state, [] {}, [] { return write_plainly(in_folder("plain.bin")); },
      [&] {
        std::filesystem::remove(in_folder("model.h5"));  // as plain.bin is
        nn::save(saved, in_folder("model.h5"));
      });
}

/// After save, whose files it reads.
void restore(benchmark::State& state, bool cached) {
  compare(
      state,
      [&] {
        if (!cached)
          for (const char* name : {"plain.bin", "model.h5"}) File(in_folder(name), O_RDONLY).forget();
      },
      [] { return read_plainly(in_folder("plain.bin")); }, [] { nn::CheckpointFile(in_folder("model.h5")).restore(model()); });
}

/// After save: everything, to new tensors.
void load(benchmark::State& state) {
  compare(
      state, [] {},
      [] {
        File file(in_folder("plain.bin"), O_RDONLY);
        std::vector<Tensor> loaded;
        return for_all_values([&](const char*, std::size_t size) {
          loaded.push_back(empty({static_cast<std::int64_t>(size)}, {DType::uint8, kCPU}));
          file.read(static_cast<char*>(loaded.back().raw_data()), size);
        });
      },
      [] { nn::load(in_folder("model.h5")); });
}

/// What saving in the background keeps the training loop from, beside copying the same tensors.
void save_in_background(benchmark::State& state) {
  const nn::Checkpoint saved = checkpoint();
  nn::CheckpointSaver saver(in_folder("model.h5"));
  compare(
      state, [&] { saver.wait(); },
      [] {
        nn::StateDict copies;
        std::size_t bytes = 0;
        for (const auto& [name, x] : model().state_dict()) {
          copies.emplace(name, clone(x));
          bytes += static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype());
        }
        return bytes;
      },
      [&] { saver.save(saved); });
  saver.wait();
}

const bool registered = [] {
  const auto add = [](const char* name, auto f) {
    benchmark::RegisterBenchmark(name, f)->UseManualTime()->Iterations(5)->Unit(benchmark::kMillisecond);
  };
  add("checkpoint/save", save);
  add("checkpoint/restore", [](benchmark::State& state) { restore(state, false); });
  add("checkpoint/restore_cached", [](benchmark::State& state) { restore(state, true); });
  add("checkpoint/load_cached", load);
  add("checkpoint/save_in_background", save_in_background);
  return true;
}();

}  // namespace
