#include "lm/run_settings.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <vector>

namespace lm {

using namespace glade;

namespace {

/// "run.seq_len" for "--seq-len": the name in a checkpoint's data.
std::string name_of(const std::string& option) {
  std::string name = "run." + option.substr(option.find_first_not_of('-'));
  std::ranges::replace(name, '-', '_');
  return name;
}

template <class T>
Tensor scalar(T value) {
  return Tensor::from_vector(std::vector<T>{value}, Shape{});
}

}  // namespace

RunSettings::RunSettings(const nn::Checkpoint* resumed) {
  if (resumed == nullptr) return;
  path_ = resumed->path;
  resumed_ = resumed->data;
}

template <class T>
std::optional<T> RunSettings::saved(const std::string& name) const {
  const auto found = resumed_.find(name);
  if (found == resumed_.end()) return std::nullopt;
  if (found->second.dtype() != dtype_of<T>() || found->second.numel() != 1)
    throw CheckpointError(fmt::format("{}: data/{} is no number of type {}", path_, name, dtype_name(dtype_of<T>())));
  return found->second.item<T>();
}

std::int64_t RunSettings::fixed(const std::string& option, std::optional<std::int64_t> given, std::int64_t otherwise) {
  const auto before = saved<std::int64_t>(name_of(option));
  if (before && given && *before != *given)
    throw CheckpointError(fmt::format("{}: the run was made with {} {}, not {}", path_, option,
                                      static_cast<std::uint64_t>(*before), static_cast<std::uint64_t>(*given)));
  const std::int64_t value = before.value_or(given.value_or(otherwise));
  state_.emplace(name_of(option), scalar(value));
  return value;
}

void RunSettings::fix_data(const nn::data::TokenData& data) {
  const std::int64_t tokens = data.size(), crc = checksum(data);
  const auto tokens_before = saved<std::int64_t>("run.data_tokens"), crc_before = saved<std::int64_t>("run.data_crc32");
  if (tokens_before && crc_before && (tokens != *tokens_before || crc != *crc_before))
    throw CheckpointError(
        fmt::format("{}: the run was made with other --data: {} tokens with the checksum {:08x}, not {} with {:08x}", path_,
                    *tokens_before, *crc_before, tokens, crc));
  state_.emplace("run.data_tokens", scalar(tokens));
  state_.emplace("run.data_crc32", scalar(crc));
}

template <class T>
T RunSettings::scheduled(const std::string& option, std::optional<T> given, T otherwise) {
  const auto before = saved<T>(name_of(option));
  const T value = given.value_or(before.value_or(otherwise));
  if (before && *before != value) note_change(fmt::format("{} {}", option, *before), fmt::format("{} {}", option, value));
  state_.emplace(name_of(option), scalar(value));
  return value;
}

std::int64_t RunSettings::schedule(const std::string& option, std::optional<std::int64_t> given, std::int64_t otherwise) {
  return scheduled(option, given, otherwise);
}

double RunSettings::schedule(const std::string& option, std::optional<double> given, double otherwise) {
  return scheduled(option, given, otherwise);
}

std::string RunSettings::schedule(const std::string& option, const std::optional<std::string>& given,
                                  const std::vector<std::string>& names) {
  const auto before = saved<std::int64_t>(name_of(option));
  const auto count = static_cast<std::int64_t>(names.size());
  if (before && (*before < 0 || *before >= count))
    throw CheckpointError(
        fmt::format("{}: data/{} is {}, expected a value in [0, {}]", path_, name_of(option), *before, count - 1));
  const std::int64_t place = given ? std::ranges::find(names, *given) - names.begin() : before.value_or(0);
  const std::string& name = names.at(static_cast<std::size_t>(place));
  if (before && *before != place)
    note_change(fmt::format("{} {}", option, names[static_cast<std::size_t>(*before)]), fmt::format("{} {}", option, name));
  state_.emplace(name_of(option), scalar(place));
  return name;
}

double RunSettings::seconds_before() const { return saved<double>(kSeconds).value_or(0); }

void RunSettings::set_seconds(double seconds) { state_.insert_or_assign(kSeconds, scalar(seconds)); }

void RunSettings::note_change(const std::string& before, const std::string& now) {
  before_ += (before_.empty() ? "" : ", ") + before;
  now_ += (now_.empty() ? "" : ", ") + now;
}

std::string RunSettings::changes() const {
  if (before_.empty()) return "";
  return fmt::format("{}: the run was made with {} and goes on with {}", path_, before_, now_);
}

std::uint32_t checksum(const nn::data::TokenData& data) {
  constexpr std::int64_t kBlocks = 4096, kBlock = 4096;
  const bool whole = data.size() <= kBlocks * kBlock;
  const std::int64_t blocks = whole ? (data.size() + kBlock - 1) / kBlock : kBlocks;
  std::vector<std::int64_t> tokens;
  uLong crc = crc32(0, nullptr, 0);
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t begin = whole ? i * kBlock : i * (data.size() - kBlock) / (kBlocks - 1);
    tokens.resize(static_cast<std::size_t>(std::min(kBlock, data.size() - begin)));
    data.read(begin, tokens);
    crc = crc32(crc, reinterpret_cast<const Bytef*>(tokens.data()), static_cast<uInt>(tokens.size() * sizeof(std::int64_t)));
  }
  return static_cast<std::uint32_t>(crc);
}

}  // namespace lm
