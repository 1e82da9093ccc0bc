// SPDX-License-Identifier: Apache-2.0
// The ends of a step: the results that the host will read, and the batch of the next step.

#include "engine/plan/passes/passes.h"

namespace slipstream {

std::vector<Point> loss_pass(const Job& job, const SpineMap& spine, Plan& plan) {
  if (job.ids.loss_sum == job.model.loss) return {};
  // Stages without the head add zero.
  Task task;
  task.name = "all_reduce.loss";
  task.channel = job.channel(Role::scalars);
  task.op = Op::all_reduce;
  task.dtype = DType::f64;
  task.elems = 1;
  task.reads = {job.buffers.whole(job.model.loss)};
  task.writes = {job.buffers.whole(job.ids.loss_sum)};
  if (spine.loss) task.after = {{*spine.loss}};
  return {append_task(plan, task)};
}

void report_and_input_pass(const Job& job, const std::vector<Point>& loss, const std::vector<Point>& last, Plan& plan) {
  Task report;
  report.name = "report";
  report.op = Op::report;
  report.reads = {job.buffers.whole(job.ids.loss_sum), job.buffers.whole(job.ids.norm)};
  report.writes = {job.buffers.whole(job.ids.report)};
  report.cost = {0, 2 * 8 * (1 + kNormDoubles)};
  report.after = loss;
  report.after.insert(report.after.end(), last.begin(), last.end());
  // The norm is included if it is computed off the spine.
  for (ItemId t = 0; t < plan.tasks.size(); ++t)
    for (const Slice& write : plan.tasks[t].writes)
      if (write.buffer == job.ids.norm) report.after.push_back({kTaskBit + t});
  append_local(plan, true, kComputeChannel, std::move(report));

  Task load;
  load.name = "load_next_batch";
  load.channel = job.channel(Role::h2d);
  load.op = Op::load;
  const int64_t batch_bytes = job.buffers.stride_bytes(job.ids.batch_next) * job.buffers.instances(job.ids.batch_next);
  load.writes = {{job.ids.batch_next, 0, batch_bytes}, job.buffers.whole(job.ids.scalars_next)};
  load.cost = {0, 2 * batch_bytes};
  // The task follows all readers of the staged batch: the first spine item, and the copy of the scalars.
  for (ItemId i = 0; i < plan.spine.size(); ++i)
    for (const Slice& read : plan.spine[i].reads)
      if (read.buffer == job.ids.batch_next || read.buffer == job.ids.scalars_next) load.after.push_back({i});
  for (ItemId t = 0; t < plan.tasks.size(); ++t)
    for (const Slice& read : plan.tasks[t].reads)
      if (read.buffer == job.ids.scalars_next) load.after.push_back({kTaskBit + t});
  append_task(plan, std::move(load));
}

}  // namespace slipstream
