// SPDX-License-Identifier: Apache-2.0
// Means and last values of the columns of a run.

#include "report/figures.h"

#include <cmath>
#include <optional>

namespace slipstream::report {
namespace {

using Better = Figure::Better;

std::optional<double> last_of(const Series* series) {
  if (series)
    for (size_t i = series->values.size(); i-- > 0;)
      if (std::isfinite(series->values[i])) return series->values[i];
  return {};
}

std::optional<double> least_of(const Series* series) {
  std::optional<double> least;
  if (series)
    for (double value : series->values)
      if (std::isfinite(value) && (!least || value < *least)) least = value;
  return least;
}

std::optional<double> mean_of(const Series* series) {
  if (!series) return {};
  double sum = 0, count = 0;
  const size_t first = series->values.size() > kWarmSteps ? kWarmSteps : 0;
  for (size_t i = first; i < series->values.size(); ++i)
    if (std::isfinite(series->values[i])) {
      sum += series->values[i];
      ++count;
    }
  return count > 0 && std::isfinite(sum) ? std::optional(sum / count) : std::nullopt;
}

std::optional<double> number_of(const Json& record, std::string_view key) {
  const Json* const value = record.find(key);
  return value && value->is_number() ? std::optional(value->as_double()) : std::nullopt;
}

}  // namespace

const char* name_of(Figure::Better better) {
  return better == Better::lower ? "lower" : better == Better::higher ? "higher" : "";
}

std::vector<Figure> figures_of(const RunFolder& run) {
  std::vector<Figure> figures;
  const auto add = [&](Figure figure, std::optional<double> value) {
    if (!value || !std::isfinite(*value)) return;
    figure.value = *value;
    figures.push_back(std::move(figure));
  };
  const MetricsTable& metrics = run.metrics;
  const auto mean = [&](std::string_view name) { return mean_of(metrics.find(name)); };
  add({"loss", "last loss", "", 0, Better::lower, true}, last_of(metrics.find("loss")));
  add({"val_loss", "last validation loss", "", 0, Better::lower, true}, last_of(metrics.find("val_loss")));
  add({"best_val_loss", "best validation loss", "", 0, Better::lower}, least_of(metrics.find("val_loss")));
  add({"tokens_per_s", "mean throughput", "tok/s", 0, Better::higher, true}, mean("tokens_per_s"));
  add({"step_ms", "mean step", "ms", 0, Better::lower, true}, mean("step_ms"));
  add({"compute_ms", "mean compute", "ms", 0, Better::lower}, mean("compute_ms"));
  const auto comm = mean("comm_ms"), exposed = mean("exposed_ms"), step = mean("step_ms"), bound = mean("bound_ms");
  add({"comm_ms", "mean communication", "ms", 0, Better::lower}, comm);
  add({"exposed_ms", "mean exposed", "ms", 0, Better::lower, true}, exposed);
  if (const Series* const hidden = metrics.find("hidden")) {
    const auto share = mean_of(hidden);
    add({"hidden", "communication hidden", "%", 0, Better::higher, true},
        share ? std::optional(100 * *share) : std::nullopt);
  }
  add({"bubble_ms", "mean bubble", "ms", 0, Better::lower}, mean("bubble_ms"));
  add({"input_ms", "mean wait for input", "ms", 0, Better::lower}, mean("input_ms"));
  add({"other_ms", "mean gaps of the host", "ms", 0, Better::lower}, mean("other_ms"));
  add({"skew_ms", "mean skew", "ms", 0, Better::lower}, mean("skew_ms"));
  if (bound && step && *step > 0)
    add({"bound", "of the rehearsed bound", "%", 0, Better::higher, true}, 100 * *bound / *step);
  if (const auto mfu = mean("mfu")) add({"mfu", "model FLOPs utilization", "%", 0, Better::higher}, 100 * *mfu);
  add({"parameters", "parameters", "", 0, Better::neither}, number_of(run.record, "parameters"));
  add({"memory_bytes", "planned memory of rank 0", "bytes", 0, Better::lower}, number_of(run.record, "memory_bytes"));
  add({"ranks", "ranks", "", 0, Better::neither}, number_of(run.record, "ranks"));
  if (!metrics.steps.empty())
    add({"steps", "steps", "", 0, Better::neither, true}, static_cast<double>(metrics.steps.back()));
  return figures;
}

}  // namespace slipstream::report
