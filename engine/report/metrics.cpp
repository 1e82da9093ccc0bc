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
      {"step", false, [](const StepMetrics& m) -> Value { return m.step; }, "step number, from 1"},
      {"loss", true, [](const StepMetrics& m) -> Value { return m.loss; },
       "mean loss of the global batch in nats per token, before this step's update; `null` if not finite"},
      {"val_loss", true, [](const StepMetrics& m) -> Value { return maybe(m.val_loss); },
       "mean loss over `train.eval_batches` validation batches; at validations and at the last step"},
      {"lr", true, [](const StepMetrics& m) -> Value { return m.learning_rate; }, "learning rate of this step"},
      {"grad_norm", true, [](const StepMetrics& m) -> Value { return or_null(m.grad_norm); },
       "norm of all gradients before clipping; `null` if not finite or not needed"},
      {"skipped", true, [](const StepMetrics& m) -> Value { return m.skipped ? Value(true) : std::nullopt; },
       "`true` if `train.on_nan` skipped the update; else absent"},
      {"tokens", true, [](const StepMetrics& m) -> Value { return m.tokens; }, "tokens of this step on all ranks"},
      {"step_ms", true, [](const StepMetrics& m) -> Value { return m.step_ms; },
       "time from the first work of this step to the first work of the next. Lines that a resume from memory writes "
       "again have `null` here and in all times below"},
      {"tokens_per_s", true, [](const StepMetrics& m) -> Value { return m.tokens_per_s(); }, "`tokens` / `step_ms`"},
      {"compute_ms", true, [](const StepMetrics& m) -> Value { return m.compute_ms; },
       "union of the works on the compute stream"},
      {"comm_ms", true, [](const StepMetrics& m) -> Value { return m.comm_ms; },
       "union of communication tasks; a task begins when the last member of its group enters"},
      {"exposed_ms", true, [](const StepMetrics& m) -> Value { return m.exposed_ms; },
       "time by which an infinitely fast network would shorten the step, found by replaying the works and tasks of all "
       "ranks"},
      {"bubble_ms", true,
       [](const StepMetrics& m) -> Value { return m.bubble_ms > 0 ? Value(m.bubble_ms) : std::nullopt; },
       "rest of the time in which compute waited for communication, because another rank computed or its host was "
       "late; absent when 0"},
      {"hidden", true, [](const StepMetrics& m) -> Value { return or_null(m.hidden()); },
       "share (0 to 1) of `comm_ms` during which compute ran; `null` without communication. Communication in a gap of "
       "the host is neither hidden nor exposed"},
      {"exposed_by", false, [](const StepMetrics& m) -> Value { return tasks(m.exposed_by); },
       "`exposed_ms` divided by awaited task, the largest part first; absent when empty"},
      {"mfu", true, [](const StepMetrics& m) -> Value { return maybe(m.mfu); },
       "model FLOPs utilization, 0 to 1: operations of forward and backward without recomputation / (`step_ms` x ranks "
       "x the machine file's peak rate for `train.dtype`). Absent without `device.machine`"},
      {"exposed_ms_max", true, [](const StepMetrics& m) -> Value { return m.exposed_ms_max; },
       "`exposed_ms` of the rank that waited longest"},
      {"input_ms", true, [](const StepMetrics& m) -> Value { return m.input_ms; },
       "time for which compute waited for the batch"},
      {"other_ms", true, [](const StepMetrics& m) -> Value { return m.other_ms; },
       "gaps of the host: step - compute - exposed - bubble - input"},
      {"skew_ms", true, [](const StepMetrics& m) -> Value { return m.skew_ms; },
       "time for which members of a collective waited for the last member to enter"},
      {"bound_ms", true, [](const StepMetrics& m) -> Value { return maybe(m.bound_ms); },
       "rehearsed step time with this run's fastest op times, at most the fastest step so far; from step 8 on, if the "
       "rate of the link is known"},
      {"params_hash", false,
       [](const StepMetrics& m) -> Value { return m.params_hash.empty() ? std::nullopt : Value(m.params_hash); },
       "XXH3-128 over all weights in name order, the same on every layout; at validations, at the last step and every "
       "`train.hash_interval` steps"},
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
