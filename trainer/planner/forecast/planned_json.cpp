// SPDX-License-Identifier: Apache-2.0
// Writes what slipstream plan and slipstream check print with --json.

#include "comm/link.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "engine/plan/memory.h"
#include "trainer/planner/forecast/advice.h"
#include "trainer/planner/forecast/forecast.h"
#include "trainer/planner/forecast/nccl_report.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/forecast/planned.h"
#include "trainer/planner/forecast/software_memory.h"

namespace slipstream::planner {
namespace {

Json notes_json(const Planned& planned) {
  Json notes = Json::array();
  for (const std::string& note : notes_of(planned)) notes.push_back(note);
  return notes;
}

Json memory_json(const Planned& planned) {
  const Job& largest = largest_stage(planned);
  Json memory = Json::object();
  for (int owner = 0; owner < kOwners; ++owner)
    if (largest.buffers.is_on_device(static_cast<Owner>(owner)))
      memory[name_of(static_cast<Owner>(owner))] = largest.buffers.bytes(static_cast<Owner>(owner));
  for (const ExtraMemory& row : extra_memory_of_largest(planned)) memory[row.owner] = row.size_bytes;
  memory["total"] = most_bytes(planned);
  return memory;
}

Json checkpoint_json(const CheckpointCosts& costs) {
  Json json = Json::object();
  json["disk_bytes"] = costs.disk_bytes;
  json["host_bytes_per_rank"] = costs.rank_bytes;
  json["host_bytes_per_host"] = costs.host_bytes;
  if (costs.added_ns) json["added_ms"] = static_cast<double>(*costs.added_ns) / 1e6;
  json["writer_ms"] = static_cast<double>(costs.writer_ns) / 1e6;
  if (costs.write_seconds) json["write_seconds"] = *costs.write_seconds;
  return json;
}

Json keeping_json(const KeepingCosts& costs) {
  Json json = Json::object();
  json["interval"] = costs.interval;
  json["to_holder"] = static_cast<int64_t>(costs.to_holder);
  json["sent_bytes"] = costs.sent_bytes;
  json["host_bytes_per_rank"] = costs.rank_bytes;
  json["host_bytes_per_host"] = costs.host_bytes;
  if (costs.added_ns) json["added_ms"] = static_cast<double>(*costs.added_ns) / 1e6;
  return json;
}

Json tasks_json(const Job& job) {
  Json tasks = Json::array();
  for (ItemId i = static_cast<ItemId>(job.train().spine.size()); i < job.train().size(); ++i) {
    const Task& task = job.train().task(i);
    Json row = Json::object();
    row["name"] = task.name;
    row["op"] = name_of(task.op);
    row["channel"] = job.channels[task.channel].name;
    row["elems"] = task.elems;
    row["wire_bytes"] = comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis),
                                         task.elems, task.dtype);
    Json after = Json::array();
    for (const Point& point : task.after) after.push_back(job.train()[point.item].name);
    row["after"] = after;
    tasks.push_back(row);
  }
  return tasks;
}

Json rehearsed_json(const Planned& planned, const comm::Rehearsal& rehearsal, const StepTotals& totals,
                    const RunForecast& run) {
  Json json = Json::object();
  json["step_ms"] = totals.step_ms;
  if (run.low_ms > 0) {
    json["step_ms_low"] = run.low_ms;
    json["step_ms_high"] = run.high_ms;
  }
  json["mfu"] = run.mfu > 0 ? Json(run.mfu) : Json();
  json["tokens_per_s_per_rank"] = run.tokens_per_s_of_rank;
  json["comm_ms"] = totals.communication_ms;
  json["exposed_ms"] = totals.exposed_ms;
  json["bubble_ms"] = totals.bubble_ms;
  const StepShares shares = shares_of(planned, rehearsal);
  json["bottleneck"] = name_of(shares.largest());
  for (size_t i = 0; i < shares.ms.size(); ++i) json["shares_ms"][name_of(static_cast<Bottleneck>(i))] = shares.ms[i];
  json["waits"] = Json::array();
  constexpr size_t kWaits = 5;
  for (const LongWait& wait : longest_waits(planned, rehearsal, kWaits)) {
    Json row = Json::object();
    row["waiter"] = wait.waiter;
    row["awaited"] = wait.awaited;
    row["ms"] = wait.ms;
    json["waits"].push_back(row);
  }
  for (const auto& [name, load] : totals.channels) {
    json["channels"][name]["busy_ms"] = load.busy_ms;
    json["channels"][name]["exposed_ms"] = load.exposed_ms;
  }
  return json;
}

}  // namespace

void print_plan_json(const Planned& planned, const comm::Rehearsal& rehearsal) {
  const Job& job = *planned.finished.job;
  Json json = Json::object();
  json["machine"] = planned.machine.name;
  json["machine_source"] = planned.machine_source;
  json["as"] = planned.machine.software.name;
  json["model"] = job.model.description;
  json["parameters"] = job.parameter_elems;
  json["ranks"] = job.mesh.world();
  json["layout"] = layout_json(job.mesh.sizes());
  json["micro_batches"] = planned.micro_batches;
  json["global_batch_size"] = planned.global_batch;
  if (planned.steady.planned > 0) json["planned_micro_batches"] = planned.steady.planned;
  if (const std::vector<int>& lags = job.schedule.shape.lags; !lags.empty()) {
    json["weight_gradient_lags"] = Json::array();
    for (int lag : lags) json["weight_gradient_lags"].push_back(static_cast<int64_t>(lag));
  }
  json["memory_bytes"] = memory_json(planned);
  json["memory_stage"] = largest_stage(planned).stage();
  for (const ExtraMemory& row : memory_of_software(planned.config, planned.machine.software))
    json["software_memory_bytes"][row.owner] = row.size_bytes;
  json["fits"] = fits(planned);
  if (planned.config->checkpoint.interval + planned.config->checkpoint.interval_minutes > 0)
    json["checkpoint"] = checkpoint_json(checkpoint_costs_of(planned));
  if (planned.config->checkpoint.peer_interval > 0) json["peer_snapshots"] = keeping_json(keeping_costs_of(planned));
  const StepTotals totals = totals_of(planned, rehearsal);
  json["wire_bytes"]["sent"] = totals.wire.sent;
  json["wire_bytes"]["theory"] = totals.wire.theory;
  json["notes"] = notes_json(planned);
  json["update"]["double_buffer"] = job.options.double_buffer;
  json["update"]["on_compute_stream"] = job.update_on_spine;
  if (const Replay& replay = planned.finished.replay; replay.graph_ns > 0) {
    json["graph"]["taken"] = replay.taken;
    json["graph"]["step_ms"] = static_cast<double>(replay.graph_ns) / 1e6;
    json["graph"]["task_by_task_ms"] = static_cast<double>(replay.task_by_task_ns) / 1e6;
    json["graph"]["launches_ms"] = static_cast<double>(replay.launches_ns()) / 1e6;
  }
  json["bucket_size_bytes"] = job.options.bucket_bytes;
  json["recompute"]["how"] = name_of(job.recomputed.how);
  json["recompute"]["layers"] = job.options.recompute_layers;
  json["recompute"]["saved_bytes"] = job.recomputed.saved_bytes;
  json["recompute"]["flops_again"] = job.recomputed.paid.flops;
  json["tasks"] = tasks_json(job);
  if (const Engines& engines = planned.finished.engines; !engines.channels.empty())
    json["engines"] = engines_json(engines);
  if (!planned.nccl_table.empty()) {
    json["nccl"]["table"] = planned.nccl_table;
    json["nccl"]["choices"] = Json::array();
    for (const std::string& line : nccl_choices(job, planned.nccl)) json["nccl"]["choices"].push_back(line);
  }
  json["spine_items"] = static_cast<int64_t>(job.train().spine.size());
  // A plan with fewer micro-batches is not the plan of the run.
  json["plan_hash"] =
      planned.steady.planned > 0 ? Json() : Json(fmt::format("{:016x}", planned.finished.proof.order_hash));
  if (rehearsal.finished) {
    const RunForecast run = run_forecast(planned, totals.step_ms);
    json["rehearsed"] = rehearsed_json(planned, rehearsal, totals, run);
    json["run"]["steps"] = planned.config->train.steps;
    json["run"]["days"] = run.days;
    json["run"]["rank_hours"] = run.rank_hours;
  }
  print_result("{}\n", json.dump(2));
}

void print_proof_json(const Planned& planned) {
  const comm::Proof& proof = planned.finished.proof;
  Json json = Json::object();
  json["machine"] = planned.machine.name;
  json["machine_source"] = planned.machine_source;
  json["holds"] = proof.holds();
  json["deadlock"] = proof.deadlock.empty() ? Json() : Json(proof.deadlock);
  Json hazards = Json::array();
  for (const comm::Hazard& hazard : proof.hazards) hazards.push_back(hazard.sentence());
  json["hazards"] = hazards;
  json["hazard_count"] = proof.hazard_count;
  Json incomplete = Json::array();
  for (const comm::Incomplete& each : proof.reductions.found) incomplete.push_back(each.sentence());
  json["incomplete_sums"] = incomplete;
  json["items"] = proof.items;
  json["waits"] = proof.waits;
  json["waits_between_steps"] = proof.seam_waits;
  json["notes"] = notes_json(planned);
  json["plan_hash"] = fmt::format("{:016x}", proof.order_hash);
  json["memory_bytes"] = most_bytes(planned);
  json["fits"] = fits(planned);
  print_result("{}\n", json.dump(2));
}

}  // namespace slipstream::planner
