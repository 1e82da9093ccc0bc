// SPDX-License-Identifier: Apache-2.0
// Computes means and last values of the columns of a run.

#include "trainer/report/figures.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace slipstream::report {
namespace {

using Better = Figure::Better;

/// A series over the covered steps of its run.
struct Part {
  const Series* series = nullptr;
  const std::vector<int64_t>* steps = nullptr;
  Covered covered;

  /// Calls visit(step, value) for the finite values of the steps that count.
  template <typename Visit>
  void each(Visit visit) const {
    if (!series) return;
    const size_t first = steps->size() > kWarmSteps ? kWarmSteps : 0;
    for (size_t i = first; i < steps->size(); ++i)
      if ((*steps)[i] >= covered.first && (*steps)[i] <= covered.last && std::isfinite(series->values[i]))
        visit((*steps)[i], series->values[i]);
  }
};

std::optional<double> last_of(const Series* series, const std::vector<int64_t>& steps, int64_t last) {
  if (series)
    for (size_t i = series->values.size(); i-- > 0;)
      if (steps[i] <= last && std::isfinite(series->values[i])) return series->values[i];
  return {};
}

std::optional<double> least_of(const Series* series, const std::vector<int64_t>& steps, int64_t last) {
  std::optional<double> least;
  if (series)
    for (size_t i = 0; i < series->values.size(); ++i)
      if (const double value = series->values[i];
          steps[i] <= last && std::isfinite(value) && (!least || value < *least))
        least = value;
  return least;
}

std::optional<double> mean_of(const Part& part) {
  double sum = 0, count = 0;
  part.each([&](int64_t, double value) {
    sum += value;
    ++count;
  });
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

std::vector<Figure> figures_of(const RunFolder& run, const Covered& steps) {
  std::vector<Figure> figures;
  const auto add = [&](Figure figure, std::optional<double> value) {
    if (!value || !std::isfinite(*value)) return;
    figure.value = *value;
    figures.push_back(std::move(figure));
  };
  const MetricsTable& metrics = run.metrics;
  const auto mean = [&](std::string_view name) { return mean_of({metrics.find(name), &metrics.steps, steps}); };
  const Series* const validation = metrics.find("val_loss");
  add({"loss", "last loss", "", 0, Better::lower, true}, last_of(metrics.find("loss"), metrics.steps, steps.loss));
  add({"val_loss", "last validation loss", "", 0, Better::lower, true},
      last_of(validation, metrics.steps, steps.validation_loss));
  add({"best_val_loss", "best validation loss", "", 0, Better::lower}, least_of(validation, metrics.steps, steps.last));
  add({"tokens_per_s", "mean throughput", "tok/s", 0, Better::higher, true}, mean("tokens_per_s"));
  add({"step_ms", "mean step", "ms", 0, Better::lower, true}, mean("step_ms"));
  add({"compute_ms", "mean compute", "ms", 0, Better::lower}, mean("compute_ms"));
  const auto comm = mean("comm_ms"), exposed = mean("exposed_ms"), step = mean("step_ms"), bound = mean("bound_ms");
  add({"comm_ms", "mean communication", "ms", 0, Better::lower}, comm);
  add({"exposed_ms", "mean exposed", "ms", 0, Better::lower, true}, exposed);
  if (const auto share = mean("hidden"))
    add({"hidden", "communication hidden", "%", 0, Better::higher, true}, 100 * *share);
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

namespace {

/// Returns the differences of a series between two runs at the steps that both have.
std::vector<double> differences(const Part& of, const Part& to) {
  std::map<int64_t, double> base;
  to.each([&](int64_t step, double value) { base[step] = value; });
  std::vector<double> found;
  of.each([&](int64_t step, double value) {
    if (const auto other = base.find(step); other != base.end()) found.push_back(value - other->second);
  });
  return found;
}

constexpr size_t kLeastValues = 4, kMostValues = 20;

/// Returns the 99.9 % quantile of Student's t distribution for `degrees` from 1 to 19.
double student(size_t degrees) {
  constexpr double kQuantiles[] = {318.3, 22.33, 10.21, 7.173, 5.893, 5.208, 4.785, 4.501, 4.297, 4.144,
                                   4.025, 3.930, 3.852, 3.787, 3.733, 3.686, 3.646, 3.610, 3.579};
  return kQuantiles[degrees - 1];
}

/// Returns the noise of a mean over successive steps. Their values may be correlated, and the means of `kMostValues`
/// batches are less so.
std::optional<double> noise_of_mean(const std::vector<double>& values) {
  if (values.size() < kLeastValues) return {};
  const size_t batches = std::min(values.size(), kMostValues);
  double sum = 0, squares = 0;
  for (size_t b = 0; b < batches; ++b) {
    const size_t begin = b * values.size() / batches, end = (b + 1) * values.size() / batches;
    double mean = 0;
    for (size_t i = begin; i < end; ++i) mean += values[i] / static_cast<double>(end - begin);
    sum += mean;
    squares += mean * mean;
  }
  const double n = static_cast<double>(batches);
  const double variance = std::max(0.0, (squares - sum * sum / n) / (n - 1));
  return student(batches - 1) * std::sqrt(variance / n);
}

/// Returns the noise of the last value by the second differences of the values before it, so that a steady trend does
/// not count.
std::optional<double> noise_of_last(const std::vector<double>& values) {
  constexpr size_t kLeast = 8;
  const size_t count = std::min(values.size(), kMostValues);
  if (count < kLeast) return {};
  double squares = 0;
  for (size_t i = values.size() - count + 2; i < values.size(); ++i)
    squares += std::pow(values[i] - 2 * values[i - 1] + values[i - 2], 2);
  const double deviation = std::sqrt(squares / (6 * static_cast<double>(count - 2)));
  // This is the 99.8 % interval of normal values, by simulation: 5.5 deviations of 8 values, 4.0 of 20.
  return deviation * (3 + 20 / static_cast<double>(count));
}

/// Returns the steps that all runs have, or none if they share none.
std::optional<Covered> shared_steps(const std::vector<const RunFolder*>& runs) {
  Covered steps;
  for (const RunFolder* run : runs) {
    const std::vector<int64_t>& own = run->metrics.steps;
    if (own.empty()) return {};
    steps.first = std::max(steps.first, own.size() > kWarmSteps ? own[kWarmSteps] : own.front());
    steps.last = std::min(steps.last, own.back());
  }
  if (steps.first > steps.last) return {};
  // Returns the last step at which every run has the value.
  const auto last_with = [&](std::string_view name) {
    std::map<int64_t, size_t> counts;
    for (const RunFolder* run : runs)
      if (const Series* const series = run->metrics.find(name))
        for (size_t i = 0; i < series->values.size(); ++i)
          if (std::isfinite(series->values[i])) ++counts[run->metrics.steps[i]];
    int64_t last = steps.last;
    for (const auto& [step, count] : counts)
      if (count == runs.size()) last = step;
    return last;
  };
  steps.loss = last_with("loss");
  steps.validation_loss = last_with("val_loss");
  return steps;
}

}  // namespace

Comparison compare(const std::vector<const RunFolder*>& runs) {
  Comparison comparison{.steps = shared_steps(runs), .figures = {}};
  const Covered steps = comparison.steps.value_or(Covered{});
  for (const RunFolder* run : runs) {
    std::vector<Figure> figures = figures_of(*run, steps);
    const auto part = [&](const RunFolder& of, std::string_view name) {
      return Part{of.metrics.find(name), &of.metrics.steps, steps};
    };
    for (Figure& figure : figures) {
      if (run == runs.front() || !comparison.steps) continue;
      const bool is_last = figure.key.ends_with("loss");
      const std::string_view name = figure.key == "best_val_loss" ? "val_loss"
                                    : figure.key == "bound"       ? "step_ms"
                                                                  : std::string_view(figure.key);
      const std::vector<double> apart = differences(part(*run, name), part(*runs.front(), name));
      figure.noise = is_last ? noise_of_last(apart) : noise_of_mean(apart);
      if (!figure.noise) continue;
      if (figure.key == "hidden" || figure.key == "mfu") *figure.noise *= 100;
      if (figure.key == "bound")
        if (const auto step = mean_of(part(*run, "step_ms")); step && *step > 0) *figure.noise *= figure.value / *step;
    }
    comparison.figures.push_back(std::move(figures));
  }
  return comparison;
}

}  // namespace slipstream::report
