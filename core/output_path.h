#pragma once
// Where a file that takes the place of another goes. For .cpp files that write files; not public.
#include <filesystem>
#include <string>

#include <glade/core/format.h>

namespace glade {

/// `path`, or what it stands for as a symbolic link, which stays one. Throws E where that is something else than a regular
/// file: a rename would put one in the place of a device.
template <class E>
std::string output_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) fail<E>("{}: cannot be written: {}", path, error.message());
  if (fs::is_directory(status)) fail<E>("{}: cannot be written: Is a directory", path);
  if (fs::exists(status) && !fs::is_regular_file(status)) fail<E>("{}: cannot be written: Is not a regular file", path);
  fs::path target = path;
  while (fs::is_symlink(target, error)) target = target.parent_path() / fs::read_symlink(target);
  return target.string();
}

}  // namespace glade
