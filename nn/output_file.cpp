#include <glade/nn/output_file.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <glade/core/format.h>
#include <glade/core/output_path.h>

namespace glade::nn {
namespace {

/// Opens the temporary file and locks it. The process that held the lock just before may have renamed it. A file that has
/// another name as well is not this program's, and is left alone.
int open_locked(const std::string& path) {
  for (;;) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor < 0) fail<CheckpointError>("{}: cannot be created: {}", path, std::strerror(errno));
    struct stat opened {
    }, named{};
    const bool locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (locked && ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino) {
      if (S_ISREG(opened.st_mode) && opened.st_nlink == 1) return descriptor;
      ::close(descriptor);
      fail<CheckpointError>("{}: cannot be replaced: it is no regular file, or has other names", path);
    }
    ::close(descriptor);
    if (!locked) fail<CheckpointError>("{}: another process is writing it", path);
  }
}

}  // namespace

void remove_leftover(const std::string& temporary) {
  const int descriptor = ::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(temporary.c_str());
  ::close(descriptor);
}

OutputFile::OutputFile(const std::string& path)
    : path_(path),
      target_(output_path<CheckpointError>(path)),
      temporary_(target_ + kTemporarySuffix),
      descriptor_(open_locked(temporary_)) {
  if (::ftruncate(descriptor_, 0) != 0) error_ = errno;
  struct stat target {};
  if (::stat(target_.c_str(), &target) != 0) return;
  mode_ = target.st_mode & 0777;
  // Others must not read it meanwhile; the next process must be able to open it if this one is killed.
  set_mode(*mode_ | S_IRUSR | S_IWUSR);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

void OutputFile::set_mode(mode_t mode) {
  struct stat now {};
  const bool is_set = ::fstat(descriptor_, &now) == 0 && (now.st_mode & 0777) == mode;  // some file systems have but one mode
  if (!is_set && ::fchmod(descriptor_, mode) != 0 && error_ == 0) error_ = errno;
}

void OutputFile::check() const {
  if (error_ != 0) fail<CheckpointError>("{}: cannot be written: {}", path_, std::strerror(error_));
}

void OutputFile::write_at(std::size_t address, const void* data, std::size_t size) {
  for (const auto* at = static_cast<const char*>(data); size > 0 && error_ == 0;) {
    const ssize_t n = ::pwrite(descriptor_, at, size, static_cast<off_t>(address));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error_ = errno;
    else at += n, address += static_cast<std::size_t>(n), size -= static_cast<std::size_t>(n);
    if (n > 0) start_writeback(static_cast<std::size_t>(n));
  }
}

// Left alone, the system would begin when the file is complete: commit() would wait for all of it.
void OutputFile::start_writeback(std::size_t written) {
  constexpr std::size_t kAtOnce = std::size_t{32} << 20;
  pending_ += written;
  if (pending_ < kAtOnce) return;
  pending_ = 0;
  ::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE);  // a hint: fsync says whether it is on the disk
}

void OutputFile::write(const void* data, std::size_t size) {
  write_at(end_, data, size);
  end_ += size;
  check();
}

void OutputFile::sync() {
  if (mode_) set_mode(*mode_);
  check();
  if (::fsync(descriptor_) != 0) fail<CheckpointError>("{}: cannot be synced: {}", temporary_, std::strerror(errno));
}

void OutputFile::commit() {
  sync();
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0)
    fail<CheckpointError>("{}: cannot be replaced: {}", path_, std::strerror(errno));
  ::close(descriptor_);
  descriptor_ = -1;

  const std::string parent = std::filesystem::path(target_).parent_path().string(), folder = parent.empty() ? "." : parent;
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!synced) fail<CheckpointError>("{}: its folder cannot be synced: {}", path_, std::strerror(error));
}

/// HDF5's virtual file driver over an OutputFile.
struct OutputFileDriver {
  /// What the file access property list carries.
  struct Info {
    OutputFile* output;
  };
  struct File {
    H5FD_t base;  // HDF5's part, which must come first
    OutputFile* output;
    haddr_t end;  // of what HDF5 has allocated
  };
  static File& file(H5FD_t* base) { return *reinterpret_cast<File*>(base); }
  static const File& file(const H5FD_t* base) { return *reinterpret_cast<const File*>(base); }

  static H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
    const auto* info = static_cast<const Info*>(H5Pget_driver_info(access));
    return info != nullptr ? &(new File{{}, info->output, 0})->base : nullptr;
  }
  static herr_t close(H5FD_t* base) {
    delete &file(base);
    return 0;
  }
  static herr_t query(const H5FD_t*, unsigned long* features) {
    *features = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
                H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
  }
  static haddr_t get_end(const H5FD_t* base, H5FD_mem_t) { return file(base).end; }
  static herr_t set_end(H5FD_t* base, H5FD_mem_t, haddr_t end) {
    file(base).end = end;
    return 0;
  }
  static herr_t read(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* buffer) {
    for (auto* at = static_cast<char*>(buffer); size > 0;) {
      const ssize_t n = ::pread(file(base).output->descriptor_, at, size, static_cast<off_t>(address));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return -1;
      if (n == 0) {  // not written yet
        std::memset(at, 0, size);
        return 0;
      }
      at += n;
      address += static_cast<haddr_t>(n);
      size -= static_cast<std::size_t>(n);
    }
    return 0;
  }
  static herr_t write(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, const void* buffer) {
    file(base).output->write_at(address, buffer, size);
    return 0;
  }
  static herr_t truncate(H5FD_t* base, hid_t, hbool_t) {
    OutputFile& output = *file(base).output;
    if (output.error_ == 0 && ::ftruncate(output.descriptor_, static_cast<off_t>(file(base).end)) != 0) output.error_ = errno;
    return 0;
  }

  static hid_t id() {
    static const hid_t registered = [] {
      H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
      driver.version = H5FD_CLASS_VERSION;
      driver.value = static_cast<H5FD_class_value_t>(777);  // of the range for drivers that are not registered with HDF5
#endif
      driver.name = "glade_output_file";
      driver.maxaddr = HADDR_MAX / 2;
      driver.fc_degree = H5F_CLOSE_STRONG;
      driver.fapl_size = sizeof(Info);
      driver.open = open;
      driver.close = close;
      driver.query = query;
      driver.get_eoa = get_end;
      driver.set_eoa = set_end;
      driver.get_eof = get_end;
      driver.read = read;
      driver.write = write;
      driver.truncate = truncate;
      const H5FD_mem_t one_map[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
      std::copy(std::begin(one_map), std::end(one_map), driver.fl_map);
      return H5FDregister(&driver);
    }();
    return registered;
  }
};

herr_t OutputFile::attach(hid_t access) {
  const OutputFileDriver::Info info{this};
  return OutputFileDriver::id() >= 0 ? H5Pset_driver(access, OutputFileDriver::id(), &info) : -1;
}

}  // namespace glade::nn
