// SPDX-License-Identifier: Apache-2.0
// Formats step metrics as JSON and as text.

#include "engine/report/metrics.h"

#include <fmt/core.h>

#include <cmath>

#include "engine/base/json.h"
#include "engine/base/units.h"
#include "engine/report/overlap.h"

namespace slipstream {

bool shows_bubble(double bubble_ms, double step_ms) { return bubble_ms > 0.01 * step_ms; }

std::optional<double> StepMetrics::hidden() const {
  if (comm_ms <= 0) return std::nullopt;
  return share_of(hidden_ms, comm_ms);
}

std::string metrics_json(const StepMetrics& m) {
  const auto maybe = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  Json line = Json::object();
  line["step"] = m.step;
  line["loss"] = m.loss;
  if (m.val_loss) line["val_loss"] = *m.val_loss;
  line["lr"] = m.learning_rate;
  line["grad_norm"] = maybe(m.grad_norm);
  if (m.skipped) line["skipped"] = true;
  line["tokens"] = m.tokens;
  line["step_ms"] = m.step_ms;
  line["tokens_per_s"] = m.tokens_per_s();
  line["compute_ms"] = m.compute_ms;
  line["comm_ms"] = m.comm_ms;
  line["exposed_ms"] = m.exposed_ms;
  if (m.bubble_ms > 0) line["bubble_ms"] = m.bubble_ms;
  line["hidden"] = maybe(m.hidden());
  for (const auto& [task, ms] : m.exposed_by) line["exposed_by"][task] = ms;
  if (m.mfu) line["mfu"] = *m.mfu;
  line["exposed_ms_max"] = m.exposed_ms_max;
  line["input_ms"] = m.input_ms;
  line["other_ms"] = m.other_ms;
  line["skew_ms"] = m.skew_ms;
  if (m.bound_ms) line["bound_ms"] = *m.bound_ms;
  if (!m.params_hash.empty()) line["params_hash"] = m.params_hash;
  return line.dump();
}

std::vector<std::pair<std::string_view, std::optional<double>>> metric_values(const StepMetrics& m) {
  std::vector<std::pair<std::string_view, std::optional<double>>> values = {
      {"loss", m.loss},
      {"val_loss", m.val_loss},
      {"lr", m.learning_rate},
      {"grad_norm", m.grad_norm},
      {"skipped", m.skipped ? std::optional(1.0) : std::nullopt},
      {"tokens", static_cast<double>(m.tokens)},
      {"step_ms", m.step_ms},
      {"tokens_per_s", m.tokens_per_s()},
      {"compute_ms", m.compute_ms},
      {"comm_ms", m.comm_ms},
      {"exposed_ms", m.exposed_ms},
      {"bubble_ms", m.bubble_ms},
      {"hidden", m.hidden()},
      {"mfu", m.mfu},
      {"exposed_ms_max", m.exposed_ms_max},
      {"input_ms", m.input_ms},
      {"other_ms", m.other_ms},
      {"skew_ms", m.skew_ms},
      {"bound_ms", m.bound_ms}};
  for (auto& [name, value] : values)
    if (value && !std::isfinite(*value)) value.reset();
  return values;
}

std::string format_eta(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string metrics_line(const StepMetrics& m, int64_t steps, double eta_seconds) {
  std::string line = fmt::format("step {}/{} | loss {:.3f}", m.step, steps, m.loss);
  if (m.val_loss) line += fmt::format(" | val {:.3f}", *m.val_loss);
  line += fmt::format(" | lr {:.1e}", m.learning_rate);
  if (m.grad_norm) line += fmt::format(" | norm {:.2f}", *m.grad_norm);
  if (m.skipped) line += " | update skipped";
  line += fmt::format(" | {:.1f} ms | {} tok/s", m.step_ms, format_count(m.tokens_per_s()));
  if (m.comm_ms > 0)
    line +=
        fmt::format(" | comm {:.1f} ms, exposed {:.1f} ({:.0f}% hidden)", m.comm_ms, m.exposed_ms, 100 * *m.hidden());
  if (shows_bubble(m.bubble_ms, m.step_ms)) line += fmt::format(" | bubble {:.1f} ms", m.bubble_ms);
  if (m.bound_ms && m.step_ms > 0) line += fmt::format(" | {:.0f}% of bound", 100 * *m.bound_ms / m.step_ms);
  return line + fmt::format(" | eta {}", format_eta(eta_seconds));
}

}  // namespace slipstream
