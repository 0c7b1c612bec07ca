#include <glade/nn/checkpoint.h>

#include <algorithm>
#include <ctime>
#include <mutex>
#include <ranges>
#include <set>

#include <nlohmann/json.hpp>

#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/nn/hdf5/writer.h>
#include <glade/nn/models/causal_lm.h>

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

/// The name of a tensor's dataset.
std::string dataset_name(const hdf5::Writer& file, const std::string& group, const std::string& name) {
  const auto is_bad = [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' ' || c == 127; };
  if (name.empty() || name.front() == '.' || name.back() == '.' || name.find("..") != std::string::npos ||
      std::ranges::any_of(name, is_bad))
    fail<CheckpointError>("{}: {}: '{}' cannot be stored under this name", file.path(), group, name);
  std::string path = group + '/' + name;
  std::ranges::replace(path, '.', '/');
  return path;
}

/// A dot in a name makes a group, which can be no tensor besides.
void check_groups(const hdf5::Writer& file, const std::string& group, const std::set<std::string>& names) {
  for (const std::string& name : names)
    for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      if (names.contains(name.substr(0, dot)))
        fail<CheckpointError>("{}: {}: '{}' cannot be stored beside '{}', of which it is the group", file.path(), group,
                              name.substr(0, dot), name);
}

using Values = std::function<Tensor(const Tensor& x)>;

void write_group(hdf5::Writer& file, const std::string& group, const StateDict& state, const CheckpointOptions& options,
                 const Values& values = {}) {
  const auto names = std::views::keys(state);
  check_groups(file, group, {names.begin(), names.end()});
  file.create_group(group);
  std::map<const void*, std::pair<Tensor, std::string>> written;  // by address
  for (const auto& [name, x] : state) {
    const std::string path = dataset_name(file, group, name);
    const auto [first, is_new] = written.try_emplace(x.raw_data(), x, path);
    if (!is_new && x.numel() > 0 && is_same_view(first->second.first, x)) file.link(first->second.second, path);
    else file.write(path, values ? values(x) : x, options.compression, options.checksums);
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

/// Errors of check_state, as one of the checkpoint's file.
void check_part(const Checkpoint& checkpoint, const std::string& group, const NamedTensors& targets, const TensorInfos& state) {
  try {
    check_state('/' + group, targets, state);
  } catch (const ValueError& error) {
    fail<CheckpointError>("{}: {}", checkpoint.path, error.what());
  }
}

/// A language model of other settings may have weights of the same shapes.
void check_config(const Checkpoint& checkpoint, const Module& model) {
  const auto* language_model = dynamic_cast<const models::CausalLM*>(&model);
  if (language_model == nullptr || checkpoint.config.empty()) return;
  const auto given = parse_json_object<CheckpointError>(checkpoint.path + ": attribute config", checkpoint.config);
  const auto expected = parse_json(language_model->config_json());
  std::vector<std::string> differences;
  for (const auto& [name, value] : expected.items())
    if (const auto found = given.find(name); name != "dtype" && found != given.end() && *found != value)
      differences.push_back(fmt::format("{} is {}, expected {}", name, dump_json(*found), dump_json(value)));
  if (!differences.empty()) fail<CheckpointError>("{}: holds another model: {}", checkpoint.path, fmt::join(differences, ", "));
}

void write_checkpoint(const std::string& path, const Checkpoint& checkpoint, const CheckpointOptions& options,
                      const std::function<void(hdf5::Writer&)>& write_model, const Values& values = {}) {
  if (options.compression < 0 || options.compression > 9)
    fail<ValueError>("save: compression is {}, expected 0 to 9", options.compression);
  // The limit of HDF5 for what is stored with the object.
  if (checkpoint.config.size() > 60000) fail<ValueError>("save: config has {} bytes, more than 60000", checkpoint.config.size());
  // At which both the attribute and the parser would end.
  if (checkpoint.config.find('\0') != std::string::npos) fail<ValueError>("save: config has a zero byte");
  if (!checkpoint.config.empty()) parse_json_object<ValueError>("save: config", checkpoint.config);
  std::lock_guard lock(hdf5_mutex());
  const hdf5::QuietErrors quiet;
  OutputFile output(path);
  hdf5::Writer file(output);
  file.write_attribute("format", "glade");
  file.write_attribute("format_version", kFormatVersion);
  file.write_attribute("step", checkpoint.step);
  file.write_attribute("config", checkpoint.config);
  file.write_attribute("created", utc_now());
  file.write_attribute("library_version", GLADE_VERSION);
  write_model(file);
  write_group(file, "/optimizer", checkpoint.optimizer, options, values);
  write_group(file, "/scheduler", checkpoint.scheduler, options);
  write_group(file, "/data", checkpoint.data, options);
  write_group(file, "/random", to_state(checkpoint.random), options);
  file.close();
  output.commit();
}

}  // namespace

void save(const Checkpoint& checkpoint, const std::string& path, const CheckpointOptions& options) {
  write_checkpoint(path, checkpoint, options,
                   [&](hdf5::Writer& file) { write_group(file, "/model", checkpoint.model, options); });
}

void save(const Checkpoint& checkpoint, const std::string& path, const std::vector<std::string>& model,
          const std::function<Tensor(const std::string& name)>& read, const CheckpointOptions& options) {
  write_checkpoint(path, checkpoint, options, [&](hdf5::Writer& file) {
    check_groups(file, "/model", {model.begin(), model.end()});
    file.create_group("/model");
    for (const std::string& name : model)
      file.write(dataset_name(file, "/model", name), read(name), options.compression, options.checksums);
  });
}

void save(const Checkpoint& checkpoint, const std::string& path, const CheckpointOptions& options,
          const std::function<Tensor(const Tensor& x)>& values) {
  const auto write_model = [&](hdf5::Writer& file) { write_group(file, "/model", checkpoint.model, options, values); };
  write_checkpoint(path, checkpoint, options, write_model, values);
}

CheckpointFile::CheckpointFile(const std::string& path) : file_(path) {
  if (!is_checkpoint(file_)) fail<CheckpointError>("{}: not a glade checkpoint", path);
  const auto require = [&](auto attribute, const char* name) {
    if (!attribute) fail<CheckpointError>("{}: attribute {} is missing", path, name);
    return *attribute;
  };
  const auto integer = [&](const char* name) { return require(file_.integer_attribute(name), name); };
  const auto string = [&](const char* name) { return require(file_.string_attribute(name), name); };
  if (const std::int64_t version = integer("format_version"); version != kFormatVersion)
    fail<CheckpointError>("{}: format version {}, this library reads version {}", path, version, kFormatVersion);
  header_.path = path;
  header_.step = integer("step");
  header_.config = string("config");
  header_.created = string("created");
  header_.library_version = string("library_version");
  header_.data = file_.load("data");
  header_.random = from_state(path, file_.load("random"));
}

void CheckpointFile::verify() const {
  std::vector<std::string> names;
  for (const HDF5Entry& entry : file_.entries())
    if (entry.first_name == entry.name || !entry.problem.empty()) names.push_back(entry.name);
  file_.verify(names);
}

TensorInfos CheckpointFile::model_infos() const {
  TensorInfos infos;
  for (const auto& [name, entry] : file_.select("model")) infos.emplace(name, TensorInfo{entry->dtype, entry->shape});
  return infos;
}

void CheckpointFile::restore(Module& model, optim::Optimizer* optimizer, optim::LRScheduler* scheduler) const {
  struct Part {
    const char* group;
    NamedTensors targets;
  };
  std::vector<Part> parts{{"model", model.named_state()}};
  if (optimizer != nullptr) parts.push_back({"optimizer", optimizer->named_state()});
  if (scheduler != nullptr) parts.push_back({"scheduler", scheduler->named_state()});

  std::set<std::string> first_names;
  for (const Part& part : parts) {
    TensorInfos info;
    for (const auto& [name, entry] : file_.select(part.group)) {
      info.emplace(name, TensorInfo{entry->dtype, entry->shape});
      first_names.insert(entry->first_name);
    }
    check_part(header_, part.group, part.targets, info);
  }
  check_config(header_, model);
  file_.verify(std::vector(first_names.begin(), first_names.end()));

  if (scheduler != nullptr) {  // which sets the learning rates, too
    scheduler->load_state_dict(file_.load("scheduler"));
    parts.pop_back();
  }
  NamedTensors targets;  // by the names of their entries
  for (const Part& part : parts) {
    std::map<std::string, const HDF5Entry*> entries;
    for (const auto& [name, entry] : file_.select(part.group)) entries.emplace(name, entry);
    for (const auto& [name, target] : part.targets)
      if (const auto found = entries.find(name); found != entries.end()) targets.emplace_back(found->second->name, target);
  }
  file_.read_into(targets);
}

Checkpoint CheckpointFile::load() const {
  Checkpoint checkpoint = header_;
  checkpoint.model = file_.load("model");
  checkpoint.optimizer = file_.load("optimizer");
  checkpoint.scheduler = file_.load("scheduler");
  return checkpoint;
}

bool is_checkpoint(const HDF5File& file) {
  try {
    return file.string_attribute("format") == "glade";
  } catch (const CheckpointError&) {  // it is no string
    return false;
  }
}

Checkpoint load(const std::string& path) { return CheckpointFile(path).load(); }

void restore(const Checkpoint& checkpoint, Module& model, optim::Optimizer* optimizer, optim::LRScheduler* scheduler) {
  check_part(checkpoint, "model", model.named_state(), infos_of(checkpoint.model));
  if (optimizer != nullptr) check_part(checkpoint, "optimizer", optimizer->named_state(), infos_of(checkpoint.optimizer));
  if (scheduler != nullptr) check_part(checkpoint, "scheduler", scheduler->named_state(), infos_of(checkpoint.scheduler));
  check_config(checkpoint, model);
  model.load_state_dict(checkpoint.model);
  if (optimizer != nullptr) optimizer->load_state_dict(checkpoint.optimizer);
  if (scheduler != nullptr) scheduler->load_state_dict(checkpoint.scheduler);
}

}  // namespace glade::nn
