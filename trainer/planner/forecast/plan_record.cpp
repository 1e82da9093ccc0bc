// SPDX-License-Identifier: Apache-2.0
// Records the plan of a run: predicted times by item, memory in use, and the links of the mesh.

#include "trainer/planner/forecast/plan_record.h"

#include <algorithm>

#include "comm/link.h"
#include "comm/rehearse/rehearse.h"
#include "engine/base/json.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

namespace slipstream::planner {
namespace {

Json channel_json(const Job& job, ChannelId c, const comm::RooflinePrice& price, const Machine& machine) {
  const Channel& channel = job.channels[c];
  Json row = Json::object();
  row["name"] = channel.name;
  row["axis"] = name_of(channel.axis);
  row["ranks"] = job.mesh.group_size(channel.axis);
  int64_t tasks = 0, bytes = 0;
  for (const Task& task : job.train().tasks) {
    if (task.channel != c) continue;
    ++tasks;
    if (is_communication(task.op) && task.op != Op::recv)
      bytes += comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(channel.axis), task.elems, task.dtype);
  }
  row["tasks"] = tasks;
  row["sent_bytes"] = bytes;
  if (channel.axis == Axis::self) return row;
  row["between_nodes"] = job.mesh.crosses_nodes(channel.axis, machine.ranks_per_node);
  row["bytes_per_second"] = price.link(channel.axis).bytes_per_second;
  row["latency_ns"] = price.link(channel.axis).latency_ns;
  return row;
}

/// Returns the columns of "item_columns". Times are virtual, `bytes` are bytes of memory, and `after` has positions in
/// the list.
Json item_json(const Job& job, ItemId i, const comm::Span& span, int64_t origin_ns) {
  const Item& item = job.train()[i];
  Json row = Json::array();
  row.push_back(item.name);
  row.push_back(static_cast<int64_t>(item.channel));
  row.push_back(name_of(item.op));
  row.push_back(job.train().is_spine(i) ? job.train().spine[i].micro_batch : -1);
  row.push_back(span.start_ns - origin_ns);
  row.push_back(span.duration_ns());
  int64_t sent_bytes = 0;
  if (is_communication(item.op)) {
    const Task& task = job.train().task(i);
    sent_bytes = comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis),
                                  task.elems, task.dtype);
  }
  row.push_back(sent_bytes);
  row.push_back(item.cost.flops);
  row.push_back(item.cost.bytes);
  Json after = Json::array();
  for (const Point& point : item.after) after.push_back(static_cast<int64_t>(point.item));
  row.push_back(std::move(after));
  return row;
}

/// Returns the changes of the bytes in use, at the starts of items in virtual time.
Json memory_use_json(const Job& job, const std::vector<comm::Span>& spans, int64_t origin_ns) {
  std::vector<std::pair<int64_t, std::array<int64_t, kOwners>>> rows;
  const auto in_use = memory_in_use(job);
  int64_t latest_ns = 0;
  for (size_t position = 0; position < in_use.size(); ++position) {
    latest_ns = std::max(latest_ns, spans[job.train().order[position]].start_ns - origin_ns);
    if (rows.empty() || rows.back().second != in_use[position]) rows.emplace_back(latest_ns, in_use[position]);
  }
  Json table = Json::array();
  for (const auto& [ns, bytes] : rows) {
    Json row = Json::array();
    row.push_back(ns);
    for (int64_t of_owner : bytes) row.push_back(of_owner);
    table.push_back(std::move(row));
  }
  return table;
}

Json stage_json(const Job& job, const comm::RooflinePrice& price, const Machine& machine) {
  Json stage = Json::object();
  stage["memory_bytes"] = Json::object();
  for (int owner = 0; owner < kOwners; ++owner)
    stage["memory_bytes"][name_of(static_cast<Owner>(owner))] = job.buffers.bytes(static_cast<Owner>(owner));
  stage["channels"] = Json::array();
  for (ChannelId c = 0; c < job.channels.size(); ++c) stage["channels"].push_back(channel_json(job, c, price, machine));
  return stage;
}

/// Adds the items of every stage with their times in the second step.
void add_items(Json& record, const FinishedJob& finished, const comm::RooflinePrice& price) {
  const Job& job = *finished.job;
  const comm::Rehearsal played =
      comm::rehearse(job.mesh, job.channels, runs_of(finished.stages, 3), price,
                     {.gate = comm::Gate::launch_order, .splits_idle = false, .replayed = finished.replay.taken});
  if (!played.finished) return;
  record["step_ns"] = played.ranks.front().step_period_ns(1);
  int64_t origin_ns = INT64_MAX;
  for (const comm::RankTimes& rank : played.ranks) origin_ns = std::min(origin_ns, rank.runs[1][0].start_ns);
  record["item_columns"] = Json::array();
  for (const char* column :
       {"name", "channel", "op", "micro_batch", "begin_ns", "ns", "sent_bytes", "flops", "bytes", "after"})
    record["item_columns"].push_back(column);
  Json::Array stages = record.at("stages").as_array();
  for (size_t s = 0; s < finished.stages.size(); ++s) {
    const Job& of_stage = *finished.stages[s];
    const std::vector<comm::Span>& spans = played.ranks[s].runs[1];
    stages[s]["items"] = Json::array();
    for (ItemId i = 0; i < of_stage.train().size(); ++i)
      stages[s]["items"].push_back(item_json(of_stage, i, spans[i], origin_ns));
    stages[s]["memory_in_use"] = memory_use_json(of_stage, spans, origin_ns);
  }
  record["stages"] = Json(std::move(stages));
}

}  // namespace

std::string plan_record(const RunConfig& config, const Machine& machine, const FinishedJob& finished) {
  const Job& job = *finished.job;
  const comm::RooflinePrice price = price_of(config, machine, job.mesh);
  Json record = Json::object();
  record["format"] = 1;
  record["plan_hash"] = fmt::format("{:016x}", finished.proof.order_hash);
  record["machine"]["name"] = machine.name;
  const double peak = config.train.dtype == DType::bf16 ? machine.flops_per_second_bf16 : machine.flops_per_second_f32;
  record["machine"]["flops_per_second"] = peak * machine.matmul_efficiency;
  record["machine"]["bytes_per_second"] = machine.bytes_per_second;
  record["machine"]["launch_ns"] = machine.launch_ns;
  record["ranks_per_node"] = machine.ranks_per_node;
  record["owners"] = Json::array();
  for (int owner = 0; owner < kOwners; ++owner) record["owners"].push_back(name_of(static_cast<Owner>(owner)));
  record["stages"] = Json::array();
  int64_t items = 0;
  for (const auto& stage : finished.stages) {
    record["stages"].push_back(stage_json(*stage, price, machine));
    items += static_cast<int64_t>(stage->train().size());
  }
  if (job.mesh.world() <= kMostRecordedRanks) {
    Json axes = Json::array(), ranks = Json::array();
    for (const MeshAxis& row : kMeshAxes) axes.push_back(name_of(row.axis));
    for (int rank = 0; rank < job.mesh.world(); ++rank) {
      const Coordinates at = job.mesh.coordinates(rank);
      Json row = Json::array();
      for (const MeshAxis& axis : kMeshAxes) row.push_back(static_cast<int64_t>(at.*axis.at));
      ranks.push_back(std::move(row));
    }
    record["axes"] = std::move(axes);
    record["coordinates"] = std::move(ranks);
  }
  if (items <= kMostRecordedItems) add_items(record, finished, price);
  return record.dump() + "\n";
}

}  // namespace slipstream::planner
