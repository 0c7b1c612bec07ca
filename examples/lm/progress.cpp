#include "lm/progress.h"

#include "lm/byte_progress.h"

#include <fmt/format.h>
#include <glade/ops/shape/shape.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace lm {

using std::chrono::duration;

double in_bits(double loss) { return loss / std::log(2.0); }

Progress::Progress(const std::string& log, bool append, std::int64_t tokens_a_step, const std::string& unit)
    : tokens_a_step_(tokens_a_step), unit_(unit), terminal_(isatty(STDOUT_FILENO) != 0), log_path_(log) {
  if (log.empty()) return;
  const bool header = !append || !std::filesystem::exists(log);
  log_.open(log, append ? std::ios::app : std::ios::trunc);
  if (header)
    log_ << fmt::format("step,loss,bits_per_{0},validation_bits_per_{0},learning_rate,tokens_per_second,seconds\n", unit);
  check_log();
}

void Progress::add(std::int64_t step, double done, double learning_rate, const glade::Tensor& loss) {
  if (first_done_ < 0) first_done_ = done - done / static_cast<double>(step);
  pending_.push_back({step, done, learning_rate, loss});
  if (duration<double>(Clock::now() - flushed_).count() > 0.2) flush();
}

void Progress::flush() {
  if (pending_.empty()) return;
  glade::Tensors tensors;
  for (const Step& step : pending_) tensors.push_back(step.loss);
  const std::vector<double> losses = glade::stack(tensors).to_vector<double>();

  const auto now = Clock::now();
  const double rate =
      static_cast<double>(pending_.size()) * static_cast<double>(tokens_a_step_) / duration<double>(now - flushed_).count();
  tokens_a_second_ = tokens_a_second_ == 0 ? rate : 0.9 * tokens_a_second_ + 0.1 * rate;
  flushed_ = now;

  for (std::size_t i = 0; i < losses.size(); ++i) {
    const Step& step = pending_[i];
    if (!std::isfinite(losses[i])) {
      clear_bar();
      throw std::runtime_error(
          fmt::format("the loss of step {} is {}: try a smaller --lr", step.step, std::isnan(losses[i]) ? "nan" : "infinite"));
    }
    if (log_.is_open())
      log_ << fmt::format("{},{:.9g},{:.6f},,{:.6g},{:.0f},{:.3f}\n", step.step, losses[i], in_bits(losses[i]),
                          step.learning_rate, tokens_a_second_, seconds());
  }
  if (log_.is_open()) check_log();
  const Step last = pending_.back();
  pending_.clear();
  if (terminal_ || last.done >= 1 || duration<double>(now - shown_).count() > 5) show(last, losses.back());
}

void Progress::add_validation(std::int64_t step, double loss) {
  flush();
  clear_bar();
  fmt::print("step {}: validation {:.3f} bits per {}\n", step, in_bits(loss), unit_);
  std::fflush(stdout);
  if (log_.is_open()) {
    log_ << fmt::format("{},,,{:.6f},,,{:.3f}\n", step, in_bits(loss), seconds());
    check_log();
  }
  flushed_ = Clock::now();
}

double Progress::seconds() const { return duration<double>(Clock::now() - start_).count(); }

void Progress::show(const Step& step, double loss) {
  shown_ = Clock::now();
  const double left = seconds() * (1 - step.done) / std::max(step.done - first_done_, 1e-9);
  clear_bar();
  fmt::print("{} step {}  loss {:.3f}  {:.3f} bits per {}  lr {:.1e}  {:.1f}k tokens/s  {} left{}",
             terminal_ ? bar(step.done) : fmt::format("{:3.0f}%", 100 * step.done), step.step, loss, in_bits(loss), unit_,
             step.learning_rate, tokens_a_second_ / 1000, clock_time(left), terminal_ ? "" : "\n");
  std::fflush(stdout);
  bar_visible_ = terminal_;
}

void Progress::clear_bar() {
  if (bar_visible_) fmt::print("\r\x1b[K");
  bar_visible_ = false;
}

void Progress::check_log() {
  log_.flush();
  if (!log_) throw std::runtime_error(fmt::format("cannot write {}: {}", log_path_, std::strerror(errno)));
}

}  // namespace lm
