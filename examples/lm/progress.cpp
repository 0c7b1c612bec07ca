#include "lm/progress.h"

#include <fmt/format.h>
#include <glade/ops/shape/shape.h>

#include <cmath>
#include <stdexcept>
#include <utility>

namespace lm {

using std::chrono::duration;

namespace {

/// std::runtime_error for a loss that is not finite; `what` names it.
void check_finite(double loss, const std::string& what) {
  if (std::isfinite(loss)) return;
  throw std::runtime_error(fmt::format("the {} is {}: try a smaller --lr", what, std::isnan(loss) ? "nan" : "infinite"));
}

}  // namespace

double in_bits(double loss) { return loss / std::log(2.0); }

Progress::Progress(const std::string& log, std::optional<std::int64_t> resumed_step, std::int64_t tokens_a_step,
                   const std::string& unit)
    : tokens_a_step_(tokens_a_step), unit_(unit) {
  if (log.empty()) return;
  if (resumed_step) cut_log(log, *resumed_step);
  log_.emplace(log, resumed_step.has_value());
  const std::string header =
      fmt::format("step,loss,bits_per_{0},validation_bits_per_{0},learning_rate,tokens_per_second,seconds\n", unit);
  if (log_->is_empty() && !log_->write(header)) throw std::runtime_error(log_->error());
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

  std::string rows;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const Step& step = pending_[i];
    check_finite(losses[i], fmt::format("loss of step {}", step.step));
    rows += fmt::format("{},{:.9g},{:.6f},,{:.6g},{:.0f},{:.3f}\n", step.step, losses[i], in_bits(losses[i]), step.learning_rate,
                        tokens_a_second_, seconds());
  }
  write_log(rows);
  const Step last = pending_.back();
  pending_.clear();
  if (line_.is_due() || last.done >= 1) show(last, losses.back());
}

void Progress::add_validation(std::int64_t step, double loss) {
  flush();
  check_finite(loss, fmt::format("validation loss after step {}", step));
  line_.print(fmt::format("step {}: validation {:.3f} bits per {}", step, in_bits(loss), unit_));
  write_log(fmt::format("{},,,{:.6f},,,{:.3f}\n", step, in_bits(loss), seconds()));
  flushed_ = Clock::now();
}

double Progress::seconds() const { return duration<double>(Clock::now() - start_).count(); }

void Progress::show(const Step& step, double loss) {
  const double left = seconds() * (1 - step.done) / std::max(step.done - first_done_, 1e-9);
  line_.show(step.done, {fmt::format("step {}", step.step), fmt::format("{:.3f} bits per {}", in_bits(loss), unit_),
                         clock_time(left) + " left", fmt::format("{:.1f}k tokens/s", tokens_a_second_ / 1000),
                         fmt::format("loss {:.3f}", loss), fmt::format("lr {:.1e}", step.learning_rate)});
}

void Progress::write_log(const std::string& rows) {
  if (!log_) return;
  const bool was_whole = std::exchange(log_is_whole_, log_->write(rows));
  if (was_whole && !log_is_whole_) line_.print(log_->error() + "; its rows are kept, and written as soon as they can be");
}

void Progress::finish() {
  flush();
  erase();
  if (log_ && !log_->write("")) throw std::runtime_error(log_->error());
}

}  // namespace lm
