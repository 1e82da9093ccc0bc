// SPDX-License-Identifier: Apache-2.0
// Adds up a checkpoint's bytes, and rehearses the step beside which its snapshot is copied.

#include "trainer/planner/forecast/checkpoint_costs.h"

#include <algorithm>
#include <vector>

#include <fmt/core.h>

#include "comm/rehearse/rehearse.h"
#include "engine/base/units.h"
#include "engine/plan/saved_state.h"
#include "trainer/planner/planner.h"

namespace slipstream::planner {
namespace {

// The cost of a byte that a paced writer copies, tests, hashes and writes directly. It was measured on two cores with
// two compute threads, which waited for each other: 0.57 and 0.60 s for 1.48 GB, of which the writer ran 0.35 s.
constexpr double kWriterNsPerByte = 0.4;

/// Returns the bytes of the snapshots on the host with the most, where each rank's snapshot is as large as that of its
/// stage.
int64_t most_on_a_host(const FinishedJob& finished, int64_t ranks_per_node, Owner owner) {
  const Mesh& mesh = finished.job->mesh;
  std::vector<int64_t> hosts(static_cast<size_t>((mesh.world() + ranks_per_node - 1) / ranks_per_node), 0);
  for (int rank = 0; rank < mesh.world(); ++rank)
    hosts[static_cast<size_t>(rank / ranks_per_node)] +=
        finished.stages[static_cast<size_t>(mesh.coordinates(rank).pipeline)]->buffers.bytes(owner);
  return *std::max_element(hosts.begin(), hosts.end());
}

/// Returns the bytes of the snapshot of the rank with the largest one.
int64_t snapshot_bytes(const FinishedJob& finished) {
  int64_t most_bytes = 0;
  for (const auto& stage : finished.stages) most_bytes = std::max(most_bytes, stage->buffers.bytes(Owner::snapshot));
  return most_bytes;
}

/// Returns by how much `with` delays the start of the last step, on the stage with the longest delay. Both runs have
/// the same steps.
std::optional<int64_t> rehearsed_delay_ns(const FinishedJob& finished, const comm::Price& price,
                                          const std::vector<comm::RankRuns>& without,
                                          const std::vector<comm::RankRuns>& with) {
  const Job& first = *finished.job;
  const comm::RehearseOptions options{.gate = comm::Gate::launch_order, .replayed = finished.replay.taken};
  const comm::Rehearsal plain = comm::rehearse(first.mesh, first.channels, without, price, options),
                        saving = comm::rehearse(first.mesh, first.channels, with, price, options);
  if (!plain.finished || !saving.finished) return {};
  int64_t most_ns = 0;
  for (size_t r = 0; r < plain.ranks.size(); ++r)
    most_ns = std::max(most_ns, saving.ranks[r].runs.back()[0].start_ns - plain.ranks[r].runs.back()[0].start_ns);
  return most_ns;
}

}  // namespace

std::string text_of(const CheckpointCosts& costs) {
  std::string text = format_bytes(costs.disk_bytes) + " on disk";
  if (costs.rank_bytes > 0)
    text += fmt::format(", {} of host memory per rank ({} per host)", format_bytes(costs.rank_bytes),
                        format_bytes(costs.host_bytes));
  if (costs.added_ns)
    text += fmt::format("; copying it adds {:.1f} ms to a step", static_cast<double>(*costs.added_ns) / 1e6);
  if (costs.writer_ns > 0)
    text += fmt::format("; its writer takes {:.0f} ms from compute", static_cast<double>(costs.writer_ns) / 1e6);
  if (costs.write_seconds)
    text += fmt::format("; writing it takes {:.1f} s at checkpoint.bandwidth", *costs.write_seconds);
  return text;
}

CheckpointCosts checkpoint_costs(const FinishedJob& finished, int64_t ranks_per_node, const comm::Price& price,
                                 const Checkpoint& options) {
  CheckpointCosts costs{.disk_bytes = saved_bytes(finished.stages)};
  if (!finished.job->options.snapshots) return costs;
  costs.rank_bytes = snapshot_bytes(finished);
  costs.host_bytes = most_on_a_host(finished, std::max<int64_t>(1, ranks_per_node), Owner::snapshot);
  if (!finished.job->options.snapshots_beside)
    costs.writer_ns = static_cast<int64_t>(kWriterNsPerByte * static_cast<double>(costs.rank_bytes));
  costs.write_seconds = write_seconds(finished, options);
  constexpr int64_t kSteps = 5;  // the copies may delay gathers of the step after the next
  const auto saves = [](PlanKind kind, int64_t n) { return kind == PlanKind::save && n == 1; };
  costs.added_ns =
      rehearsed_delay_ns(finished, price, runs_of(finished.stages, kSteps), runs_of(finished.stages, kSteps, saves));
  return costs;
}

std::string text_of(const KeepingCosts& costs) {
  std::string text = costs.interval == 1 ? "every step" : fmt::format("every {} steps", costs.interval);
  if (costs.to_holder > 0)
    text += fmt::format(", {} from rank r to rank r + {}", format_bytes(costs.sent_bytes), costs.to_holder);
  text += fmt::format("; {} of host memory per rank ({} per host)", format_bytes(costs.rank_bytes),
                      format_bytes(costs.host_bytes));
  if (costs.added_ns)
    text += fmt::format("; adds {:.1f} ms to such a step", static_cast<double>(*costs.added_ns) / 1e6);
  if (!costs.holder_is_elsewhere) text += "; both copies of some ranks are on one host, whose loss loses them";
  return text;
}

KeepingCosts keeping_costs(const FinishedJob& finished, int64_t interval, int64_t ranks_per_node,
                           const comm::Price& price) {
  const Keeping& keeping = finished.job->keeping;
  if (keeping.slots == 0) return {};
  const int ranks = finished.job->mesh.world();
  KeepingCosts costs{.interval = interval,
                     .to_holder = keeping.to_holder,
                     .rank_bytes = finished.job->buffers.bytes(Owner::kept),
                     .host_bytes = most_on_a_host(finished, std::max<int64_t>(1, ranks_per_node), Owner::kept),
                     .sent_bytes = keeping.to_holder > 0 ? keeping.slot_bytes : 0};
  for (int rank = 0; rank < ranks; ++rank)
    costs.holder_is_elsewhere &= (rank + keeping.to_holder) % ranks / ranks_per_node != rank / ranks_per_node;
  // The run has several snapshots in a row, because a transfer may take longer than a step.
  const int64_t between = std::min<int64_t>(interval, 4), steps = 4 * between + 1;
  const auto keeps = [&](PlanKind kind, int64_t n) { return kind == PlanKind::keep && n > 0 && n % between == 0; };
  costs.added_ns =
      rehearsed_delay_ns(finished, price, runs_of(finished.stages, steps), runs_of(finished.stages, steps, keeps));
  if (costs.added_ns) *costs.added_ns /= 3;  // the last snapshot travels beside the last step
  return costs;
}

std::optional<double> write_seconds(const FinishedJob& finished, const Checkpoint& options) {
  if (options.bandwidth_bytes_per_second == 0 || !finished.job->options.snapshots) return {};
  return static_cast<double>(snapshot_bytes(finished)) / static_cast<double>(options.bandwidth_bytes_per_second);
}

std::string short_interval(const Checkpoint& options, std::optional<double> write_seconds, double step_seconds) {
  if (!write_seconds) return {};
  const auto sentence = [&](const std::string& interval) {
    return fmt::format(
        "writing a checkpoint takes {:.1f} s at checkpoint.bandwidth, longer than {}, so training waits for the rest "
        "of each write. Raise the bandwidth or the interval",
        *write_seconds, interval);
  };
  if (const int64_t minutes = options.interval_minutes;
      minutes > 0 && *write_seconds > 60.0 * static_cast<double>(minutes))
    return sentence(fmt::format("checkpoint.interval_minutes = {}", minutes));
  const double seconds = step_seconds * static_cast<double>(options.interval);
  if (seconds > 0 && *write_seconds > seconds)
    return sentence(fmt::format("the {:.{}f} s of checkpoint.interval = {} steps", seconds, seconds < 10 ? 3 : 1,
                                options.interval));
  return {};
}

}  // namespace slipstream::planner
