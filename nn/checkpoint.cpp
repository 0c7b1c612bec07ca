#include <glade/nn/checkpoint.h>

#include <algorithm>
#include <ctime>
#include <mutex>

#include <glade/core/format.h>
#include <glade/nn/hdf5.h>

namespace glade::nn {
namespace {

constexpr std::int64_t kFormatVersion = 1;

// HDF5 may have been built without thread safety.
std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

bool same_view(const Tensor& a, const Tensor& b) {
  return a.raw_data() == b.raw_data() && a.dtype() == b.dtype() && a.shape() == b.shape() && a.strides() == b.strides();
}

void write_group(hdf5::File& file, const std::string& group, const StateDict& state, const CheckpointOptions& options) {
  file.create_group(group);
  std::map<const void*, std::pair<Tensor, std::string>> written;  // by address
  for (const auto& [name, x] : state) {
    std::string path = group + '/' + name;
    std::ranges::replace(path, '.', '/');
    const auto [first, is_new] = written.try_emplace(x.raw_data(), x, path);
    if (!is_new && x.numel() > 0 && same_view(first->second.first, x)) file.link(first->second.second, path);
    else file.write(path, x, options.compression, options.checksums);
  }
}

StateDict to_state(const std::map<std::string, Generator::State>& random) {
  StateDict state;
  for (const auto& [name, x] : random)
    state.emplace(name,
                  Tensor::from_vector<std::int64_t>({static_cast<std::int64_t>(x.seed), static_cast<std::int64_t>(x.offset)}));
  return state;
}

std::map<std::string, Generator::State> from_state(const std::string& path, const StateDict& state) {
  std::map<std::string, Generator::State> random;
  for (const auto& [name, x] : state) {
    if (x.dtype() != DType::int64 || !(x.shape() == Shape{2}))
      fail<CheckpointError>("{}: /random/{}: {} {}, expected int64 [2]", path, name, x.dtype(), x.shape());
    const auto* values = x.data<std::int64_t>();
    random[name] = {static_cast<std::uint64_t>(values[0]), static_cast<std::uint64_t>(values[1])};
  }
  return random;
}

}  // namespace

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint, const CheckpointOptions& options) {
  if (options.compression < 0 || options.compression > 9)
    fail<ValueError>("save_checkpoint: compression is {}, expected 0 to 9", options.compression);
  std::lock_guard lock(hdf5_mutex());
  const hdf5::QuietErrors quiet;
  OutputFile output(path);
  hdf5::File file = hdf5::File::create(output);
  file.write_attribute("format", "glade");
  file.write_attribute("format_version", kFormatVersion);
  file.write_attribute("step", checkpoint.step);
  file.write_attribute("config", checkpoint.config);
  file.write_attribute("created", utc_now());
  file.write_attribute("library_version", GLADE_VERSION);
  write_group(file, "/model", checkpoint.model, options);
  write_group(file, "/optimizer", checkpoint.optimizer, options);
  write_group(file, "/scheduler", checkpoint.scheduler, options);
  write_group(file, "/data", checkpoint.data, options);
  write_group(file, "/random", to_state(checkpoint.random), options);
  file.close();
  output.commit();
}

Checkpoint load_checkpoint(const std::string& path) {
  std::lock_guard lock(hdf5_mutex());
  const hdf5::QuietErrors quiet;
  const hdf5::File file = hdf5::File::open(path);
  if (!file.has_attribute("format") || file.string_attribute("format") != "glade")
    fail<CheckpointError>("{}: not a glade checkpoint", path);
  if (const std::int64_t version = file.integer_attribute("format_version"); version != kFormatVersion)
    fail<CheckpointError>("{}: format version {}, this library reads version {}", path, version, kFormatVersion);
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.step = file.integer_attribute("step");
  checkpoint.config = file.string_attribute("config");
  checkpoint.created = file.string_attribute("created");
  checkpoint.library_version = file.string_attribute("library_version");
  checkpoint.model = file.read_group("/model");
  checkpoint.optimizer = file.read_group("/optimizer");
  checkpoint.scheduler = file.read_group("/scheduler");
  checkpoint.data = file.read_group("/data");
  checkpoint.random = from_state(path, file.read_group("/random"));
  return checkpoint;
}

void restore(const Checkpoint& checkpoint, Module& model, optim::Optimizer* optimizer, optim::LRScheduler* scheduler) {
  try {
    check_state("/model", model.named_state(), checkpoint.model);
    if (optimizer != nullptr) check_state("/optimizer", optimizer->named_state(), checkpoint.optimizer);
    if (scheduler != nullptr) check_state("/scheduler", scheduler->named_state(), checkpoint.scheduler);
  } catch (const ValueError& error) {
    fail<CheckpointError>("{}: {}", checkpoint.path, error.what());
  }
  model.load_state_dict(checkpoint.model);
  if (optimizer != nullptr) optimizer->load_state_dict(checkpoint.optimizer);
  if (scheduler != nullptr) scheduler->load_state_dict(checkpoint.scheduler);
}

}  // namespace glade::nn
