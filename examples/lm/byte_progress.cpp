#include "lm/byte_progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace lm {

ByteProgress::ByteProgress(std::int64_t total) : total_(std::max<std::int64_t>(total, 1)) {}

void ByteProgress::add(std::int64_t bytes, const std::string& what) {
  done_ += bytes;
  if (!line_.is_due()) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto done = static_cast<double>(done_), total = static_cast<double>(total_);
  std::vector<std::string> fields{fmt::format("{:.2f} of {:.2f} GB", done / 1e9, total / 1e9)};
  if (const double rate = done / seconds; rate > 0) {  // before the first bytes are done there is none
    fields.push_back(clock_time((total - done) / rate) + " left");
    fields.push_back(fmt::format("{:.2f} GB/s", rate / 1e9));
  }
  fields.push_back(what);
  line_.show(done / total, fields);
}

}  // namespace lm
