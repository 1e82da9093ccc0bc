// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides when the plans of a job run: the runs of every step, and the sequences of runs that can occur.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

namespace slipstream {

enum class PlanKind : uint8_t {
  train,
  evaluate,  // evaluates one micro-batch that the host has written
  prime,     // stages the first batch, and gathers parameters that travel encoded
  save,      // copies the state after a step to host memory
  keep,      // copies the same state into a slot of Job::keeping and sends it to the holder
};
const char* name_of(PlanKind kind);

/// The position of runs in a step, in the order of the step.
enum class When : uint8_t {
  start,    // once, before the first step, while nothing else is in flight
  between,  // any number of times between two steps, while nothing else is in flight
  asked,  // at most once before a step, if the run asks for it; the plan may still run beside that step and later ones
  step,   // inside the step
};
constexpr bool is_at_rest(When when) { return when <= When::between; }

/// The steps at which a plan may run: those for which n is `at` plus a multiple of `every`, where n is the number of
/// steps that were issued before.
struct Cadence {
  When when = When::step;
  int64_t every = 1, at = 0;

  bool falls_on(int64_t n) const {
    return n % every == at && (when != When::start || n == 0) && (when != When::between || n > 0);
  }
};

/// The cadences of a job's plans. The index of a row identifies it. Pure.
class Calendar {
 public:
  /// Rows in the order in which they run.
  using Runs = std::vector<size_t>;

  explicit Calendar(std::vector<Cadence> rows) : rows_(std::move(rows)) {}

  /// Returns the runs of the step that follows n steps: the rows that the run asks for, then the rows inside the step.
  /// Rows with the same position run in the order of their indices.
  Runs step(int64_t n, const std::function<bool(size_t row)>& asks) const;

  /// Returns all pairs of consecutive runs that can occur, and all triples of them without a run at rest. The host
  /// waits before and after a run at rest, so that no wait crosses it.
  std::set<Runs> windows() const;

  /// Returns a few sequences that contain every window, and no pair or triple that cannot occur.
  std::vector<Runs> sequences() const;

 private:
  /// A run of a row after n steps.
  struct Place {
    int64_t n = 0;
    size_t row = 0;
  };
  /// Returns the rows that may run between step n and the next one, in their order.
  Runs rows_after(int64_t n) const;
  std::vector<Place> next(const Place& place) const;
  /// Returns the windows that end with the last run, or none if one of them cannot occur.
  std::vector<Runs> ended_by_last(const Runs& runs, const std::set<Runs>& windows) const;

  std::vector<Cadence> rows_;
};

}  // namespace slipstream
