// SPDX-License-Identifier: Apache-2.0
// The planner: places memory, then runs the passes in order.

#include "engine/plan/job.h"

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/passes/passes.h"

namespace slipstream {
namespace {

constexpr int64_t kScalarsBytes = 16;  // kernels::AdamwScalars

void place_memory(Job& job) {
  const int64_t elems = job.layout.flat_elems;
  const auto add = [&](const char* name, int64_t size_bytes, Owner owner) {
    return job.buffers.add({.name = name, .size_bytes = size_bytes, .owner = owner});
  };
  JobBuffers& ids = job.ids;
  ids.parameters = add("parameters", bytes_of(elems, job.model.dtype), Owner::parameters);
  ids.master = job.model.dtype == DType::f32 ? ids.parameters : add("master", 4 * elems, Owner::optimizer);
  ids.gradients = add("gradients", 4 * elems, Owner::gradients);
  ids.momentum = add("momentum", 4 * elems, Owner::optimizer);
  ids.variance = add("variance", 4 * elems, Owner::optimizer);
  if (job.options.wire_dtype != DType::f32 && job.mesh.group_size(Axis::data) > 1)
    ids.wire = add("wire", bytes_of(elems, job.options.wire_dtype), Owner::communication);
  ids.scalars_next = add("scalars.next", kScalarsBytes, Owner::batch);
  ids.scalars = add("scalars", kScalarsBytes, Owner::optimizer);
  ids.norm_parts = add("norm.parts", 8 * static_cast<int64_t>(job.layout.parts.size()), Owner::optimizer);
  ids.norm = add("norm", 8, Owner::optimizer);
  ids.report = add("report", 16 * kReportSlots, Owner::batch);
  ids.batch_next = job.buffers.find("batch.next");
  for (size_t p = 0; p < job.model.parameters.size(); ++p) {
    const ParameterSpec& parameter = job.model.parameters[p];
    const int64_t offset = job.layout.parameter_offsets[p];
    job.buffers.set_view(parameter.value, flat_slice(ids.parameters, offset, parameter.elems, job.model.dtype));
    job.buffers.set_view(parameter.gradient, flat_slice(ids.gradients, offset, parameter.elems, DType::f32));
  }
  const TiedEmbedding& tied = job.model.tied;
  if (!tied.as_rows) return;
  const int64_t index = job.mesh.index_in_group(Axis::data, job.options.rank);
  const auto mine = [&](const char* name, BufferId all, int64_t size_bytes) {
    job.buffers.set_view(job.buffers.find(name), {all, index * size_bytes, size_bytes});
  };
  mine("embedding.row_ids.mine", tied.row_ids, tied.capacity * 4);
  mine("embedding.rows.mine", tied.rows, tied.capacity * tied.width * 4);
}

void add_channels(Job& job) {
  job.channels = {{"compute", Axis::self}, {"h2d", Axis::self}};
  if (!job.options.update_on_spine) job.channels.push_back({"update", Axis::self});
  if (job.mesh.group_size(Axis::data) == 1) return;
  job.channels.push_back({"reduce", Axis::data});
  job.channels.push_back({"scalars", Axis::data});
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

Job build_job(ModelSpec model, Buffers buffers, const PlanOptions& options) {
  Job job{.options = options, .mesh = Mesh(options.sizes, options.mesh_order), .model = std::move(model),
          .buffers = std::move(buffers)};
  job.layout = place_parameters(job.model, {.way = options.way, .bucket_bytes = options.bucket_bytes,
                                            .first_bucket_bytes = options.first_bucket_bytes,
                                            .group_size = job.mesh.group_size(Axis::data)});
  place_memory(job);
  add_channels(job);

  job.train.kind = "train";
  const SpineMap spine = spine_pass(job, job.train);
  const Reduced reduced = data_parallel_pass(job, spine, job.train);
  update_pass(job, reduced, job.train);
  report_and_input_pass(job, spine, job.train);
  seal(job.train);

  job.evaluate.kind = "evaluate";
  for (uint32_t piece : job.model.evaluate) job.evaluate.spine.push_back(spine_item(job, piece, 0, ""));

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
