// FUZZER SECONDS FOLDER EXTENSION [SEED]: loads every file of a folder that has the extension, then damaged ones until the time
// is over. What libFuzzer does with clang, without coverage but with any compiler.
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);  // NOLINT: libFuzzer's name

/// No file of the corpus justifies as much memory as this.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=256:handle_abort=1"; }  // NOLINT
/// In abort() the file is kept.
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1:abort_on_error=1"; }  // NOLINT

namespace {

namespace fs = std::filesystem;

std::string current;  ///< the bytes that are being loaded
std::string failure = "fuzz_failure";

void keep_current() {
  std::ofstream(failure, std::ios::binary) << current;
  std::fprintf(stderr, "the file was kept as %s\n", failure.c_str());
}

void load_current() {
  constexpr unsigned kMostSeconds = 10;  // a hang ends in abort()
  ::alarm(kMostSeconds);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(current.data()), current.size());
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, std::uint64_t seed) : corpus_(corpus), engine_(seed) {}

  std::string next() {
    std::string file = any_file();
    for (std::size_t n = 1 + below(4); n > 0 && !file.empty(); --n) damage(file);
    return file;
  }

 private:
  std::size_t below(std::size_t n) { return engine_() % n; }
  const std::string& any_file() { return corpus_[below(corpus_.size())]; }

  void damage(std::string& file) {
    const std::size_t at = below(file.size()), n = std::min(file.size() - at, std::size_t{1} << below(10));
    switch (below(6)) {
      case 0: file[at] = static_cast<char>(file[at] ^ 1 << below(8)); break;
      case 1: file[at] = static_cast<char>(engine_()); break;
      case 2: write_number(file, at); break;
      case 3: file.resize(at); break;
      case 4: file.erase(at, n); break;
      case 5: {  // part of another file, or of this one
        const std::string other = any_file();
        const std::size_t from = below(other.size());
        file.replace(at, std::min(n, other.size() - from), other, from, n);
        break;
      }
    }
  }

  /// A size or an address: small, at the limit of its width, or somewhere in the file.
  void write_number(std::string& file, std::size_t at) {
    const std::size_t width = std::size_t{1} << below(4);
    const std::array<std::uint64_t, 4> choices{below(64), ~std::uint64_t{0} - below(16), std::uint64_t{1} << below(64),
                                               below(2 * file.size())};
    const std::uint64_t value = choices[below(choices.size())];
    std::memcpy(file.data() + at, &value, std::min(width, file.size() - at));
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 engine_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "%s SECONDS FOLDER EXTENSION [SEED]\n", argv[0]);
    return 2;
  }
  const std::string extension = argv[3];
  failure += extension;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(argv[1]));
  const std::uint64_t seed = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : std::random_device{}();
  std::signal(SIGALRM, [](int) { std::abort(); });
  __sanitizer_set_death_callback(keep_current);

  std::vector<std::string> corpus;
  for (const fs::directory_entry& entry : fs::directory_iterator(argv[2])) {
    if (entry.path().extension() != extension) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    current.assign(std::istreambuf_iterator<char>(file), {});
    load_current();
    corpus.push_back(current);
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s has no %s files\n", argv[2], argv[3]);
    return 1;
  }
  Mutator mutator(corpus, seed);
  std::size_t loaded = 0;
  for (; std::chrono::steady_clock::now() < end; ++loaded) {
    current = mutator.next();
    load_current();
  }
  std::printf("%zu files and %zu damaged ones were loaded, seed %llu\n", corpus.size(), loaded,
              static_cast<unsigned long long>(seed));
}
