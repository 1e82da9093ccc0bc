// SPDX-License-Identifier: Apache-2.0
// Prints slipstream plan and slipstream check as text.

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/ranges.h>

#include "comm/link.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "engine/plan/memory.h"
#include "trainer/planner/forecast/advice.h"
#include "trainer/planner/forecast/alternatives.h"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/forecast/forecast.h"
#include "trainer/planner/forecast/nccl_report.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/forecast/planned.h"
#include "trainer/planner/forecast/software_memory.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {
namespace {

/// Returns the machine's name with its source, such as "h100x8 (--machine)". This host's name has no source.
std::string machine_text(const Planned& planned) {
  const std::string& software = planned.machine.software.name;
  return (planned.machine_source == "this host"
              ? planned.machine.name
              : fmt::format("{} ({})", planned.machine.name, planned.machine_source)) +
         (software == Software{}.name ? "" : ", as " + software + " runs");
}

/// Prints the saving of sending the two shares of a tied table's gradient separately.
void print_tied(const Planned& planned) {
  const Job& job = *planned.finished.job;
  if (!job.model.tied.split || !job.reduces()) return;
  RunConfig config = *planned.config;
  config.overlap.split_tied_embedding = false;
  Planned whole = planned;
  whole.config = resolve(config, planned.config.facts());
  JobRequest request = request_of(whole);
  request.proves = false;
  whole.finished = build_proved_job(request);
  const comm::Rehearsal both[] = {rehearse_step(planned), rehearse_step(whole)};
  if (!both[0].finished || !both[1].finished) return;
  const comm::RankTimes &apart = both[0].ranks.front(), &together = both[1].ranks.front();
  print_result(
      "         rehearsed: {:.2f} ms exposed in a step of {:.2f} ms, with overlap.split_tied_embedding = false {:.2f} "
      "in {:.2f} ms\n",
      ms_of_a_step(apart.exposed_ns), static_cast<double>(apart.step_period_ns(1)) / 1e6,
      ms_of_a_step(together.exposed_ns), static_cast<double>(together.step_period_ns(1)) / 1e6);
}

/// Prints the values that the other program keeps, which the plan above lacks.
void print_software_memory(const Planned& planned) {
  const std::vector<ExtraMemory> rows = memory_of_software(planned.config, planned.machine.software);
  if (rows.empty()) return;
  std::vector<std::string> parts;
  for (const ExtraMemory& row : rows) parts.push_back(fmt::format("{} {}", row.owner, format_bytes(row.size_bytes)));
  print_result("  in a run of {} (estimate): {}: {}\n", planned.machine.software.name, format_bytes(sum_of(rows)),
               fmt::join(parts, ", "));
}

/// Prints the table of the ZeRO paper for this model: a rank's bytes of parameters, gradients and optimizer states.
void print_zero_memory(const Planned& planned) {
  const std::vector<ZeroMemory> table = zero_memory(request_of(planned));
  if (table.empty()) return;
  const MeshSizes& sizes = planned.finished.job->mesh.sizes();
  std::string beside;  // the ranks of the other axes
  for (const MeshAxis& row : kMeshAxes)
    if (const int size = sizes.*row.size; size > 1 && row.axis != kFreeAxis.axis)
      beside += fmt::format(" x {} {}", name_of(row.axis), size);
  print_result("states of a rank by zero.stage and data ranks{}, as placed (and ZeRO's formula):\n  {:<6}", beside,
               "stage");
  int stage = -1;
  for (const ZeroMemory& row : table)
    if (row.stage == 0) print_result("{:>29}", counted(row.ranks, "rank"));
  for (const ZeroMemory& row : table) {
    if (row.stage != stage) print_result("\n  {:<6}", stage = row.stage);
    print_result("{:>29}", fmt::format("{} ({})", format_bytes(row.planned_bytes), format_bytes(row.formula_bytes)));
  }
  const auto outside_bytes = [&](int of_stage) {
    return std::find_if(table.begin(), table.end(), [&](const ZeroMemory& row) { return row.stage == of_stage; })
        ->outside_bytes;
  };
  print_result("\n");
  if (outside_bytes(2) > 0)
    print_result(
        "  the table shared by embedding and head stays whole: {} of gradients in stage 2, {} of gradients and "
        "parameters in stage 3\n",
        format_bytes(outside_bytes(2)), format_bytes(outside_bytes(3)));
}

/// Prints the link of each group, and the ranks of the first group.
void print_groups(const Planned& planned) {
  const Mesh& mesh = planned.finished.job->mesh;
  const Machine& machine = planned.machine;
  const int64_t emulated = planned.config->comm.emulate.bandwidth_bytes_per_second;
  if (mesh.world() > 1)
    print_result("groups:  order {}, nodes of {}\n", planned.config->parallel.order,
                 counted(machine.ranks_per_node, "rank"));
  std::vector<Axis> axes;
  for (const MeshAxis& row : kMeshAxes) axes.push_back(row.axis);
  if (mesh.group_size(Axis::data_outer) > 1) axes.insert(axes.end(), {Axis::data_inner, Axis::data_outer});
  for (Axis axis : axes) {
    const int size = mesh.group_size(axis);
    if (size == 1) continue;
    const bool across = mesh.crosses_nodes(axis, machine.ranks_per_node);
    const std::vector<int> ranks = mesh.group(axis, 0);
    print_result("  {:<11}{:>5} ranks, {:<16} {}/s, such as ranks {} {}{}\n", name_of(axis), size,
                 emulated > 0 ? "comm.emulate:"
                 : across     ? "across nodes:"
                              : "inside a node:",
                 format_bytes(emulated > 0 ? emulated
                              : across     ? machine.inter_bytes_per_second
                                           : machine.intra_bytes_per_second),
                 ranks[0], ranks[1], size > 2 ? fmt::format(" ... {}", ranks.back()) : "");
  }
}

/// Returns the floating-point operations of a step on the compute stream.
int64_t step_flops(const Job& job) {
  int64_t flops = 0;
  for (const SpineItem& item : job.train().spine) flops += item.cost.flops;
  return flops;
}

/// Prints the saving and the cost of recomputation on the stage with the largest saving.
void print_recomputation(const Planned& planned) {
  const Job* most = planned.finished.job.get();
  for (const auto& stage : planned.finished.stages)
    if (stage->recomputed.saved_bytes > most->recomputed.saved_bytes) most = stage.get();
  const Recomputed& again = most->recomputed;
  if (again.how == Recomputation::none) return;
  print_result(
      "recompute: {}{} saves {} of activations; {} operations and {} of memory traffic run again in a step, {:.1f}% "
      "more "
      "operations{}\n",
      name_of(again.how),
      most->options.recompute_layers > 0
          ? fmt::format(" in {} of each part", counted(most->options.recompute_layers, "layer"))
          : "",
      format_bytes(again.saved_bytes), format_count(static_cast<double>(again.paid.flops)),
      format_bytes(again.paid.bytes),
      100 * static_cast<double>(again.paid.flops) /
          static_cast<double>(std::max<int64_t>(1, step_flops(*most) - again.paid.flops)),
      planned.finished.stages.size() > 1 ? fmt::format(" (stage {})", most->stage()) : "");
}

void print_sequence_parallelism(const Planned& planned) {
  const int ranks = planned.finished.job->mesh.group_size(Axis::tensor);
  if (!planned.config->parallel.sequence_parallel || ranks == 1) return;
  const int64_t saved = saved_by_sequence_parallelism(request_of(planned), planned.finished);
  print_result(
      "sequence parallel: each of {} ranks keeps its share of the tokens of residuals and norms, which saves {}\n",
      ranks, format_bytes(saved));
}

/// Returns "+1.25", and "0.00" without a sign for zero.
std::string signed_percent(double share) {
  const std::string text = fmt::format("{:+.2f}", 100 * share);
  return text.substr(1) == "0.00" ? "0.00" : text;
}

/// Prints the possible streams of the update, their memory and step times, and the choice for this device.kind.
void print_update_places(const Planned& planned, const comm::Rehearsal& rehearsal) {
  const Job& job = *planned.finished.job;
  const std::vector<UpdateOption> places =
      update_options(request_of(planned), planned.finished,
                     rehearsal.finished ? static_cast<double>(rehearsal.ranks.front().step_period_ns(1)) / 1e6 : 0);
  print_result("update (optimizer.double_buffer = {}):\n", field_text(*planned.config, "optimizer.double_buffer"));
  for (size_t i = 0; i < places.size(); ++i) {
    // Compares two copies with one copy on the same stream, during the next forward pass.
    const double before = places[i == 2 ? 1 : 0].step_ms;
    print_result("  {}{:<24}{:>12} of memory, step {:.2f} ms{}\n", places[i].is_planned ? "* " : "  ", places[i].name,
                 format_bytes(places[i].memory_bytes), places[i].step_ms,
                 i == 0 ? ""
                        : fmt::format(" ({} % against {})", signed_percent(places[i].step_ms / before - 1),
                                      i == 2 ? "one copy there" : "the compute stream"));
  }
  if (!planned.config.on_gpus())
    print_result("    on a CPU an update takes cores from compute on any stream; the other rehearsals ignore this\n");
  if (job.sharding().parameters)
    print_result("    double-buffered: not with zero.stage = 3, where no update waits for a reader of weights\n");
}

/// Prints the launch mode of steps, with the rehearsed times of both modes.
void print_replay(const Planned& planned) {
  const Replay& replay = planned.finished.replay;
  if (replay.graph_ns == 0) return;
  print_result(
      "graph:   device.graph = {}: steps are launched {}; rehearsed {:.2f} ms with a graph's barrier after each step, "
      "{:.2f} ms without; {} launches of {} take the host {:.2f} ms{}\n",
      field_text(*planned.config, "device.graph"), replay.taken ? "as one graph" : "task by task",
      static_cast<double>(replay.graph_ns) / 1e6, static_cast<double>(replay.task_by_task_ns) / 1e6, replay.launches,
      format_ns(replay.launch_ns), static_cast<double>(replay.launches_ns()) / 1e6,
      replay.is_too_large() && !replay.taken
          ? fmt::format("; graphs of more than {} launches would take memory that the plan does not count",
                        Replay::kMostLaunches)
          : "");
}

/// Returns "compute 71 %, bandwidth 20 %, ...": the largest share first, without those below 1 %.
std::string shares_text(const StepShares& shares) {
  std::vector<size_t> order(shares.ms.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return shares.ms[a] > shares.ms[b]; });
  std::string text;
  for (size_t i : order)
    if (const double percent = 100 * shares.ms[i] / std::max(1e-9, shares.sum_ms()); percent >= 1)
      text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name_of(static_cast<Bottleneck>(i)), percent);
  return text;
}

/// Prints what limits the step, the longest waits, and changes that shorten it.
void print_advice(const Planned& planned, const comm::Rehearsal& rehearsal) {
  constexpr double kWorthPrinting = 0.005;  // the share of the step from which a cause is printed
  constexpr size_t kPrinted = 3;
  const comm::RankTimes& times = rehearsal.ranks.front();
  const double step_ms = static_cast<double>(times.step_period_ns(1)) / 1e6;
  print_result("bottleneck: {}\n", shares_text(shares_of(planned, rehearsal)));
  const LargestExposed largest = largest_exposed(planned, rehearsal);
  const bool exposes = !largest.channel.empty() && ms_of_a_step(times.exposed_ns) >= kWorthPrinting * step_ms;
  if (exposes)
    print_result("exposed: {:.2f} of {:.2f} ms on channel {}{}; the longest wait is {:.2f} ms for {}{}\n",
                 largest.exposed_ms, largest.busy_ms, largest.channel, largest.crosses_nodes ? " between nodes" : "",
                 largest.task_ms, largest.task,
                 largest.under_last_of > 1
                     ? fmt::format("; only the last of {} micro-batches can hide them", largest.under_last_of)
                     : "");
  if (!exposes && ms_of_a_step(times.bubble_ns) < kWorthPrinting * step_ms) return;
  for (const LongWait& wait : longest_waits(planned, rehearsal, kPrinted))
    if (wait.ms >= kWorthPrinting * step_ms)
      print_result("wait:    {} waits {:.2f} ms for {}\n", wait.waiter, wait.ms, wait.awaited);
  std::vector<Alternative> faster = faster_alternatives(planned, rehearsal);
  if (faster.size() > kPrinted) faster.resize(kPrinted);
  const double now_ms = totals_of(planned, rehearsal).step_ms;
  for (const Alternative& change : faster)
    print_result("try:     --set {}: rehearsed {:.2f} ms, {:.2f} ms exposed{}\n", fmt::join(change.sets, " --set "),
                 change.step_ms, change.exposed_ms,
                 change.global_batch == planned.global_batch
                     ? fmt::format("; gains {:.2f} ms", now_ms - change.step_ms)
                     : fmt::format(", for {} in a step", counted(change.global_batch, "sequence")));
}

/// Prints what the rehearsed step means for the whole run.
void print_run(const Planned& planned, const StepTotals& totals) {
  const RunForecast run = run_forecast(planned, totals.step_ms);
  const std::string interval =
      run.low_ms > 0 ? fmt::format("; 80 % interval of a step {:.2f} to {:.2f} ms", run.low_ms, run.high_ms) : "";
  print_result("run:     {} of {}: {:.3g} days, {:.4g} {}-hours; MFU {:.1f} %, {} tokens/s per {}{}\n",
               counted(planned.config->train.steps, "step"), format_count(run.tokens_of_step), run.days, run.rank_hours,
               run.rank_name, 100 * run.mfu, format_count(run.tokens_per_s_of_rank), run.rank_name, interval);
}

void print_checkpoint(const Planned& planned, const comm::Rehearsal& rehearsal) {
  const Checkpoint& options = planned.config->checkpoint;
  if (options.interval + options.interval_minutes == 0) return;
  const CheckpointCosts costs = checkpoint_costs_of(planned);
  print_result("checkpoint: {}\n", text_of(costs));
  const double step_seconds =
      rehearsal.finished ? static_cast<double>(rehearsal.ranks.front().step_period_ns(1)) / 1e9 : 0;
  if (const std::string problem = short_interval(options, costs.write_seconds, step_seconds); !problem.empty())
    print_result("note:    {}\n", problem);
}

void print_schedule(const Planned& planned, const comm::Rehearsal& rehearsal) {
  const Job& job = *planned.finished.job;
  const ScheduleShape& shape = job.schedule.shape;
  const Played played = played_schedule(planned.finished.stages, price_of(*planned.config, planned.machine, job.mesh),
                                        planned.finished.transfer_ns);
  print_result("{}\n", schedule_line(*planned.config, planned.finished.stages, played));
  for (const auto& stage : planned.finished.stages)
    print_result(
        "  stage {}: {} of memory, at most {} alive{}{}\n", stage->stage(), format_bytes(stage->buffers.total_bytes()),
        counted(peak_in_flight(stage->schedule, stage->stage()), "micro-batch"),
        shape.virtual_stages > 1 ? fmt::format(" in {} chunks together", shape.virtual_stages) : "",
        rehearsal.finished ? fmt::format("; rehearsed: bubble {:.2f} ms of a step",
                                         ms_of_a_step(rehearsal.ranks[static_cast<size_t>(stage->stage())].bubble_ns))
                           : "");
  // A column is at most as long as the shortest pass, so that no pass overwrites another one.
  int64_t tick_ns = std::max<int64_t>(1, played.makespan_ns / 48);
  for (const auto& passes : played.stages)
    for (const auto& pass : passes) tick_ns = std::min(tick_ns, std::max<int64_t>(1, pass.end_ns - pass.begin_ns));
  constexpr int64_t kWhole = 400, kEnds = 24;
  const int64_t columns = (played.makespan_ns + tick_ns / 2) / tick_ns;
  const bool is_whole = shape.micro_batches <= 16 && shape.stages <= 16 && columns <= kWhole;
  print_result("{}", schedule_table(job.schedule, played, tick_ns, is_whole ? 0 : kEnds));
  if (!is_whole && columns > 2 * kEnds)
    print_result("  of {} columns the first and the last {}; --schedule-csv FILE writes the whole schedule\n", columns,
                 kEnds);
}

void print_channels(const Planned& planned, const comm::Rehearsal& rehearsal, const StepTotals& totals) {
  print_result("channels:\n");
  for (const auto& [name, load] : totals.channels)
    print_result("  {:<14}{:>7} {}{:>14} sent per step{}\n", name, load.tasks, load.tasks == 1 ? "task " : "tasks",
                 format_bytes(load.bytes),
                 load.bytes > 0 && rehearsal.finished
                     ? fmt::format("; rehearsed: busy {:.2f} ms, {:.2f} exposed", load.busy_ms, load.exposed_ms)
                     : "");
  if (const auto lines = engine_lines(planned.finished.engines, planned.machine); !lines.empty()) {
    print_result("engines:\n");
    for (const std::string& line : lines) print_result("  {}\n", line);
  }
}

}  // namespace

void print_plan(const Planned& planned, const comm::Rehearsal& rehearsal) {
  const Job& job = *planned.finished.job;
  print_result("machine: {}, {} of memory for a rank\n", machine_text(planned),
               format_bytes(planned.machine.memory_bytes));
  print_result("model:   {}\n         {} parameters\n", job.model.description, job.parameter_elems);
  print_result("layout:  {} = {}\n", counted(job.mesh.world(), "rank"), text_of(job.mesh.sizes()));
  print_groups(planned);
  print_result("batch:   {} x {} per step, {} of {} on each rank\n", counted(planned.global_batch, "sequence"),
               counted(planned.config->train.sequence_length, "token"), counted(planned.micro_batches, "micro-batch"),
               job.model.batch);
  const StepTotals totals = totals_of(planned, rehearsal);
  if (const Steady& steady = planned.steady; steady.planned > 0)
    print_result(
        "         planned and rehearsed with {} and {} micro-batches, because every further {} add the same; --whole "
        "plans all\n",
        steady.planned, steady.planned + steady.round, steady.round);
  print_result("reduce:  {}, {}{}\n", name_of(job.options.reduce_mode),
               counted(std::ssize(job.layout.buckets), "bucket"),
               planned.chose_bucket_size
                   ? fmt::format("; overlap.bucket_size = \"auto\": {}", format_bytes(job.options.bucket_bytes))
                   : "");
  if (job.model.tied.split && job.reduces())
    print_result("         tied table: the head's share early in chunks, the embedding's share as {}\n",
                 job.model.tied.as_rows ? "ids and rows" : "a dense table");
  print_tied(planned);
  if (const std::string line = experts_line(planned.config); !line.empty()) print_result("experts: {}\n", line);
  const Job& largest = largest_stage(planned);
  print_result("memory of a rank{}:\n{}",
               planned.finished.stages.size() > 1 ? fmt::format(" (stage {}, which needs most)", largest.stage()) : "",
               memory_table(largest, extra_memory_of_largest(planned)));
  print_software_memory(planned);
  print_recomputation(planned);
  print_sequence_parallelism(planned);
  if (planned.finished.stages.size() > 1) print_schedule(planned, rehearsal);
  for (const std::string& remark : notes_of(planned)) print_result("note:    {}\n", remark);
  print_zero_memory(planned);
  print_update_places(planned, rehearsal);
  print_checkpoint(planned, rehearsal);
  if (planned.config->checkpoint.peer_interval > 0)
    print_result("peer snapshots: {}\n", text_of(keeping_costs_of(planned)));
  if (const WireBytes& wire = totals.wire; job.reduces())
    print_result("gradients and parameters on the wire: {} sent by a rank in a step; theory {} ({:.3f} of it)\n",
                 format_bytes(wire.sent), format_bytes(wire.theory),
                 static_cast<double>(wire.sent) / static_cast<double>(std::max<int64_t>(1, wire.theory)));
  print_channels(planned, rehearsal, totals);
  if (!planned.nccl_table.empty()) print_result("nccl:    {}\n", planned.nccl_table);
  for (const std::string& line : nccl_choices(job, planned.nccl)) print_result("  {}\n", line);
  print_result(
      "order:   {} and {} in a step; {} in all plans ({} implied ones pruned), {} between steps, plan {:016x}\n",
      counted(std::ssize(job.train().spine), "spine item"), counted(std::ssize(job.train().tasks), "task"),
      counted(planned.finished.proof.waits, "wait"), planned.finished.proof.pruned_count,
      planned.finished.proof.seam_waits, planned.finished.proof.order_hash);
  if (!rehearsal.finished) return;
  print_replay(planned);
  print_result("rehearsed step: {:.2f} ms, {} tokens/s; of {:.2f} ms communication {:.2f} ms exposed{}\n",
               totals.step_ms,
               format_count(1e3 * static_cast<double>(planned.global_batch * planned.config->train.sequence_length) /
                            totals.step_ms),
               totals.communication_ms, totals.exposed_ms,
               planned.finished.stages.size() > 1 ? fmt::format(", bubble {:.2f} ms", totals.bubble_ms) : "");
  print_run(planned, totals);
  print_advice(planned, rehearsal);
}

void print_proof(const Planned& planned) {
  const comm::Proof& proof = planned.finished.proof;
  print_result("machine: {}\n", machine_text(planned));
  print_result("deadlock:  {}\n",
               proof.deadlock.empty()
                   ? fmt::format("none under independent channels, launch order and serial launches, the first batch, "
                                 "steps{} and evaluations in a row",
                                 planned.finished.job->options.snapshots ? ", snapshots" : "")
                   : proof.deadlock);
  print_result("hazards:   {}\n", proof.hazard_count == 0
                                      ? fmt::format("none among {}, {}, {} between steps", counted(proof.items, "item"),
                                                    counted(proof.waits, "wait"), counted(proof.seam_waits, "wait"))
                                      : fmt::format("{}", proof.hazard_count));
  for (const comm::Hazard& hazard : proof.hazards) print_result("  {}\n", hazard.sentence());
  const comm::ReductionReport& reductions = proof.reductions;
  print_result("sums:      {}\n",
               reductions.found.empty()
                   ? fmt::format("complete at the update of {}, in the norm, in the loss and in {} of a checkpoint, "
                                 "through {} and {}",
                                 counted(reductions.parameters, "parameter"), counted(reductions.saved_arrays, "array"),
                                 counted(reductions.works, "work"), counted(reductions.tasks, "task"))
                   : fmt::format("{} of the plans compute with incomplete values", reductions.found.size()));
  for (const comm::Incomplete& incomplete : reductions.found) print_result("  {}\n", incomplete.sentence());
  print_result("order:     plan {:016x}, the same on all ranks\n", proof.order_hash);
  for (const std::string& remark : notes_of(planned)) print_result("note:      {}\n", remark);
  print_result("memory:    {} of {}\n", format_bytes(most_bytes(planned)), format_bytes(planned.machine.memory_bytes));
}

}  // namespace slipstream::planner
