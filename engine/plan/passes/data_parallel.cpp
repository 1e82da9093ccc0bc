// SPDX-License-Identifier: Apache-2.0
// Data parallelism as tasks: one collective per bucket at the moment its gradients are ready.

#include <fmt/core.h>

#include "engine/plan/passes/passes.h"
#include "engine/plan/passes/wire.h"

namespace slipstream {
namespace {

/// The embedding's share of a tied table: ids and rows gathered from all ranks, or the dense table summed.
std::vector<Point> share_tied(const Job& job, Plan& plan, ChannelId channel, Point ready) {
  const TiedEmbedding& tied = job.model.tied;
  const auto collective = [&](const std::string& name, Op op, Slice from, Slice to, DType dtype, int64_t elems) {
    Task task;
    task.name = name;
    task.channel = channel;
    task.op = op;
    task.dtype = dtype;
    task.elems = elems;
    task.algorithm = job.options.algorithm;
    task.reads = {from};
    task.writes = {to};
    task.after = {ready};
    return append_task(plan, task);
  };
  if (!tied.as_rows) {
    const Slice dense = job.buffers.whole(tied.dense);
    return {collective("all_reduce.embedding", Op::all_reduce, dense, dense, DType::f32, tied.vocab * tied.width)};
  }
  const auto part = [&](BufferId buffer, int64_t size_bytes) {
    return Slice{buffer, job.mesh.index_in_group(Axis::replica, job.options.rank) * size_bytes, size_bytes};
  };
  return {collective("all_gather.embedding_ids", Op::all_gather, part(tied.row_ids, tied.capacity * 4),
                     job.buffers.whole(tied.row_ids), DType::i32, tied.capacity),
          collective("all_gather.embedding_rows", Op::all_gather, part(tied.rows, tied.capacity * tied.width * 4),
                     job.buffers.whole(tied.rows), DType::f32, tied.capacity * tied.width)};
}

}  // namespace

Reduced data_parallel_pass(const Job& job, const SpineMap& spine, Plan& plan) {
  Reduced reduced;
  const bool alone = job.mesh.group_size(Axis::replica) == 1;
  // `naive` and `flat` communicate after the backward pass; the others as soon as a bucket is ready.
  const bool at_the_end = job.options.way == ReduceWay::naive || job.options.way == ReduceWay::flat;
  for (size_t b = 0; b < job.layout.buckets.size(); ++b) {
    const Point ready{spine.backward[job.layout.buckets[b].ready_position]};
    if (alone) {
      reduced.buckets.push_back({ready});
      continue;
    }
    reduced.buckets.push_back({});
    const BucketHome& home = job.homes[b];
    if (home.gradients.size_bytes == 0 || job.layout.buckets[b].persistent) continue;  // Residency reduces it, micro-batch by micro-batch
    const Point begin = at_the_end ? spine.last() : ready;
    Point done = reduce(job, plan, reduced, {.label = fmt::format("bucket{}", b), .bucket = b, .from = home.gradients, .to = home.gradient, .ready = begin,
                                             .to_free = {}, .before = {}});
    if (job.is_hybrid()) done = reduce_across(job, plan, reduced, b, begin, done);
    reduced.buckets.back() = {done};
  }
  if (!job.model.tied.split) return reduced;
  // The piece that embeds is the last one backward.
  reduced.tied = alone ? std::vector<Point>{spine.last()} : share_tied(job, plan, job.channel("reduce"), spine.last());
  return reduced;
}

}  // namespace slipstream
