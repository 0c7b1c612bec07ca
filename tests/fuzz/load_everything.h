#pragma once
// What every HDF5 file, however damaged, must go through without harm.
#include <glade/nn/checkpoint.h>
#include <glade/nn/linear.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace glade::nn {

/// Reads all of a file that can be read, and tries to restore a model from it. Errors that are no CheckpointErrors leave
/// this function; a file that is verified but cannot be read, or a model that is changed by a failed load, end the program.
inline void load_everything(std::string_view bytes) {
  static const int descriptor = ::memfd_create("damaged.h5", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  if (::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    std::abort();

  const auto attempt = [](const auto& f) {
    try {
      f();
      return true;
    } catch (const CheckpointError&) {
      return false;
    }
  };
  const auto check = [](bool good) {
    if (!good) std::abort();
  };

  attempt([&] {
    const HDF5File file(path);
    for (const HDF5Entry& entry : file.entries()) {
      const bool verified = attempt([&] { file.verify(entry.name); });
      check(verified == attempt([&] { file.read(entry.name); }));
    }
    file.load();
  });

  struct Model : Module {
    Linear layer{5, 3, false};
    Model() { register_module("layer", layer); }
  } model;  // that tests/data/hdf5/good_checkpoint.h5 fits
  const Tensor weight = model.layer.weight;
  fill_data(weight, -1);
  if (!attempt([&] { CheckpointFile(path).restore(model); }))
    for (const float value : weight.to_vector<float>()) check(value == -1);
}

}  // namespace glade::nn
