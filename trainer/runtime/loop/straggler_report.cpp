// SPDX-License-Identifier: Apache-2.0
// Prints one warning and one line of JSON per straggler, and a summary at the end.

#include "trainer/runtime/loop/straggler_report.h"

#include <algorithm>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/plural.h"

namespace slipstream::runtime {
namespace {

/// Returns the item that was latest; empty if the cause has none.
std::string item_of(const Straggler& straggler, const PlanItems& items) {
  if (straggler.cause == Cause::core) return "waiting for a core";
  return straggler.item == kNoItem ? "" : items.names[static_cast<size_t>(straggler.rank)][straggler.item];
}

}  // namespace

std::string straggler_json(const Straggler& straggler, const PlanItems& items) {
  Json line;
  line["step"] = straggler.step;
  line["since"] = straggler.since;
  line["steps"] = straggler.steps;
  line["rank"] = straggler.rank;
  line["host"] = items.hosts[static_cast<size_t>(straggler.rank)];
  line["cause"] = name_of(straggler.cause);
  if (const std::string item = item_of(straggler, items); !item.empty()) line["item"] = item;
  line["late_ms"] = straggler.late_ms;
  line["score"] = straggler.score;
  return line.dump();
}

StragglerReport::StragglerReport(World& world, const PlanItems& items, double threshold, RunDir& run_dir)
    : world_(world), items_(items), measures_(threshold > 0), run_dir_(run_dir) {
  if (measures_ && world.rank() == 0) detector_.emplace(static_cast<int>(items.graphs.size()), threshold);
}

void StragglerReport::issued(int64_t step) {
  if (measures_) ready_ns_[step] = usage_.look().ready_ns;
}

std::optional<OwnTimes> StragglerReport::own(const StepTimes& times, const std::vector<int64_t>& fastest_ns) {
  if (!measures_) return {};
  const auto ready = ready_ns_.extract(times.step);
  OwnTimes own = own_times(times, items_.kinds, world_.rank(), ready ? ready.mapped() : 0, fastest_ns);
  // A stop delays whatever the threads were doing, which is most often waiting. It is noticed up to half a second
  // later.
  if (world_.monitor()) {
    const int64_t before_ns = std::exchange(stopped_ns_, world_.monitor()->stopped_ns());
    own.stopped_ns = stopped_ns_ - before_ns;
  }
  return own;
}

void StragglerReport::add(const std::vector<OwnSample>& samples, int64_t first) {
  for (const OwnSample& sample : samples)
    if (sample.step > first) report(detector_->add(sample));
}

void StragglerReport::report(const std::vector<Straggler>& stragglers) {
  for (const Straggler& s : stragglers) {
    const std::string item = item_of(s, items_);
    log_warn("[straggler] rank {} on host {} is late by itself: {}{}, {:.0f} ms in {} since step {}, score {:.2f}",
             s.rank, items_.hosts[static_cast<size_t>(s.rank)], name_of(s.cause), item.empty() ? "" : " (" + item + ")",
             s.late_ms, counted(s.steps, "step"), s.since, s.score);
    run_dir_.append_report("stragglers.jsonl", straggler_json(s, items_));
  }
}

void StragglerReport::finish() {
  if (!detector_) return;
  report(detector_->finish());
  for (const Straggler& s : detector_->totals())
    log_info("late:     rank {} on host {}, {}: {:.1f} s in {}", s.rank, items_.hosts[static_cast<size_t>(s.rank)],
             name_of(s.cause), s.late_ms / 1000, counted(s.steps, "step"));
}

}  // namespace slipstream::runtime
