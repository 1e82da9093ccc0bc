// SPDX-License-Identifier: Apache-2.0
// Data parallelism as tasks: one collective per bucket at the moment at which its gradients are ready.

#include <fmt/core.h>

#include "engine/plan/passes/passes.h"
#include "engine/plan/passes/wire.h"

namespace slipstream {
namespace {

/// Adds the embedding's share of a tied table: either ids and rows are gathered from all ranks, or the dense table is
/// summed.
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
    return Slice{buffer, job.mesh.index_in_group(job.tied_axis(), job.options.rank) * size_bytes, size_bytes};
  };
  return {collective("all_gather.embedding_ids", Op::all_gather, part(tied.row_ids, tied.capacity * 4),
                     job.buffers.whole(tied.row_ids), DType::i32, tied.capacity),
          collective("all_gather.embedding_rows", Op::all_gather, part(tied.rows, tied.capacity * tied.width * 4),
                     job.buffers.whole(tied.rows), DType::f32, tied.capacity * tied.width)};
}

/// Returns one point per chunk, which is complete when every stage has some of its gradients. It is an empty sum over
/// stages on a separate channel. Chunks end in the same order on all stages, so that no two stages wait for each other.
std::vector<Point> align_stages(const Job& job, const SpineMap& spine, Plan& plan) {
  std::vector<Point> aligned(job.chunks.size());
  std::vector<Point> before;  // the previous sum, which uses the same bytes
  for (size_t c = job.chunks.size(); c-- > 0;) {
    const auto [begin, end] = job.backward_positions(static_cast<int>(c));
    uint32_t first = end - 1;
    for (const Bucket& bucket : job.layout.buckets)
      if (bucket.ready_position >= begin) first = std::min(first, bucket.ready_position);
    Task task;
    task.name = fmt::format("align.chunk{}", c);
    task.channel = job.channel(Role::align);
    task.op = Op::all_reduce;
    task.elems = 1;
    task.reads = task.writes = {job.buffers.whole(job.ids.aligned)};
    task.after = before;
    task.after.push_back({spine.backward[first]});
    before = {aligned[c] = append_task(plan, std::move(task))};
  }
  return aligned;
}

/// Returns the last item that writes gradients of the bucket. Schedules may run weight passes of a late chunk after
/// those of an earlier one, so that the last position in ModelSpec::backward need not be the last item.
Point ready_point(const Job& job, const SpineMap& spine, const Bucket& bucket) {
  ItemId last = 0;
  for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p)
    last = std::max(last, spine.backward[job.layout.parts[p].ready_position]);
  return {last};
}

}  // namespace

Reduced data_parallel_pass(const Job& job, const SpineMap& spine, Plan& plan) {
  Reduced reduced;
  // `naive` and `flat` communicate after the backward pass. The other modes communicate as soon as a bucket is ready.
  const std::vector<Point> aligned = job.aligns_grad_reduce ? align_stages(job, spine, plan) : std::vector<Point>{};
  const auto chunk_of = [&](const Bucket& bucket) {
    size_t chunk = job.chunks.size() - 1;
    while (bucket.ready_position >= job.backward_positions(static_cast<int>(chunk)).second) --chunk;
    return chunk;
  };
  const bool at_the_end = job.options.reduce_mode == ReduceMode::naive || job.options.reduce_mode == ReduceMode::flat;
  for (size_t b = 0; b < job.layout.buckets.size(); ++b) {
    const Point ready = ready_point(job, spine, job.layout.buckets[b]);
    if (!job.placement_of(b).reduces(job.mesh)) {
      reduced.buckets.push_back({ready});
      continue;
    }
    reduced.buckets.push_back({});
    const BucketStorage& storage = job.storage[b];
    if (storage.gradients.size_bytes == 0 || job.layout.buckets[b].persistent)
      continue;  // Residency reduces it micro-batch by micro-batch
    const Point begin = at_the_end ? spine.last() : ready;
    Reduction reduction{.label = fmt::format("bucket{}", b),
                        .bucket = b,
                        .from = storage.gradients,
                        .to = storage.gradient,
                        .ready = begin,
                        .not_before = {},
                        .before = {}};
    if (!aligned.empty()) reduction.not_before = aligned[chunk_of(job.layout.buckets[b])];
    const Point first = next_task(plan);
    Point done = reduce(job, plan, reduced, reduction);
    if (job.placement_of(b).reduces_across(job.mesh)) done = reduce_across(job, plan, reduced, b, begin, done);
    reduced.reductions.push_back({begin.item, first, done});
    reduced.buckets.back() = {done};
  }
  if (!job.model.tied.split) return reduced;
  // The embedding's piece is the last one in the backward pass.
  reduced.tied = !job.reduces() ? std::vector<Point>{spine.last()}
                                : share_tied(job, plan, job.channel(Role::reduce, job.tied_axis()), spine.last());
  return reduced;
}

}  // namespace slipstream
