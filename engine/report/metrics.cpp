// SPDX-License-Identifier: Apache-2.0
// The fields of a step, and their form in JSON and in the line for users.

#include "engine/report/metrics.h"

#include <fmt/core.h>

#include <cmath>

#include "engine/base/units.h"
#include "engine/report/overlap.h"

namespace slipstream {

bool shows_bubble(double bubble_ms, double step_ms) { return bubble_ms > 0.01 * step_ms; }

std::optional<double> StepMetrics::hidden() const {
  if (comm_ms <= 0) return std::nullopt;
  return share_of(hidden_ms, comm_ms);
}

std::span<const MetricField> metric_fields() {
  using Value = std::optional<Json>;
  static constexpr auto maybe = [](const std::optional<double>& value) { return value ? Value(*value) : std::nullopt; };
  static constexpr auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  static constexpr auto tasks = [](const std::vector<std::pair<std::string, double>>& parts) -> Value {
    if (parts.empty()) return std::nullopt;
    Json object;
    for (const auto& [task, ms] : parts) object[task] = ms;
    return object;
  };
  static const MetricField kFields[] = {
      {"step", false, [](const StepMetrics& m) -> Value { return m.step; }},
      {"loss", true, [](const StepMetrics& m) -> Value { return m.loss; }},
      {"val_loss", true, [](const StepMetrics& m) -> Value { return maybe(m.val_loss); }},
      {"lr", true, [](const StepMetrics& m) -> Value { return m.learning_rate; }},
      {"grad_norm", true, [](const StepMetrics& m) -> Value { return or_null(m.grad_norm); }},
      {"skipped", true, [](const StepMetrics& m) -> Value { return m.skipped ? Value(true) : std::nullopt; }},
      {"tokens", true, [](const StepMetrics& m) -> Value { return m.tokens; }},
      {"step_ms", true, [](const StepMetrics& m) -> Value { return m.step_ms; }},
      {"tokens_per_s", true, [](const StepMetrics& m) -> Value { return m.tokens_per_s(); }},
      {"compute_ms", true, [](const StepMetrics& m) -> Value { return m.compute_ms; }},
      {"comm_ms", true, [](const StepMetrics& m) -> Value { return m.comm_ms; }},
      {"exposed_ms", true, [](const StepMetrics& m) -> Value { return m.exposed_ms; }},
      {"bubble_ms", true,
       [](const StepMetrics& m) -> Value { return m.bubble_ms > 0 ? Value(m.bubble_ms) : std::nullopt; }},
      {"hidden", true, [](const StepMetrics& m) -> Value { return or_null(m.hidden()); }},
      {"exposed_by", false, [](const StepMetrics& m) -> Value { return tasks(m.exposed_by); }},
      {"mfu", true, [](const StepMetrics& m) -> Value { return maybe(m.mfu); }},
      {"exposed_ms_max", true, [](const StepMetrics& m) -> Value { return m.exposed_ms_max; }},
      {"input_ms", true, [](const StepMetrics& m) -> Value { return m.input_ms; }},
      {"other_ms", true, [](const StepMetrics& m) -> Value { return m.other_ms; }},
      {"skew_ms", true, [](const StepMetrics& m) -> Value { return m.skew_ms; }},
      {"bound_ms", true, [](const StepMetrics& m) -> Value { return maybe(m.bound_ms); }},
      {"params_hash", false,
       [](const StepMetrics& m) -> Value { return m.params_hash.empty() ? std::nullopt : Value(m.params_hash); }},
  };
  return kFields;
}

std::string metrics_json(const StepMetrics& m) {
  Json line = Json::object();
  for (const MetricField& field : metric_fields())
    if (std::optional<Json> value = field.value(m)) line[field.name] = std::move(*value);
  return line.dump();
}

std::vector<std::pair<std::string_view, std::optional<double>>> metric_values(const StepMetrics& m) {
  std::vector<std::pair<std::string_view, std::optional<double>>> values;
  for (const MetricField& field : metric_fields()) {
    if (!field.is_number) continue;
    const std::optional<Json> value = field.value(m);
    auto& [name, number] = values.emplace_back(field.name, std::nullopt);
    if (!value || value->is_null()) continue;
    number = value->is_bool() ? value->as_bool() : value->as_double();
    if (!std::isfinite(*number)) number.reset();
  }
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
