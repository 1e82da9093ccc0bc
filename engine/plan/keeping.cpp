// SPDX-License-Identifier: Apache-2.0
// Places the slots of kept snapshots, and plans their copies and exchanges.

#include "engine/plan/keeping.h"

#include <algorithm>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/passes/passes.h"
#include "engine/plan/saved_state.h"

namespace slipstream {
namespace {

constexpr int64_t kPageBytes = 4096, kLineBytes = 64;

/// Places the arrays. They are at the same positions on every rank of a stage, each with room for the longest range of
/// a rank.
void place_arrays(Job& job) {
  int64_t at = Keeping::kHeaderBytes;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    job.storage[b].kept.clear();
    for (const SavedArray& array : saved_arrays(job, b)) {
      job.storage[b].kept.push_back({job.keeping.own, at, array.from.size_bytes});
      at += ceil_div(bytes_of(array.most_elems, array.dtype), kLineBytes) * kLineBytes;
    }
  }
  job.keeping.arrays_bytes = at - Keeping::kHeaderBytes;
}

Task on_channel(const Job& job, Role role, std::string name, Op op) {
  Task task;
  task.name = std::move(name);
  task.channel = job.channel(role);
  task.op = op;
  return task;
}

/// Appends the copies into the slot, in the order of its bytes.
std::vector<Point> append_copies(const Job& job, Plan& plan) {
  std::vector<Point> copies;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const std::vector<SavedArray> arrays = saved_arrays(job, b);
    for (size_t i = 0; i < arrays.size(); ++i) {
      Task task = on_channel(job, Role::keep, fmt::format("keep.{}.bucket{}", arrays[i].name, b), Op::snapshot);
      task.bucket = static_cast<int32_t>(b);
      task.reads = {arrays[i].from};
      task.writes = {job.storage[b].kept[i]};
      task.cost = {0, 2 * bytes_of(arrays[i].most_elems, arrays[i].dtype)};
      copies.push_back(append_task(plan, std::move(task)));
    }
  }
  return copies;
}

Point append_seal(const Job& job, const std::vector<Point>& copies, Plan& plan) {
  Task task = on_channel(job, Role::keep, "keep.seal", Op::seal);
  task.reads = {{job.keeping.own, Keeping::kHeaderBytes, job.keeping.arrays_bytes}};
  task.writes = {{job.keeping.own, 0, Keeping::kHeaderBytes}};
  task.cost = {0, job.keeping.arrays_bytes};
  task.after = copies;
  return append_task(plan, std::move(task));
}

/// Sends the bytes [begin, begin + size) of the slot to the holder, and receives those of the rank whose holder this
/// rank is.
Point append_exchange(const Job& job, std::string name, int64_t begin, int64_t size, std::vector<Point> after,
                      Plan& plan) {
  Task task = on_channel(job, Role::peer, std::move(name), Op::exchange);
  task.peer = static_cast<int16_t>(job.keeping.to_holder);
  task.reads = {{job.keeping.own, begin, size}};
  task.writes = {{job.keeping.peer, begin, size}};
  task.elems = size / size_of(DType::f32);
  task.after = std::move(after);
  return append_task(plan, std::move(task));
}

/// The pieces have the size of buckets, so that gradients on the same link can travel between them.
void append_transfer(const Job& job, const std::vector<Point>& copies, Point seal, Plan& plan) {
  const int64_t slot_bytes = job.keeping.slot_bytes,
                piece_bytes = std::max(kPageBytes, job.options.bucket_bytes / kPageBytes * kPageBytes);
  std::vector<Point> sent;
  for (int64_t at = Keeping::kHeaderBytes; at < slot_bytes; at += piece_bytes) {
    const int64_t size = std::min(piece_bytes, slot_bytes - at);
    std::vector<Point> after;
    for (const Point& copy : copies)
      if (plan.tasks[copy.item - kTaskBit].writes[0].overlaps({job.keeping.own, at, size})) after.push_back(copy);
    sent.push_back(append_exchange(job, fmt::format("keep.piece{}", sent.size()), at, size, std::move(after), plan));
  }
  // The header is sent last, because it states that the other bytes have arrived.
  std::vector<Point> all = sent;
  all.push_back(seal);
  all.push_back(append_exchange(job, "keep.header", 0, Keeping::kHeaderBytes, all, plan));
  Task agreement = on_channel(job, Role::peer, "keep.agreement", Op::all_reduce);
  // The header does not use these bytes.
  const Slice agreed{job.keeping.own, Keeping::kHeaderBytes - kLineBytes, size_of(DType::f32)};
  agreement.reads = {agreed, {job.keeping.own, 0, slot_bytes}, {job.keeping.peer, 0, slot_bytes}};
  agreement.writes = {agreed};
  agreement.elems = 1;
  agreement.after = std::move(all);
  agreement.after.insert(agreement.after.end(), copies.begin(), copies.end());
  append_task(plan, std::move(agreement));
}

}  // namespace

int holder_offset(int ranks, int64_t ranks_per_node) {
  if (ranks == 1) return 0;
  const auto on_a_node = static_cast<int>(std::clamp<int64_t>(ranks_per_node, 1, ranks));
  return std::max(1, std::min(on_a_node, ranks - on_a_node));
}

int kept_slot(const Keeping& keeping, int64_t interval, int64_t step) {
  return static_cast<int>(step / interval % keeping.slots);
}

void add_keeping(const std::vector<Job*>& stages, int to_holder) {
  int64_t arrays_bytes = 0;
  for (Job* job : stages) {
    job->keeping = {.slots = 2, .to_holder = to_holder};
    const bool has_peer = to_holder != 0;
    job->channels.push_back({Role::keep, Axis::self});
    if (has_peer) job->channels.push_back({Role::peer, Axis::hosts});
    job->keeping.own = job->buffers.add({.name = "kept.own", .owner = Owner::kept});
    place_arrays(*job);
    arrays_bytes = std::max(arrays_bytes, job->keeping.arrays_bytes);
  }
  // Ranks of different stages exchange the same number of bytes.
  const int64_t slot_bytes = Keeping::kHeaderBytes + ceil_div(arrays_bytes, kPageBytes) * kPageBytes;
  for (Job* job : stages) {
    Keeping& keeping = job->keeping;
    keeping.slot_bytes = slot_bytes;
    job->buffers.set_size(keeping.own, keeping.slots * slot_bytes);
    if (to_holder != 0)
      keeping.peer =
          job->buffers.add({.name = "kept.peer", .size_bytes = keeping.slots * slot_bytes, .owner = Owner::kept});
    Plan& plan = job->add_plan(PlanKind::keep, When::asked);
    const std::vector<Point> copies = append_copies(*job, plan);
    const Point seal_point = append_seal(*job, copies, plan);
    if (to_holder != 0) append_transfer(*job, copies, seal_point, plan);
    seal(plan);
  }
}

}  // namespace slipstream
