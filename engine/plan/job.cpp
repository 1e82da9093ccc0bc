// SPDX-License-Identifier: Apache-2.0
// The planner: places memory, then runs the passes in order.

#include "engine/plan/job.h"

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/memory.h"
#include "engine/plan/passes/passes.h"
#include "engine/plan/passes/residency.h"

namespace slipstream {
namespace {

void add_channels(Job& job) {
  job.channels = {{"compute", Axis::self}, {"h2d", Axis::self}};
  if (!job.options.update_on_spine) job.channels.push_back({"update", Axis::self});
  if (job.mesh.group_size(Axis::data) == 1) return;
  job.channels.push_back({"reduce", job.shard_axis()});
  job.channels.push_back({"scalars", Axis::data});
  // Apart from "reduce": two collectives of one communicator never overlap each other.
  if (job.options.zero_stage > 0) job.channels.push_back({"gather", job.shard_axis()});
  // Across the groups that share: the sum of a shard. The squares of shards are summed inside.
  if (job.is_hybrid())
    for (const Channel& channel : {Channel{"reduce_across", Axis::data_outer}, Channel{"norm", Axis::data_inner}}) job.channels.push_back(channel);
}

}  // namespace

Slice flat_slice(BufferId buffer, int64_t offset_elems, int64_t elems, DType dtype) {
  return {buffer, bytes_of(offset_elems, dtype), bytes_of(elems, dtype)};
}

ChannelId Job::channel(const std::string& name) const {
  for (ChannelId c = 0; c < channels.size(); ++c)
    if (channels[c].name == name) return c;
  throw PlanError("[plan] there is no channel named {}.", name);
}

Job build_job(ModelSpec model, Buffers buffers, const PlanOptions& asked) {
  PlanOptions options = asked;
  if (options.sizes.data == 1 || options.sizes.data_inner == 1) options.zero_stage = 0;  // nobody to share with
  if (options.zero_stage == 2 && options.accumulate_unsharded) options.zero_stage = 1;   // which is what it comes to
  if (options.zero_stage > 0 && model.tied.split)
    throw PlanError("[plan] ZeRO keeps the shares of a tied table together: build the model with split_tied_embedding = false.");
  Job job{.options = options, .mesh = Mesh(options.sizes, options.mesh_order), .model = std::move(model),
          .buffers = std::move(buffers)};
  job.layout = place_parameters(job.model, {.way = options.way, .bucket_bytes = options.bucket_bytes,
                                            .first_bucket_bytes = options.first_bucket_bytes,
                                            .group_size = job.mesh.group_size(options.zero_stage > 0 ? job.shard_axis() : Axis::data),
                                            .sharded = options.zero_stage > 0, .by_layer = options.zero_stage >= 2});
  place_memory(job);
  add_channels(job);

  job.train.kind = "train";
  Residency residency(job);
  const SpineMap spine = spine_pass(job, residency, job.train);
  Reduced reduced = data_parallel_pass(job, spine, job.train);
  residency.append_tasks(job.train, &reduced);
  update_pass(job, reduced, job.train);
  report_and_input_pass(job, spine, job.train);
  seal(job.train);

  job.evaluate.kind = "evaluate";
  evaluate_pass(job, job.evaluate);
  seal(job.evaluate);

  job.prime.kind = "prime";
  for (const Task& task : job.train.tasks)
    if (task.op == Op::load) {
      job.prime.tasks.push_back(task);
      job.prime.tasks.back().after.clear();
    }
  return job;
}

std::string memory_table(const Job& job) {
  std::string table;
  for (int owner = 0; owner < kOwners; ++owner) {
    const int64_t size_bytes = job.buffers.bytes(static_cast<Owner>(owner));
    if (size_bytes > 0) table += fmt::format("  {:<14}{:>12}\n", name_of(static_cast<Owner>(owner)), format_bytes(size_bytes));
  }
  return table + fmt::format("  {:<14}{:>12}\n", "total", format_bytes(job.buffers.total_bytes()));
}

}  // namespace slipstream
