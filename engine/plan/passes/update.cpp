// SPDX-License-Identifier: Apache-2.0
// Updates from summed gradients: adds the tied share, computes the clip factor from the norm, and runs the optimizers.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "engine/plan/memory.h"
#include "engine/plan/passes/passes.h"
#include "engine/plan/passes/wire.h"
#include "engine/plan/update_shards.h"

namespace slipstream {
namespace {

class UpdatePass {
 public:
  UpdatePass(const Job& job, const Reduced& reduced, const std::vector<Point>& loss, Plan& plan)
      : job_(job),
        reduced_(reduced),
        loss_(loss),
        plan_(plan),
        on_spine_(job.update_on_spine),
        channel_(on_spine_ ? kComputeChannel : job.channel(Role::update)) {}

  std::vector<Point> run() {
    stage_scalars();
    // Groups follow each other in the flat order, but their gradients arrive in turns. Buckets of the tied table go
    // last, because they wait for its embedding share, which arrives last.
    for (size_t b = 0; b < job_.layout.buckets.size(); ++b) order_.push_back(b);
    std::sort(order_.begin(), order_.end(), [this](size_t a, size_t b) {
      return std::pair(holds_tied(a), arrival(a)) < std::pair(holds_tied(b), arrival(b));
    });
    std::vector<std::vector<Point>> complete = reduced_.buckets;
    std::vector<Point> clip;
    update_groups(UpdateStart::at_gradient, {}, complete);
    if (job_.options.clip) clip = {clip_factor(complete)};
    update_groups(UpdateStart::after_clip, clip, complete);
    return gathered_;
  }

 private:
  /// `begin` has the points that all updates wait for.
  void update_groups(UpdateStart start, const std::vector<Point>& begin, std::vector<std::vector<Point>>& complete) {
    // After the clip factor, all buckets may be updated at once. One launch does that, unless they are gathered then.
    if (!job_.options.optimizer_per_bucket || (!begin.empty() && !sharded_)) {
      for (uint32_t g = 0; g < job_.groups.size(); ++g)
        if (job_.groups[g].optimizer->start == start) update_group(g, begin, complete);
      return;
    }
    std::vector<size_t> order;
    for (size_t b : order_)
      if (job_.group_of(b).optimizer->start == start) order.push_back(b);
    update_buckets(std::move(order), begin, complete);
  }

  /// Updates all buckets of a group by one task.
  void update_group(uint32_t g, std::vector<Point> begin, std::vector<std::vector<Point>>& complete) {
    std::vector<size_t> order;
    for (size_t b : order_)
      if (job_.layout.buckets[b].group == g) order.push_back(b);
    if (order.empty()) return;
    for (size_t b : order) add_tied_before(b, complete);
    std::sort(order.begin(), order.end());
    for (size_t b : order) begin.insert(begin.end(), complete[b].begin(), complete[b].end());
    const Point updated = update(name_of(g), g, order, begin);
    std::reverse(order.begin(), order.end());
    for (size_t b : order) publish(b, {updated});
  }

  /// Updates each bucket by a task of its own, in the order of arrival.
  void update_buckets(std::vector<size_t> order, const std::vector<Point>& begin,
                      std::vector<std::vector<Point>>& complete) {
    // After the clip factor nothing is left to wait for, so the parameters that the next forward pass needs first come
    // first.
    if (!begin.empty()) std::reverse(order.begin(), order.end());
    // On the spine, updates run as sums arrive, and those of the first layers arrive last. But gathers go in forward
    // order, because the next step would otherwise begin after all of them. Off the spine, most sums have travelled
    // during the backward pass.
    const bool holds_back = begin.empty() && sharded_ && on_spine_;
    std::map<Arrival, Point, std::greater<>> updated;
    for (size_t b : order) {
      add_tied_before(b, complete);
      std::vector<Point> after = complete[b];
      after.insert(after.end(), begin.begin(), begin.end());
      const uint32_t g = job_.layout.buckets[b].group;
      const Point point = update(fmt::format("{}.bucket{}", name_of(g), b), g, {b}, after);
      if (holds_back)
        updated[arrival(b)] = point;
      else
        publish(b, {point});
    }
    std::map<Axis, Point> latest;  // by the axis of the shards, because each has a channel of its own
    for (const auto& [arrival, point] : updated) {
      const size_t b = std::get<size_t>(arrival);
      const Axis axis = job_.placement_of(b).sharded_over;
      std::vector<Point> after{point};
      if (const auto found = latest.find(axis); found != latest.end()) after.push_back(found->second);
      publish(b, after);
      if (!gathered_.empty()) latest[axis] = gathered_.back();
    }
  }

  /// Orders buckets by the completion of their gradients.
  using Arrival = std::tuple<bool, uint32_t, size_t>;
  Arrival arrival(size_t bucket) const {
    const Bucket& b = job_.layout.buckets[bucket];
    return {b.persistent, b.ready_position, bucket};
  }

  std::string name_of(uint32_t g) const {
    const ParameterGroup& group = job_.groups[g];
    const char* optimizer = slipstream::name_of(group.optimizer->name);
    return job_.groups.size() == 1 ? optimizer : fmt::format("{}.{}", optimizer, group.name);
  }

  Point local(Task task) {
    if (!on_spine_) wait_for_spine(task);
    return append_local(plan_, on_spine_, channel_, std::move(task));
  }

  /// Returns the destination of updated weights. With a second copy, it is the copy that this step does not read.
  Slice next(const Slice& slice) const {
    if (!job_.options.double_buffer || slice.buffer != job_.ids.values) return slice;
    return {job_.ids.values_next, slice.begin_bytes, slice.size_bytes};
  }

  /// Off the spine, the backward pass may still read the weights that an update writes: a weight's gradient is complete
  /// before its input gradient has been computed from the weight. It is enough to wait for the last such item, because
  /// the spine is in order.
  void wait_for_spine(Item& task) const {
    const auto overlap = [](const std::vector<Slice>& a, const std::vector<Slice>& b) {
      for (const Slice& x : a)
        for (const Slice& y : b)
          if (x.overlaps(y)) return true;
      return false;
    };
    for (size_t i = plan_.spine.size(); i-- > 0;) {
      const SpineItem& item = plan_.spine[i];
      if (!overlap(task.writes, item.reads) && !overlap(task.writes, item.writes) && !overlap(task.reads, item.writes))
        continue;
      task.after.push_back({static_cast<ItemId>(i)});
      return;
    }
  }

  bool holds_tied(size_t bucket) const {
    if (holds_copy(job_, bucket)) return true;
    if (!job_.model.tied.split) return false;
    const Bucket& b = job_.layout.buckets[bucket];
    for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p)
      if (job_.layout.parts[p].part.parameter == job_.model.tied.parameter) return true;
    return false;
  }

  void stage_scalars() {
    Task task;
    task.name = "stage_scalars";
    task.op = Op::copy;
    task.reads = {job_.buffers.whole(job_.ids.scalars_next)};
    task.writes = {job_.buffers.whole(job_.ids.scalars)};
    task.cost = {0, 2 * task.reads[0].size_bytes};
    staged_ = local(std::move(task));
  }

  /// Adds the tied share once, before the first bucket that needs it, so that the other buckets do not wait for the
  /// last arrival.
  void add_tied_before(size_t bucket, std::vector<std::vector<Point>>& complete) {
    if (tied_added_ || !job_.model.tied.split || !holds_tied(bucket)) return;
    add_tied(complete);
    tied_added_ = true;
  }

  /// Computes the head's share (summed over ranks) += the embedding's share (summed over ranks), with the same bits in
  /// all reduce modes.
  void add_tied(std::vector<std::vector<Point>>& complete) {
    const TiedEmbedding& tied = job_.model.tied;
    const Slice table =
        job_.buffers.resolve(job_.buffers.whole(job_.model.parameters[tied.parameter].gradient), {}, 0, 0);
    Task task;
    task.name = "add_tied_embedding";
    task.op = tied.as_rows ? Op::add_rows : Op::add;
    task.elems = tied.vocab * tied.width;
    if (tied.as_rows)
      task.reads = {job_.buffers.whole(tied.row_ids), job_.buffers.whole(tied.rows), table};
    else
      task.reads = {job_.buffers.whole(tied.dense), table};
    task.writes = {table};
    // Received rows are added to those of the table, and other rows do not change. The number of equal rows is not
    // known.
    const int64_t added_elems = tied.as_rows ? task.reads[1].size_bytes / 4 : task.elems;
    task.cost = {added_elems, 12 * added_elems + (tied.as_rows ? task.reads[0].size_bytes : 0)};
    task.after = reduced_.tied;
    for (size_t b = 0; b < complete.size(); ++b)
      if (holds_tied(b)) task.after.insert(task.after.end(), complete[b].begin(), complete[b].end());
    const Point added = local(std::move(task));
    for (size_t b = 0; b < complete.size(); ++b)
      if (holds_tied(b)) complete[b] = {added};
  }

  /// Stores one double per gradient part. They are summed in part order, so that bits do not depend on the buckets.
  Point clip_factor(std::vector<std::vector<Point>>& complete) {
    std::vector<Point> summed;
    for (size_t b : order_) {
      add_tied_before(b, complete);
      const Bucket& bucket = job_.layout.buckets[b];
      const BucketStorage& storage = job_.storage[b];
      std::vector<Slice> sums;
      for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p)
        if (job_.layout.parts[p].norm_index >= 0)
          sums.push_back({job_.ids.norm_parts, int64_t{job_.layout.parts[p].norm_index} * 8, 8});
      if (sums.empty()) continue;  // the other stage with this copy counts it
      Task task;
      task.name = fmt::format("sum_squares.bucket{}", b);
      task.op = Op::sum_squares;
      task.bucket = static_cast<int32_t>(b);
      task.reads = {storage.gradient};
      task.writes = std::move(sums);
      // This is sum_squares_cost(), including padding.
      task.cost = {2 * storage.shard_elems, 4 * storage.shard_elems + 8 * static_cast<int64_t>(task.writes.size())};
      task.after = complete[b];
      summed.push_back(local(std::move(task)));
    }
    if (job_.ids.norm_sums != job_.ids.norm_parts) summed = {sum_over_ranks(summed)};
    Task task;
    task.name = "clip";
    task.op = Op::clip;
    task.reads = {job_.buffers.whole(job_.ids.norm_sums)};
    task.writes = {job_.buffers.whole(job_.ids.norm)};
    for (const ParameterGroup& group : job_.groups)
      if (group.optimizer->start == UpdateStart::after_clip) task.writes.push_back(clip_factor_of(job_, group));
    task.cost = {int64_t{job_.norm_parts}, int64_t{job_.norm_parts} * 8};
    task.after = summed;
    task.after.push_back(staged_);  // the clip factor is stored in the staged scalars
    if (job_.options.skips) {
      task.reads.insert(task.reads.end(), {job_.buffers.whole(job_.ids.loss_sum), limits_of(job_)});
      task.after.insert(task.after.end(), loss_.begin(), loss_.end());
    }
    return local(std::move(task));
  }

  /// Each rank has only the squares of its shards or of its part of a layer, and each stage those of its parameters.
  /// The rest are zeros.
  Point sum_over_ranks(const std::vector<Point>& summed) {
    Task task;
    task.name = "all_reduce.norm";
    task.channel = job_.channel(job_.norm_axis() == job_.scalars_axis() ? Role::scalars : Role::norm);
    task.op = Op::all_reduce;
    task.dtype = DType::f64;
    task.elems = job_.norm_parts;
    task.reads = {job_.buffers.whole(job_.ids.norm_parts)};
    task.writes = {job_.buffers.whole(job_.ids.norm_sums)};
    task.after = summed;
    return append_task(plan_, std::move(task));
  }

  Point update(const std::string& name, uint32_t group, const std::vector<size_t>& buckets,
               const std::vector<Point>& after) {
    Task task;
    task.name = name;
    task.op = Op::update;
    task.group = static_cast<int32_t>(group);
    if (buckets.size() == 1) task.bucket = static_cast<int32_t>(buckets[0]);
    task.reads = {scalars_of(job_, job_.groups[group])};
    for (size_t b : buckets) {
      const BucketStorage& storage = job_.storage[b];
      task.reads.push_back(storage.gradient);
      std::vector<Slice> moved = storage.states;
      moved.insert(moved.begin(), storage.master);
      for (const Slice& slice : moved) {
        task.reads.push_back(slice);
        task.writes.push_back(next(slice));
      }
      const bool rounds = job_.placement_of(b).rounds_updates();
      if (rounds) task.writes.push_back(next(storage.working));
      task.cost += update_cost(job_, b);
    }
    task.after = after;
    task.after.push_back(staged_);
    if (!job_.groups[group].optimizer->workspace_bytes) return local(std::move(task));
    task.writes.push_back(job_.buffers.whole(job_.ids.update_workspace));
    if (workspace_free_) task.after.push_back(*workspace_free_);
    return *(workspace_free_ = local(std::move(task)));
  }

  /// Restores the whole bucket from the updated shards. The next plan that reads it waits by link().
  void publish(size_t b, std::vector<Point> updated) {
    if (!job_.placement_of(b).is_sharded()) return;
    const BucketStorage& storage = job_.storage[b];
    if (const auto encoded = encode_shard(job_, plan_, b, updated)) {
      updated = {*encoded};
      gathered_.push_back(*encoded);
    }
    if (storage.values.size_bytes == 0) return;
    // The update writes only this rank's shard, and the backward pass may still read the parts of other ranks.
    Item read;
    read.writes = {next(storage.values)};
    if (!on_spine_) wait_for_spine(read);
    for (Point point : gather(job_, plan_,
                              {.label = fmt::format("bucket{}", b),
                              .bucket = b,
                              .from = next(storage.working),
                              .to = next(storage.values),
                              .updated = updated,
                              .to_free = read.after,
                              .before = {}}))
      gathered_.push_back(point);
  }

  const Job& job_;
  const Reduced& reduced_;
  const std::vector<Point>& loss_;
  Plan& plan_;
  bool on_spine_;
  ChannelId channel_;
  bool sharded_ = job_.sharding().states;
  std::vector<size_t> order_;  // the order of buckets
  Point staged_;               // complete when the scalars of this step are in place
  std::optional<Point> workspace_free_;
  bool tied_added_ = false;
  std::vector<Point> gathered_;
};

}  // namespace

std::vector<Point> update_pass(const Job& job, const Reduced& reduced, const std::vector<Point>& loss, Plan& plan) {
  return UpdatePass(job, reduced, loss, plan).run();
}

}  // namespace slipstream
