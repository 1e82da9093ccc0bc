// SPDX-License-Identifier: Apache-2.0
// Checks the values of plan.json, which another program may have written.

#include "trainer/report/planned.h"

#include "engine/base/check.h"

namespace slipstream::report {
namespace {

/// Returns an integer that is small enough for sums and differences of a plan's values.
int64_t count_of(const Json& json) {
  constexpr int64_t most = int64_t{1} << 52;
  const int64_t value = json.as_int();
  if (value < -1 || value > most) throw DataError("{} is out of range.", value);
  return value;
}

PlannedItem item_of(const Json& json) {
  const Json::Array& row = json.as_array("an item");
  if (row.size() != 10) throw DataError("an item has {} values and needs 10.", row.size());
  return {.name = row[0].as_string(),
          .op = row[2].as_string(),
          .channel = count_of(row[1]),
          .micro_batch = count_of(row[3]),
          .begin_ns = count_of(row[4]),
          .ns = count_of(row[5]),
          .sent_bytes = count_of(row[6]),
          .flops = count_of(row[7]),
          .bytes = count_of(row[8])};
}

PlannedChannel channel_of(const Json& json) {
  PlannedChannel channel{.name = json.at("name").as_string(),
                         .axis = json.at("axis").as_string(),
                         .ranks = count_of(json.at("ranks")),
                         .tasks = count_of(json.at("tasks")),
                         .sent_bytes = count_of(json.at("sent_bytes"))};
  if (const Json* const between = json.find("between_nodes")) channel.between_nodes = between->as_bool();
  if (const Json* const rate = json.find("bytes_per_second")) channel.bytes_per_second = rate->as_double();
  if (const Json* const latency = json.find("latency_ns")) channel.latency_ns = count_of(*latency);
  return channel;
}

PlannedStage stage_of(const Json& json, size_t owners) {
  PlannedStage stage;
  for (const auto& [owner, bytes] : json.at("memory_bytes").as_object())
    stage.memory_bytes.emplace_back(owner, count_of(bytes));
  for (const Json& channel : json.at("channels").as_array()) stage.channels.push_back(channel_of(channel));
  if (const Json* const items = json.find("items"))
    for (const Json& item : items->as_array()) stage.items.push_back(item_of(item));
  if (const Json* const rows = json.find("memory_in_use"))
    for (const Json& row : rows->as_array()) {
      std::vector<int64_t>& values = stage.memory_in_use.emplace_back();
      for (const Json& value : row.as_array()) values.push_back(count_of(value));
      if (values.size() != owners + 1)
        throw DataError("a row of memory_in_use has {} values and needs {}.", values.size(), owners + 1);
    }
  return stage;
}

}  // namespace

int Planned::stage_of(int rank) const {
  if (static_cast<size_t>(rank) < coordinates.size()) {
    const auto pipeline = static_cast<size_t>(std::find(axes.begin(), axes.end(), "pipeline") - axes.begin());
    const int64_t stage = pipeline < axes.size() ? coordinates[static_cast<size_t>(rank)][pipeline] : 0;
    return stage >= 0 && stage < std::ssize(stages) ? static_cast<int>(stage) : -1;
  }
  return stages.size() == 1 ? 0 : -1;
}

Planned planned_of(const RunFolder& run, Missing& missing) {
  Planned planned;
  if (run.plan.as_object().empty()) return planned;
  try {
    const Json& machine = run.plan.at("machine");
    planned.flops_per_second = machine.at("flops_per_second").as_double();
    planned.bytes_per_second = machine.at("bytes_per_second").as_double();
    planned.launch_ns = count_of(machine.at("launch_ns"));
    planned.ranks_per_node = count_of(run.plan.at("ranks_per_node"));
    if (const Json* const step = run.plan.find("step_ns")) planned.step_ns = count_of(*step);
    for (const Json& owner : run.plan.at("owners").as_array()) planned.owners.push_back(owner.as_string());
    if (const Json* const names = run.plan.find("axes")) {
      planned.axes.clear();
      for (const Json& name : names->as_array()) planned.axes.push_back(name.as_string());
    }
    if (const Json* const ranks = run.plan.find("coordinates"))
      for (const Json& rank : ranks->as_array()) {
        const Json::Array& at = rank.as_array();
        if (at.size() != planned.axes.size())
          throw DataError("coordinates need {} values, got {}.", planned.axes.size(), at.size());
        std::vector<int64_t>& own = planned.coordinates.emplace_back();
        for (const Json& value : at) own.push_back(count_of(value));
      }
    for (const Json& stage : run.plan.at("stages").as_array())
      planned.stages.push_back(stage_of(stage, planned.owners.size()));
    if (planned.step_ns == 0)
      missing.push_back("plan.json has no times: the plan has too many items, or its rehearsal did not end.");
    return planned;
  } catch (const DataError& damaged) {
    missing.push_back(
        fmt::format("plan.json is damaged, so there are no predictions, memory and links: {}", damaged.what()));
    return {};
  }
}

}  // namespace slipstream::report
