#include <glade/nn/checkpoint_saver.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <glade/core/format.h>
#include <glade/core/watchdog.h>
#include <glade/nn/output_file.h>

namespace glade::nn {
namespace {

namespace fs = std::filesystem;

std::string numbered_path(const std::string& path, std::int64_t step) {
  const fs::path p(path);
  return (p.parent_path() / fmt::format("{}-{:08}{}", p.stem().string(), step, p.extension().string())).string();
}

struct NumberedFile {
  std::int64_t step;
  std::string path;
};

/// The regular files that numbered_path names, by step; or those with `suffix` behind it. Other numbers are not the saver's.
std::vector<NumberedFile> numbered_files(const std::string& path, const std::string& suffix = "") {
  const fs::path p(path), folder = p.has_parent_path() ? p.parent_path() : fs::path(".");
  const std::string prefix = p.stem().string() + '-', extension = p.extension().string() + suffix;
  std::vector<NumberedFile> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(extension) || name.size() <= prefix.size() + extension.size()) continue;
    const char *begin = name.data() + prefix.size(), *end = name.data() + name.size() - extension.size();
    std::int64_t step = 0;
    const auto [rest, status] = std::from_chars(begin, end, step);
    if (status != std::errc() || rest != end || step < 0) continue;
    std::string file = numbered_path(path, step) + suffix;
    if (fs::path(file).filename() == name && entry.is_regular_file(error)) files.push_back({step, std::move(file)});
  }
  std::ranges::sort(files, {}, &NumberedFile::step);
  return files;
}

/// Leaves the last `keep` files up to `step`, and nothing of those that were never finished.
void remove_old(const std::string& path, std::int64_t step, int keep) {
  for (const NumberedFile& file : numbered_files(path, kTemporarySuffix)) remove_leftover(file.path);
  std::vector<NumberedFile> files = numbered_files(path);
  std::erase_if(files, [&](const NumberedFile& file) { return file.step > step; });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < files.size(); ++i) {
    std::error_code error;
    fs::remove(files[i].path, error);
    if (error) fail<CheckpointError>("{}: cannot be removed: {}", files[i].path, error.message());
  }
}

}  // namespace

StateDict host_copy(const StateDict& state) {
  StateDict copies;
  std::map<const void*, std::pair<Tensor, Tensor>> by_address;  // the original and its copy
  for (const auto& [name, x] : state) {
    const auto [known, is_new] = by_address.try_emplace(x.raw_data(), x, Tensor());
    if (!is_new && is_same_view(known->second.first, x)) {
      copies.emplace(name, known->second.second);
      continue;
    }
    Tensor copy = empty(x.shape(), {x.dtype(), kCPU});
    copy_data(copy, x);
    if (is_new) known->second.second = copy;
    copies.emplace(name, copy);
  }
  return copies;
}

CheckpointSaver::CheckpointSaver(std::string path, int keep, const CheckpointOptions& options)
    : path_(std::move(path)), keep_(keep), options_(options) {
  if (keep < 0) fail<ValueError>("CheckpointSaver: keep is {}, expected 0 or more", keep);
  OutputFile(path_).check();
}

void CheckpointSaver::save(const Checkpoint& checkpoint) {
  wait();
  Checkpoint copy = checkpoint;
  for (StateDict* state : {&copy.model, &copy.optimizer, &copy.scheduler, &copy.data}) *state = host_copy(*state);
  save(checkpoint.step, [copy = std::move(copy), options = options_](const std::string& path) { nn::save(copy, path, options); });
}

void CheckpointSaver::save(std::int64_t step, std::function<void(const std::string& path)> write) {
  if (step < 0) fail<ValueError>("CheckpointSaver: step is {}, expected 0 or more", step);
  const std::lock_guard lock(mutex_);
  finish();
  pending_ = std::async(std::launch::async, [step, write = std::move(write), path = path_, keep = keep_] {
    write(keep == 0 ? path : numbered_path(path, step));
    if (keep > 0) remove_old(path, step, keep);
  });
}

void CheckpointSaver::check() {
  const std::unique_lock lock(mutex_, std::try_to_lock);  // who has it waits for the save, and gets its error
  if (lock && pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) pending_.get();
}

void CheckpointSaver::wait() {
  const std::lock_guard lock(mutex_);
  finish();
}

void CheckpointSaver::finish() {
  const watchdog::During during(watchdog::Activity::busy, "writing a checkpoint");  // other ranks may wait for this one
  if (pending_.valid()) pending_.get();
}

std::vector<std::string> numbered_checkpoints(const std::string& path) {
  std::vector<std::string> paths;
  for (const NumberedFile& file : numbered_files(path)) paths.push_back(file.path);
  return paths;
}

std::optional<CheckpointFile> open_newest_checkpoint(const std::string& path,
                                                     const std::function<void(const std::string&)>& warn) {
  const watchdog::During during(watchdog::Activity::busy, "reading checkpoints");
  std::string last_error;
  const auto try_or_warn = [&](const auto& f) {
    try {
      f();
      return true;
    } catch (const CheckpointError& error) {
      last_error = error.what();
      if (warn) warn(last_error);
      return false;
    }
  };
  std::vector<NumberedFile> candidates = numbered_files(path);
  if (std::error_code error; fs::exists(path, error))
    try_or_warn([&] { candidates.push_back({CheckpointFile(path).header().step, path}); });
  std::ranges::stable_sort(candidates, std::ranges::greater(), &NumberedFile::step);
  for (const NumberedFile& candidate : candidates) {  // one is open at a time: there may be more than a process can open
    std::optional<CheckpointFile> file;
    if (try_or_warn([&] { file.emplace(candidate.path).verify(); })) return file;
  }
  if (!last_error.empty()) fail<CheckpointError>("{}: no checkpoint is whole; of the last one: {}", path, last_error);
  return std::nullopt;
}

}  // namespace glade::nn
