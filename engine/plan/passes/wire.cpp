// SPDX-License-Identifier: Apache-2.0
// Collectives of buckets, with their encoding and decoding.

#include "engine/plan/passes/wire.h"

#include <algorithm>

#include <fmt/core.h>

#include "engine/base/format.h"

namespace slipstream {
namespace {

/// A task for a bucket on a channel.
Task task_of(const Job& job, ChannelId channel, Op op, std::string name, size_t bucket) {
  Task task;
  task.name = std::move(name);
  task.channel = channel;
  task.op = op;
  task.bucket = static_cast<int32_t>(bucket);
  task.algorithm = job.options.algorithm;
  return task;
}

/// A local task that converts between floats and encoded data, in parts of `elems`.
Task coding(const Job& job, ChannelId channel, Op op, std::string name, size_t bucket, const Format& wire,
            int64_t elems, const Slice& from, const Slice& to) {
  Task task = task_of(job, channel, op, std::move(name), bucket);
  task.dtype = wire.element;
  task.format = wire;
  task.elems = elems;
  task.reads = {from};
  task.writes = {to};
  const int64_t values = (op == Op::encode ? to : from).size_bytes / encoded_bytes(elems, wire) * elems;
  task.cost = {(op == Op::encode && wire.is_scaled() ? 4
                : op == Op::sum_parts                ? 2
                                                     : 1) *
                   values,
               from.size_bytes + to.size_bytes};
  return task;
}

void keep_residual(Task& encode, const Slice& residual) {
  if (residual.size_bytes == 0) return;
  encode.reads.push_back(residual);
  encode.writes.push_back(residual);
  encode.cost.bytes += 2 * residual.size_bytes;
}

Slice part_of(const Slice& whole, int index, int64_t part_bytes) {
  return {whole.buffer, whole.begin_bytes + index * part_bytes, part_bytes};
}

/// Appends an all-reduce in place of bfloat16. Host collectives add in float and round once, but NCCL may round at
/// every step.
Point all_reduce_rounded(const Job& job, Plan& plan, ChannelId channel, const std::string& name, size_t bucket,
                         BufferId buffer, const Slice& values, const std::vector<Point>& after,
                         std::vector<Turn>& turns, ItemId ready) {
  const int64_t elems = values.size_bytes / 4;
  const Slice wire{buffer, 0, encoded_bytes(elems, DType::bf16)};
  Task encode = coding(job, channel, Op::encode, "encode." + name, bucket, DType::bf16, elems, values, wire);
  encode.after = after;
  const Point encoded = append_task(plan, std::move(encode));
  Task sum = task_of(job, channel, Op::all_reduce, "all_reduce." + name, bucket);
  sum.dtype = DType::bf16;
  sum.elems = elems;
  sum.reads = sum.writes = {wire};
  sum.after = {encoded};
  Task decode = coding(job, channel, Op::decode, "decode." + name, bucket, DType::bf16, elems, wire, values);
  decode.after = {append_task(plan, std::move(sum))};
  const Point done = append_task(plan, std::move(decode));
  turns.push_back({ready, encoded, done});
  return done;
}

/// A sum of encoded data. Every rank receives all contributions to its part and adds them in float, in rank order.
struct Exchange {
  ChannelId channel;
  std::string label;
  size_t bucket;
  Format wire;
  BufferId out, in;              // the encoded parts by receiver, and every rank's contribution to this rank's part
  Slice residual, sum_residual;  // for error feedback; empty: none
};

/// `to` is this rank's part of the sum, or (not `scattered`) all of it.
Point sum_by_exchange(const Job& job, Plan& plan, const Exchange& x, const Slice& from, const Slice& to, bool scattered,
                      const std::vector<Point>& after, std::optional<Point> before, std::vector<Turn>& turns,
                      ItemId ready) {
  const Axis axis = job.channels[x.channel].axis;
  const int ranks = job.mesh.group_size(axis), index = job.mesh.index_in_group(axis, job.options.rank);
  const int64_t elems = from.size_bytes / 4 / ranks, part_bytes = encoded_bytes(elems, x.wire);
  const Slice out{x.out, 0, ranks * part_bytes}, in{x.in, 0, ranks * part_bytes};
  const Slice mine = scattered ? to : part_of(to, index, 4 * elems);
  const auto exchange = [&](Op op, const Slice& sent, const Slice& received, Point sendable) {
    Task task = task_of(job, x.channel, op, fmt::format("{}.{}", name_of(op), x.label), x.bucket);
    task.dtype = x.wire.element;
    task.elems = part_bytes / size_of(x.wire.element);
    task.reads = {sent};
    task.writes = {received};
    task.after = {sendable};
    return append_task(plan, std::move(task));
  };
  Task encode = coding(job, x.channel, Op::encode, "encode." + x.label, x.bucket, x.wire, elems, from, out);
  keep_residual(encode, x.residual);
  encode.after = after;
  encode.before = before;
  const Point encoded = append_task(plan, std::move(encode));
  Task sum = coding(job, x.channel, Op::sum_parts, "sum_parts." + x.label, x.bucket, x.wire, elems, in, mine);
  sum.after = {exchange(Op::all_to_all, out, in, encoded)};
  Point done = append_task(plan, std::move(sum));
  if (!scattered) {
    // The sums return to all ranks in the same way, from the buffer that is now free.
    Task again = coding(job, x.channel, Op::encode, "encode_sum." + x.label, x.bucket, x.wire, elems, mine,
                        part_of(in, index, part_bytes));
    keep_residual(again, x.sum_residual);
    again.after = {done};
    Task decode = coding(job, x.channel, Op::decode, "decode." + x.label, x.bucket, x.wire, elems, in, to);
    decode.after = {exchange(Op::all_gather, part_of(in, index, part_bytes), in, append_task(plan, std::move(again)))};
    done = append_task(plan, std::move(decode));
  }
  turns.push_back({ready, encoded, done});
  return done;
}

}  // namespace

Point reduce(const Job& job, Plan& plan, Reduced& reduced, const Reduction& what) {
  const BucketStorage& storage = job.storage[what.bucket];
  const Placement& placement = job.placement_of(what.bucket);
  const bool sharded = placement.is_sharded();
  const Format wire = placement.reduce_wire;
  const ChannelId channel = job.channel(Role::reduce, placement.reduces_over());
  std::vector<Point> after{what.ready};
  if (what.not_before) after.push_back(*what.not_before);
  if (wire == DType::f32) {
    Task task = task_of(job, channel, sharded ? Op::reduce_scatter : Op::all_reduce,
                        (sharded ? "reduce_scatter." : "all_reduce.") + what.label, what.bucket);
    task.elems = storage.shard_elems;
    task.reads = {what.from};
    task.writes = {what.to};
    task.after = after;
    task.before = what.before;
    return append_task(plan, std::move(task));
  }
  if (!sharded && wire == DType::bf16 && !job.options.sums_by_exchange)
    return all_reduce_rounded(job, plan, channel, what.label, what.bucket, job.ids.wire_out, what.from, after,
                              reduced.turns, what.ready.item);

  const Exchange exchange{channel,          what.label,      what.bucket,      wire,
                          job.ids.wire_out, job.ids.wire_in, storage.residual, storage.sum_residual};
  return sum_by_exchange(job, plan, exchange, what.from, what.to, sharded, after, what.before, reduced.turns,
                         what.ready.item);
}

Point reduce_across(const Job& job, Plan& plan, Reduced& reduced, size_t bucket, Point ready, Point inside) {
  const BucketStorage& storage = job.storage[bucket];
  const Placement& placement = job.placement_of(bucket);
  const ChannelId channel = job.channel(Role::reduce_across, placement.copied_over);
  const std::string label = fmt::format("across.bucket{}", bucket);
  if (placement.across_wire() == DType::bf16 && !job.options.sums_by_exchange)
    return all_reduce_rounded(job, plan, channel, label, bucket, job.ids.wire_across, storage.gradient, {inside},
                              reduced.turns_across, ready.item);
  if (placement.across_wire() == DType::bf16)
    return sum_by_exchange(
        job, plan,
        {channel, label, bucket, placement.across_wire(), job.ids.wire_across, job.ids.wire_across_in, {}, {}},
        storage.gradient, storage.gradient, false, {inside}, {}, reduced.turns_across, ready.item);
  Task task = task_of(job, channel, Op::all_reduce, fmt::format("reduce_across.bucket{}", bucket), bucket);
  task.elems = storage.shard_elems;
  task.reads = task.writes = {storage.gradient};
  task.after = {inside};
  return append_task(plan, std::move(task));
}

void take_turns(const Reduced& reduced, int64_t max_inflight_buckets, Plan& plan) {
  const auto at_a_time = [&](std::vector<Turn> turns, size_t most) {
    std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.ready < b.ready; });
    for (size_t i = most; i < turns.size(); ++i)
      plan.tasks[turns[i].first.item & ~kTaskBit].after.push_back(turns[i - most].last);
  };
  at_a_time(reduced.turns, 1);
  at_a_time(reduced.turns_across, 1);
  if (max_inflight_buckets > 0) at_a_time(reduced.reductions, static_cast<size_t>(max_inflight_buckets));
}

std::vector<Point> gather(const Job& job, Plan& plan, const Gathering& what) {
  const BucketStorage& storage = job.storage[what.bucket];
  const Placement& placement = job.placement_of(what.bucket);
  const ChannelId channel = job.channel(Role::gather, placement.sharded_over);
  const Format wire = placement.gather_wire;
  Task task = task_of(job, channel, Op::all_gather, "all_gather." + what.label, what.bucket);
  task.dtype = wire.element;
  task.elems = what.from.size_bytes / size_of(wire.element);
  task.reads = {what.from};
  task.after = what.updated;
  if (!placement.gathers_encoded()) {
    task.writes = {what.to};
    task.after.insert(task.after.end(), what.to_free.begin(), what.to_free.end());
    task.before = what.before;
    return {append_task(plan, std::move(task))};
  }
  const Slice in{job.ids.gather_wire, 0, what.from.size_bytes * placement.shards(job.mesh)};
  task.writes = {in};
  // Only one bucket travels at a time: the previous gather has been decoded.
  for (size_t i = plan.tasks.size(); i-- > 0;)
    if (plan.tasks[i].op == Op::decode && plan.tasks[i].reads[0].buffer == in.buffer) {
      task.after.push_back({kTaskBit + static_cast<ItemId>(i)});
      break;
    }
  const Point gathered = append_task(plan, std::move(task));
  Task decode =
      coding(job, channel, Op::decode, "decode." + what.label, what.bucket, wire, storage.shard_elems, in, what.to);
  decode.after = what.to_free;
  decode.after.push_back(gathered);
  decode.before = what.before;
  return {gathered, append_task(plan, std::move(decode))};
}

std::optional<Point> encode_shard(const Job& job, Plan& plan, size_t bucket, const std::vector<Point>& updated) {
  const BucketStorage& storage = job.storage[bucket];
  const Placement& placement = job.placement_of(bucket);
  if (!placement.gathers_encoded() || !placement.gather_wire.is_scaled()) return {};
  Task encode = coding(job, job.channel(Role::gather, placement.sharded_over), Op::encode,
                       fmt::format("encode_shard.bucket{}", bucket), bucket, placement.gather_wire, storage.shard_elems,
                       storage.master, storage.working);
  encode.after = updated;
  return append_task(plan, std::move(encode));
}

}  // namespace slipstream
