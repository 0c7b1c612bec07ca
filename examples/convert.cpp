// convert: a published model's folder becomes a checkpoint of glade, or the other way, tensor by tensor.
//
//   convert gla-1.3B model.h5
//   convert model.h5 gla-1.3B --dtype bfloat16
#include <fmt/format.h>
#include <glade/glade.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <optional>

#include "lm/byte_progress.h"
#include "lm/command_line.h"
#include "lm/model.h"

namespace fs = std::filesystem;
using namespace glade;
using nn::models::GLAConfig;
using nn::models::PretrainedFolder;

namespace {

struct Options {
  std::string input, output;
  std::optional<std::string> dtype;
  double shard_gigabytes = 5;
  int compression = 0;
  bool force = false;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("input", o.input, "A published model's folder or its name in the cache of Hugging Face, or a checkpoint")
      ->required()
      ->type_name("FILE.h5|FOLDER|owner/name");
  app.add_option("output", o.output, "The checkpoint that is made of a folder, or the folder that is made of a checkpoint")
      ->required()
      ->type_name("FILE.h5|FOLDER");
  app.add_flag("--force", o.force, "Overwrite the output without asking");
  app.add_option("--dtype", o.dtype, "Type of the floating-point tensors in the folder that is made [as they are]")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  app.add_option("--shard-size", o.shard_gigabytes, "Size of the largest file in the folder that is made, in GB")
      ->check(lm::positive_number())
      ->check(CLI::Range(1e-9, 9e9))
      ->capture_default_str();
  app.add_option("--compression", o.compression, "Level of gzip, 1 to 9, for the checkpoint that is made; 0: none")
      ->transform(lm::count())
      ->check(CLI::Range(0, 9))
      ->capture_default_str();
}

std::int64_t size_in_bytes(const nn::TensorInfo& info) {
  return info.shape.numel() * static_cast<std::int64_t>(dtype_size(info.dtype));
}

/// Shows progress through `tensors` while `read` gives them.
class Reader {
 public:
  template <class Read>
  Reader(const nn::TensorInfos& tensors, Read read) : tensors_(tensors), read_(std::move(read)), progress_(total(tensors)) {}

  Tensor operator()(const std::string& name) {
    progress_.add(std::exchange(last_, size_in_bytes(tensors_.at(name))), name);
    return read_(name);
  }

 private:
  static std::int64_t total(const nn::TensorInfos& tensors) {
    std::int64_t bytes = 0;
    for (const auto& [name, info] : tensors) bytes += size_in_bytes(info);
    return bytes;
  }

  const nn::TensorInfos& tensors_;
  std::function<Tensor(const std::string&)> read_;
  lm::ByteProgress progress_;
  std::int64_t last_ = 0;
};

/// Whether converting would replace something: a file, or what is in a folder.
bool would_overwrite(const fs::path& output) { return fs::is_directory(output) ? !fs::is_empty(output) : fs::exists(output); }

/// UsageError unless the output may be written.
void confirm_output(const Options& o) {
  if (o.force || !would_overwrite(o.output)) return;
  if (isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0)
    throw lm::UsageError(o.output + " exists: give --force to overwrite it");
  fmt::print(stderr, "{} exists. Overwrite it? [y/N] ", o.output);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer != "y" && answer != "Y" && answer != "yes") throw lm::UsageError(o.output + " was left as it is");
}

/// Of a file, or of all files in a folder.
std::uintmax_t size_on_disk(const fs::path& path) {
  if (!fs::is_directory(path)) return fs::file_size(path);
  std::uintmax_t bytes = 0;
  for (const auto& file : fs::directory_iterator(path)) bytes += file.is_regular_file() ? file.file_size() : 0;
  return bytes;
}

void report(const Options& o, std::size_t tensors) {
  fmt::print("wrote {}: {} tensors, {} bytes\n", o.output, tensors, size_on_disk(o.output));
}

/// CheckpointError unless these tensors are those of a model of this configuration.
void check_tensors(const Options& o, const std::string& config, const nn::TensorInfos& tensors) {
  try {
    nn::check_state("tensors", nn::models::make_causal_lm(config, tensors)->named_state(), tensors);
  } catch (const ValueError& error) {
    throw CheckpointError(o.input + ": " + error.what());
  }
}

void folder_to_checkpoint(const Options& o) {
  if (o.dtype) throw lm::UsageError("--dtype is for folders: a checkpoint keeps the types of the folder it is made of");
  for (const auto& file : fs::directory_iterator(o.input)) lm::check_no_input("output", o.output, {file.path()});
  const PretrainedFolder folder(o.input);
  nn::Checkpoint checkpoint;
  checkpoint.config = folder.config().to_json();
  check_tensors(o, checkpoint.config, folder.tensors());
  confirm_output(o);
  std::vector<std::string> names;
  for (const auto& [name, info] : folder.tensors()) names.push_back(name);
  {
    Reader reader(folder.tensors(), [&](const std::string& name) { return folder.read(name); });
    nn::save(checkpoint, o.output, names, std::ref(reader), {.compression = o.compression});
  }
  report(o, names.size());
}

void checkpoint_to_folder(const Options& o) {
  for (const char* written : {"config.json", "model.safetensors", "model.safetensors.index.json"})
    lm::check_no_input("output", fs::path(o.output) / written, {o.input});
  const nn::CheckpointFile file(o.input);
  GLAConfig config;
  try {
    config = GLAConfig::from_json(file.header().config);
  } catch (const ValueError& error) {
    throw CheckpointError(o.input + ": " + error.what());
  }
  nn::TensorInfos tensors;
  std::map<std::string, std::string> entries;
  for (const auto& [name, entry] : file.file().select("model")) {
    tensors.emplace(name, nn::TensorInfo{entry->dtype, entry->shape});
    entries.emplace(name, entry->name);
  }
  if (!tensors.contains("model.embeddings.weight"))
    throw CheckpointError(o.input + ": holds no model: missing model.embeddings.weight");
  check_tensors(o, file.header().config, tensors);
  confirm_output(o);
  nn::models::SavePretrainedOptions options;
  if (o.dtype) options.dtype = dtype_from_name(*o.dtype);
  options.max_shard_bytes = static_cast<std::int64_t>(o.shard_gigabytes * 1e9);
  {
    Reader reader(tensors, [&](const std::string& name) { return file.file().read(entries.at(name)); });
    nn::models::save_pretrained(o.output, config, tensors, std::ref(reader), options);
  }
  report(o, tensors.size());
}

int convert(Options& o) {
  o.input = lm::find_model(o.input);
  if (fs::is_directory(o.input)) folder_to_checkpoint(o);
  else checkpoint_to_folder(o);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Turns a published GLA model's folder into a checkpoint of glade, or the other way.", "convert");
  Options options;
  add_options(app, options);
  return lm::run(app, argc, argv, [&] { return convert(options); });
}
