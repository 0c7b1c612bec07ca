#include <glade/nn/hdf5_file.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <glade/core/format.h>
#include <glade/core/instruction_set.h>
#include <glade/nn/hdf5/dataset.h>

namespace glade::nn {

using hdf5::Dataset;
using hdf5::Messages;

struct HDF5File::Content {
  explicit Content(const std::string& file_path) : path(file_path), source(file_path) {}

  std::string path;
  mutable hdf5::Source source;  // which counts the metadata that were read
  Messages root;
  std::vector<HDF5Entry> entries;
  std::map<std::string, std::shared_ptr<const Dataset>> datasets;
  std::unordered_map<std::uint64_t, std::string> names;  ///< the first name of each dataset, by address
  std::uint64_t stored = 0;

  void walk(std::uint64_t root_address);
  void add_dataset(HDF5Entry& entry, std::uint64_t address, const Messages& object);
  const HDF5Entry& find(const std::string& name) const;
  hdf5::ReadJob job(const HDF5Entry& entry, void* out) const { return {entry.name, datasets.at(entry.name).get(), out}; }
  void read(const std::vector<hdf5::ReadJob>& jobs) const;
};

namespace {

/// Runs f, and puts the file before the cause of its errors.
template <class F>
decltype(auto) named(const std::string& path, const F& f) {
  try {
    return f();
  } catch (const CheckpointError& error) {
    fail<CheckpointError>("{}: {}", path, error.what());
  }
}

bool matches(std::string_view pattern, std::string_view name) {
  // After a mismatch, the last star takes one character more.
  std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

/// "a/b" of "/a/b/", as groups are spelled here.
std::string trimmed(std::string_view name) {
  const std::size_t first = name.find_first_not_of('/');
  if (first == std::string_view::npos) return "";
  return std::string(name.substr(first, name.find_last_not_of('/') - first + 1));
}

bool is_below(const std::string& name, const std::string& group) {
  return group.empty() || (name.size() > group.size() && name.starts_with(group) && name[group.size()] == '/');
}

}  // namespace

void HDF5File::Content::walk(std::uint64_t root_address) {
  constexpr std::size_t kLongestName = 4096;
  struct Group {
    std::string prefix;
    Messages messages;
  };
  root = hdf5::read_object(source, root_address);
  if (!hdf5::is_group(root)) fail<CheckpointError>("damaged: its root is no group");
  std::vector<Group> groups{{"", root}};
  std::unordered_set<std::uint64_t> seen{root_address};
  while (!groups.empty()) {
    const Group group = std::move(groups.back());
    groups.pop_back();
    std::vector<hdf5::Link> links;
    try {
      links = hdf5::read_links(source, group.messages);
    } catch (const CheckpointError& error) {
      if (group.prefix.empty()) throw;
      HDF5Entry& damaged = entries.emplace_back();
      damaged.name = trimmed(group.prefix);
      damaged.problem = error.what();
    }
    for (const hdf5::Link& link : links) {
      HDF5Entry entry;
      entry.name = group.prefix + link.name;
      try {
        if (entry.name.size() > kLongestName) fail<CheckpointError>("its name is too long");
        if (!link.address) fail<CheckpointError>("soft and external links are not followed");
        Messages object = hdf5::read_object(source, *link.address);
        if (hdf5::is_group(object)) {
          if (seen.insert(*link.address).second) groups.push_back({entry.name + '/', std::move(object)});
          continue;
        }
        if (!hdf5::is_dataset(object)) continue;  // a named type
        add_dataset(entry, *link.address, object);
      } catch (const CheckpointError& error) {
        entry.problem = error.what();
        if (entry.name.size() > kLongestName) entry.name.resize(kLongestName);
      }
      entries.push_back(std::move(entry));
    }
  }
  std::ranges::sort(entries, {}, &HDF5Entry::name);
  // A tensor's first name is the first of the sorted ones.
  std::map<const Dataset*, std::string> first;
  for (HDF5Entry& entry : entries)
    if (entry.problem.empty()) entry.first_name = first.try_emplace(datasets.at(entry.name).get(), entry.name).first->second;
}

void HDF5File::Content::add_dataset(HDF5Entry& entry, std::uint64_t address, const Messages& object) {
  const auto [known, is_new] = names.try_emplace(address, entry.name);
  std::shared_ptr<const Dataset> dataset;
  if (is_new) {
    dataset = std::make_shared<Dataset>(hdf5::open_dataset(source, object));
    source.check_range(0, stored += dataset->stored_bytes());  // as datasets upon each other would make much, too
  } else {
    const auto found = datasets.find(known->second);
    if (found == datasets.end()) fail<CheckpointError>("the same as {}, which cannot be read", known->second);
    dataset = found->second;
  }
  if (!datasets.emplace(entry.name, dataset).second) fail<CheckpointError>("damaged: its name is there twice");
  entry.dtype = dataset->type.dtype;
  entry.shape = dataset->shape;
  entry.stored_bytes = dataset->stored_bytes();
}

const HDF5Entry& HDF5File::Content::find(const std::string& name) const {
  const std::string wanted = trimmed(name);
  const auto found = std::ranges::lower_bound(entries, wanted, {}, &HDF5Entry::name);
  if (found == entries.end() || found->name != wanted) fail<CheckpointError>("{}: {}: is missing", path, wanted);
  if (!found->problem.empty()) fail<CheckpointError>("{}: {}: {}", path, wanted, found->problem);
  return *found;
}

void HDF5File::Content::read(const std::vector<hdf5::ReadJob>& jobs) const {
  named(path, [&] { hdf5::read_values(source, jobs); });
}

HDF5File::HDF5File(const std::string& path) {
  instruction_set();  // whose error must not come from a parallel loop of checksums
  named(path, [&] {
    content_ = std::make_unique<Content>(path);
    content_->walk(hdf5::open_superblock(content_->source));
  });
}

HDF5File::~HDF5File() = default;
HDF5File::HDF5File(HDF5File&&) noexcept = default;
HDF5File& HDF5File::operator=(HDF5File&&) noexcept = default;

const std::string& HDF5File::path() const { return content_->path; }

const std::vector<HDF5Entry>& HDF5File::entries() const { return content_->entries; }

bool HDF5File::contains(const std::string& name) const {
  const std::string wanted = trimmed(name);
  return std::ranges::any_of(content_->entries, [&](const HDF5Entry& e) { return e.name == wanted || is_below(e.name, wanted); });
}

std::optional<std::string> HDF5File::string_attribute(const std::string& name) const {
  return named(path(), [&] { return hdf5::string_attribute(content_->source, content_->root, name); });
}

std::optional<std::int64_t> HDF5File::integer_attribute(const std::string& name) const {
  return named(path(), [&] { return hdf5::integer_attribute(content_->source, content_->root, name); });
}

Tensor HDF5File::read(const std::string& name, Device device, std::optional<DType> dtype) const {
  const HDF5Entry& entry = content_->find(name);
  Tensor x = empty(entry.shape, {entry.dtype, kCPU});
  content_->read({content_->job(entry, x.raw_data())});
  if (dtype && is_floating(entry.dtype)) x = to_data(x, *dtype);
  return to_data(x, device);
}

void HDF5File::read_into(const NamedTensors& targets) const {
  for (const auto& [name, target] : targets)
    if (const HDF5Entry& entry = content_->find(name); !(entry.shape == target.shape()))
      fail<ShapeError>("read_into: {} is {}, the target is {}", entry.name, entry.shape, target.shape());
  std::vector<hdf5::ReadJob> direct;
  for (const auto& [name, target] : targets) {
    const HDF5Entry& entry = content_->find(name);
    if (target.is_cpu() && target.is_contiguous() && target.dtype() == entry.dtype) {
      target.storage()->bump_version();
      direct.push_back(content_->job(entry, target.raw_data()));
    } else {
      copy_data(target, read(name));
    }
  }
  content_->read(direct);
}

void HDF5File::verify(const std::vector<std::string>& names) const {
  std::vector<hdf5::ReadJob> jobs;
  jobs.reserve(names.size());
  for (const std::string& name : names) jobs.push_back(content_->job(content_->find(name), nullptr));
  content_->read(jobs);
}

std::vector<std::pair<std::string, const HDF5Entry*>> HDF5File::select(const std::string& prefix,
                                                                       const LoadOptions& options) const {
  const std::string group = trimmed(prefix);
  std::vector<std::pair<std::string, const HDF5Entry*>> selected;
  std::set<std::string> names;
  for (const HDF5Entry& entry : content_->entries) {
    if (entry.name == group && !entry.problem.empty()) content_->find(entry.name);  // the group itself is damaged
    if (!is_below(entry.name, group)) continue;
    std::string name = entry.name.substr(group.empty() ? 0 : group.size() + 1);
    std::ranges::replace(name, '/', '.');
    if (!options.include.empty() && std::ranges::none_of(options.include, [&](const auto& p) { return matches(p, name); }))
      continue;
    const auto rename = std::ranges::find_if(options.rename, [&](const auto& pair) { return name.starts_with(pair.first); });
    if (rename != options.rename.end()) name = rename->second + name.substr(rename->first.size());
    content_->find(entry.name);
    if (!names.insert(name).second) fail<CheckpointError>("{}: {}: {} is there twice", path(), entry.name, name);
    selected.emplace_back(std::move(name), &entry);
  }
  return selected;
}

StateDict HDF5File::load(const std::string& prefix, const LoadOptions& options) const {
  StateDict state;
  std::map<std::string, Tensor> loaded;  // by first name
  std::vector<hdf5::ReadJob> direct;
  for (const auto& [name, entry] : select(prefix, options)) {
    Tensor& x = loaded[entry->first_name];
    if (!x.defined()) {
      const bool as_stored = options.device.is_cpu() && options.dtype.value_or(entry->dtype) == entry->dtype;
      x = as_stored ? empty(entry->shape, {entry->dtype, kCPU}) : read(entry->name, options.device, options.dtype);
      if (as_stored) direct.push_back(content_->job(*entry, x.raw_data()));
    }
    state.emplace(name, x);
  }
  content_->read(direct);
  return state;
}

StateDict load_state_dict_hdf5(const std::string& path, const std::string& prefix, const LoadOptions& options) {
  const HDF5File file(path);
  if (!trimmed(prefix).empty() && !file.contains(prefix)) fail<CheckpointError>("{}: {}: is missing", path, trimmed(prefix));
  return file.load(prefix, options);
}

}  // namespace glade::nn
