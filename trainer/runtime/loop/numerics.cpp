// SPDX-License-Identifier: Apache-2.0
// Windows of losses and norms, limits computed from them, and sentences about steps beyond these limits.

#include "trainer/runtime/loop/numerics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/log.h"

namespace slipstream::runtime {
namespace {

// The values that the windows of the last kLag steps need.
constexpr int64_t kKept = NumericsGuard::kWindow + NumericsGuard::kLag - 1;

/// Returns the name of the tensor of every part of the gradient norm.
std::vector<std::string> gradient_names(const std::vector<std::shared_ptr<const Job>>& stages) {
  std::vector<std::string> names(static_cast<size_t>(stages.front()->norm_parts));
  for (const auto& job : stages)
    for (const PlacedPart& placed : job->layout.parts)
      if (placed.norm_index >= 0)
        names[static_cast<size_t>(placed.norm_index)] = job->model.parameters[placed.part.parameter].name();
  return names;
}

void keep_last(std::vector<double>& values, double value) {
  values.push_back(value);
  if (std::ssize(values) > kKept) values.erase(values.begin());
}

float limit_of(const std::optional<Window>& window) {
  return window ? window->limit : std::numeric_limits<float>::infinity();
}

}  // namespace

std::optional<Window> window_of(std::span<const double> values, double zscore) {
  if (std::ssize(values) > NumericsGuard::kWindow) values = values.last(NumericsGuard::kWindow);
  double count = 0;
  Window window;
  for (const double value : values)
    if (std::isfinite(value)) window.mean += value, ++count;
  if (2 * count < NumericsGuard::kWindow) return {};
  window.mean /= count;
  for (const double value : values)
    if (std::isfinite(value)) window.deviation += (value - window.mean) * (value - window.mean) / count;
  window.deviation = std::sqrt(window.deviation);
  window.limit = static_cast<float>(window.mean + zscore * window.deviation);
  return window.deviation > 0 ? std::optional(window) : std::nullopt;
}

NumericsGuard::NumericsGuard(const RunConfig& config, int64_t tokens,
                             const std::vector<std::shared_ptr<const Job>>& stages)
    : train_(config.train),
      has_norm_(stages.front()->options.clip),
      tokens_(static_cast<double>(tokens)),
      gradients_(gradient_names(stages)) {}

void NumericsGuard::resume(int64_t step, const checkpoint::NumericsHistory& history) {
  history_.skips = history.skips;
  for (size_t i = 0; i < history.losses.size(); ++i)
    record(step - std::ssize(history.losses) + 1 + static_cast<int64_t>(i), history.losses[i], history.norms[i]);
}

void NumericsGuard::record(int64_t step, double loss, double norm) {
  if (train_.spike_zscore == 0) return;
  keep_last(history_.losses, loss);
  keep_last(history_.norms, norm);
  expected_[static_cast<size_t>(step + kLag) % expected_.size()] = {window_of(history_.losses, train_.spike_zscore),
                                                                    window_of(history_.norms, train_.spike_zscore)};
}

void NumericsGuard::write_limits(int64_t step, std::span<float> limits) const {
  limits[0] = limit_of(expected(step).norm);
  limits[1] = limit_of(expected(step).loss) * static_cast<float>(tokens_);
}

std::string NumericsGuard::finding(int64_t step, const Rank::Report& report) const {
  const double loss = report.loss_sum / tokens_;
  if (!std::isfinite(loss) || !std::isfinite(report.norm)) {
    std::string text = fmt::format("the loss is {}", std::abs(loss));  // abs() prints nan instead of -nan
    if (has_norm_) text += fmt::format(" and the gradient norm {}", std::abs(report.norm));
    if (const auto first = static_cast<size_t>(report.first_not_finite); first > 0 && first <= gradients_.size())
      text += fmt::format("; the first gradient that is not finite is that of {}", gradients_[first - 1]);
    return text;
  }
  std::array<float, kLimits> limits{};
  write_limits(step, limits);
  const auto spike = [&](const char* name, double value, const std::optional<Window>& window) {
    return fmt::format("the {} {:.4g} exceeds its mean {:.4g} over {} steps by {:.1f} standard deviations of {:.2g}",
                       name, value, window->mean, kWindow, (value - window->mean) / window->deviation,
                       window->deviation);
  };
  // The comparison is the same as on the device.
  if (report.loss_sum > static_cast<double>(limits[1])) return spike("loss", loss, expected(step).loss);
  if (report.norm > static_cast<double>(limits[0])) return spike("gradient norm", report.norm, expected(step).norm);
  return "";
}

NumericsGuard::Verdict NumericsGuard::consider(int64_t step, const Rank::Report& report, int64_t skips) const {
  const std::string text = finding(step, report);
  Verdict verdict{.skips = report.skipped == 0 ? 0 : skips + 1};
  const bool finite = std::isfinite(report.loss_sum) && std::isfinite(report.norm);
  if (verdict.skips > train_.max_skips)
    verdict.reason = fmt::format("{} updates in a row were skipped, more than train.max_skips = {}; {}", verdict.skips,
                                 train_.max_skips, text);
  else if (report.skipped == 0 && (!finite || train_.on_nan == OnNan::rollback))
    verdict.reason = text;
  else if (!text.empty())
    verdict.warning = fmt::format("{}{}", text, report.skipped == 0 ? "" : ". Its update is skipped");
  return verdict;
}

std::string NumericsGuard::judge(int64_t step, const Rank::Report& report) {
  const Verdict verdict = consider(step, report, history_.skips);
  record(step, report.loss_sum / tokens_, report.norm);
  history_.skips = verdict.skips;
  if (!verdict.warning.empty()) log_warn("step {}: {}", step, verdict.warning);
  return verdict.reason;
}

std::optional<checkpoint::NumericsHistory> NumericsGuard::history_after(int64_t step,
                                                                        const Rank::Report& report) const {
  const Verdict verdict = consider(step, report, history_.skips);
  if (!verdict.reason.empty()) return {};
  checkpoint::NumericsHistory history = history_;
  history.skips = verdict.skips;
  if (train_.spike_zscore > 0) {
    keep_last(history.losses, report.loss_sum / tokens_);
    keep_last(history.norms, report.norm);
  }
  return history;
}

}  // namespace slipstream::runtime
