// SPDX-License-Identifier: Apache-2.0
// Data parallelism as tasks: one collective per bucket at the moment its gradients are ready.

#include <fmt/core.h>

#include "engine/plan/passes/passes.h"

namespace slipstream {
namespace {

/// Reduces a bucket in place, whole or (ZeRO) each rank its part. In another dtype on the wire: cast, reduce, cast back, all on the channel's stream.
Point reduce_bucket(const Job& job, Plan& plan, ChannelId channel, int bucket, Point ready) {
  const Bucket& b = job.layout.buckets[static_cast<size_t>(bucket)];
  const BucketHome& home = job.homes[static_cast<size_t>(bucket)];
  const Slice gradients = home.gradients;
  const DType wire = job.options.wire_dtype;
  Task reduce;
  reduce.name = fmt::format("all_reduce.bucket{}", bucket);
  reduce.channel = channel;
  reduce.op = Op::all_reduce;
  reduce.dtype = wire;
  reduce.elems = b.elems;
  reduce.algorithm = job.options.algorithm;
  reduce.bucket = bucket;
  if (wire == DType::f32) {
    reduce.reads = reduce.writes = {gradients};
    reduce.after = {ready};
    if (job.options.zero_stage > 0) {
      reduce.name = fmt::format("reduce_scatter.bucket{}", bucket);
      reduce.op = Op::reduce_scatter;
      reduce.elems = home.shard_elems;
      reduce.writes = {home.gradient};
    }
    const Point inside = append_task(plan, reduce);
    return job.is_hybrid() ? reduce_across(job, plan, bucket, inside) : inside;
  }
  const Slice on_wire = flat_slice(job.ids.wire, b.offset_elems, b.elems, wire);
  Task down;
  down.name = fmt::format("cast_down.bucket{}", bucket);
  down.channel = channel;
  down.op = Op::cast;
  down.dtype = wire;
  down.elems = b.elems;
  down.bucket = bucket;
  down.cost = {0, b.elems * (4 + size_of(wire))};
  Task up = down;
  up.name = fmt::format("cast_up.bucket{}", bucket);
  up.dtype = DType::f32;
  down.reads = up.writes = {gradients};
  down.writes = up.reads = {on_wire};
  down.after = {ready};
  reduce.reads = reduce.writes = {on_wire};
  reduce.after = {append_task(plan, down)};
  up.after = {append_task(plan, reduce)};
  return append_task(plan, up);
}

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

Point reduce_across(const Job& job, Plan& plan, int bucket, Point inside) {
  const BucketHome& home = job.homes[static_cast<size_t>(bucket)];
  Task task;
  task.name = fmt::format("reduce_across.bucket{}", bucket);
  task.channel = job.channel("reduce_across");
  task.op = Op::all_reduce;
  task.elems = home.shard_elems;
  task.algorithm = job.options.algorithm;
  task.bucket = bucket;
  task.reads = task.writes = {home.gradient};
  task.after = {inside};
  return append_task(plan, std::move(task));
}

Reduced data_parallel_pass(const Job& job, const SpineMap& spine, Plan& plan) {
  Reduced reduced;
  const bool alone = job.mesh.group_size(Axis::replica) == 1;
  // `naive` and `flat` communicate after the backward pass; the others as soon as a bucket is ready.
  const bool at_the_end = job.options.way == ReduceWay::naive || job.options.way == ReduceWay::flat;
  const ChannelId channel = alone ? 0 : job.channel("reduce");
  for (size_t b = 0; b < job.layout.buckets.size(); ++b) {
    const Point ready{spine.backward[job.layout.buckets[b].ready_position]};
    if (alone)
      reduced.buckets.push_back({ready});
    else if (job.homes[b].gradients.size_bytes == 0)
      reduced.buckets.push_back({});  // Residency reduces it from its slot
    else
      reduced.buckets.push_back(
          {reduce_bucket(job, plan, channel, static_cast<int>(b), at_the_end ? spine.last() : ready)});
  }
  if (!job.model.tied.split) return reduced;
  // The piece that embeds is the last one backward.
  reduced.tied = alone ? std::vector<Point>{spine.last()} : share_tied(job, plan, channel, spine.last());
  return reduced;
}

}  // namespace slipstream
