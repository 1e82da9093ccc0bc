// SPDX-License-Identifier: Apache-2.0
// Computes lifetimes, slots and tasks of activations and their gradients between stages.

#include "engine/plan/passes/pipeline_transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/plan/transfer_name.h"

namespace slipstream {
namespace {

bool contains(const std::vector<BufferId>& buffers, BufferId buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

bool touches(const ModelSpec& model, const std::vector<uint32_t>& pieces, BufferId buffer) {
  bool found = false;
  for (uint32_t piece : pieces)
    model.for_accesses(piece, [&](const Slice& slice, bool) { found |= slice.buffer == buffer; });
  return found;
}

bool touches(const std::vector<Slice>& slices, const Slice& where) {
  return std::any_of(slices.begin(), slices.end(), [&](const Slice& s) { return s.overlaps(where); });
}

}  // namespace

std::vector<PipelineTransfers::Life> PipelineTransfers::lives_of(const std::vector<Chunk>& chunks,
                                                                 const std::vector<Action>& actions,
                                                                 const ModelSpec& model,
                                                                 const StagePlacement& placement) {
  std::map<std::tuple<Pass, int, int>, Position> at;
  for (Position u = 0; u < actions.size(); ++u) at[{actions[u].pass, actions[u].chunk, actions[u].micro_batch}] = u;
  /// By part and micro-batch: what goes to the next part on this stage.
  std::map<std::tuple<BufferId, Pass, int, int>, size_t> handed;
  std::vector<Life> lives;
  for (Position u = 0; u < actions.size(); ++u) {
    const Action& action = actions[u];
    if (action.pass == Pass::weight) continue;
    const Chunk& chunk = chunks[static_cast<size_t>(action.chunk)];
    const bool forward = action.pass == Pass::forward;
    const int before = chunk.part + (forward ? -1 : 1), after = chunk.part + (forward ? 1 : -1);
    const std::vector<BufferId>& in = forward ? chunk.activations_in : chunk.gradients_in;
    std::vector<BufferId> crossing = forward ? chunk.activations_out : chunk.gradients_out;
    const size_t leaving = crossing.size();
    for (BufferId buffer : in)
      if (!contains(crossing, buffer)) crossing.push_back(buffer);
    for (size_t i = 0; i < crossing.size(); ++i) {
      const BufferId buffer = crossing[i];
      const auto known = handed.find({buffer, action.pass, before, action.micro_batch});
      const size_t l = known == handed.end() ? lives.size() : known->second;
      if (l == lives.size()) {
        const Source source = contains(in, buffer) ? Source::received : Source::computed;
        lives.push_back({{buffer, u, u, source}, action.pass, action.micro_batch, chunk.part});
      }
      Life& life = lives[l];
      life.last_part = chunk.part;
      life.last_crossing = u;
      const bool goes = i < leaving, stays = goes && placement.hop_after(std::min(chunk.part, after)) == 0;
      life.leaves = goes && !stays;
      if (stays) handed[{buffer, action.pass, chunk.part, action.micro_batch}] = l;
      Position last = u;
      for (Pass later : {Pass::backward, Pass::weight}) {
        const auto found = at.find({later, action.chunk, action.micro_batch});
        if (found != at.end() && found->second > u && touches(model, chunk.pieces(later), buffer))
          last = std::max(last, found->second);
      }
      life.last_use = std::max(life.last_use, last);
      for (Pass each : {Pass::forward, Pass::backward, Pass::weight})
        if (const auto found = at.find({each, action.chunk, action.micro_batch});
            found != at.end() && found->second >= u && found->second <= last)
          life.uses.push_back(found->second);
    }
  }
  return lives;
}

std::vector<Ring> size_rings(const std::vector<Chunk>& chunks, const std::vector<Action>& actions,
                             const ModelSpec& model, const StagePlacement& placement) {
  struct OfBuffer {
    std::vector<Lifetime> lives;
    bool arrives = false, leaves = false;
  };
  std::map<BufferId, OfBuffer> of_buffer;
  for (const PipelineTransfers::Life& life : PipelineTransfers::lives_of(chunks, actions, model, placement)) {
    OfBuffer& all = of_buffer[life.buffer];
    all.lives.push_back(life);
    all.arrives |= life.source == Source::received;
    all.leaves |= life.leaves;
  }
  std::vector<Ring> rings;
  for (const auto& [buffer, all] : of_buffer)
    rings.push_back({.buffer = buffer, .slots = most_alive(all.lives) + all.arrives + all.leaves});
  return rings;
}

PipelineTransfers::PipelineTransfers(const Job& job, const std::vector<Action>& actions)
    : job_(job),
      lives_(lives_of(job.chunks, actions, job.model, job.schedule.placement)),
      begins_(actions.size(), 0),
      rebinds_(actions.size()) {
  std::map<BufferId, Slots> slots_of;
  for (size_t l = 0; l < lives_.size(); ++l) {
    Life& life = lives_[l];
    const auto ring =
        std::find_if(job.rings.begin(), job.rings.end(), [&](const Ring& r) { return r.buffer == life.buffer; });
    Slots& slots = slots_of.try_emplace(life.buffer, static_cast<size_t>(ring->slots)).first->second;
    const Slots::Lease lease = slots.lease(static_cast<int64_t>(l), life.last_use);
    SLIP_ASSERT(!lease.previous || lease.previous->last_use < life.first_use);
    if (lease.previous) life.tenant = static_cast<int>(lease.previous->unit);
    const int64_t stride = job.buffers.stride_bytes(life.buffer);
    life.where = {ring->storage, lease.slot * stride, job.buffers[life.buffer].size_bytes};
    for (const Position u : life.uses) rebinds_[u].push_back({life.buffer, life.where});
  }
}

std::vector<PipelineTransfers::Touched> PipelineTransfers::touched_by(const Plan& plan, ItemId end) const {
  std::vector<std::pair<ItemId, ItemId>> followers;  // a spine item and the task that follows it
  for (ItemId t = 0; t < plan.tasks.size(); ++t) followers.emplace_back(plan.tasks[t].after[0].item, t);
  std::sort(followers.begin(), followers.end());
  std::vector<Touched> touched(lives_.size());
  for (size_t l = 0; l < lives_.size(); ++l) {
    const Life& life = lives_[l];
    bool any = false;
    const auto touch = [&](ItemId i, Position action) {
      touched[l].first = any ? std::min(touched[l].first, i) : i;
      touched[l].last = any ? std::max(touched[l].last, i) : i;
      if (action == life.last_crossing) touched[l].last_of_pass = std::max(touched[l].last_of_pass, i);
      any = true;
    };
    for (const Position u : life.uses) {
      const ItemId stop = u + 1 < begins_.size() ? begins_[u + 1] : end;
      for (ItemId i = begins_[u]; i < stop; ++i)
        if (touches(plan.spine[i].reads, life.where) || touches(plan.spine[i].writes, life.where)) touch(i, u);
      for (auto it = std::lower_bound(followers.begin(), followers.end(), std::pair{begins_[u], ItemId{0}});
           it != followers.end() && it->first < stop; ++it) {
        const Task& task = plan.tasks[it->second];
        if (!touches(task.reads, life.where) && !touches(task.writes, life.where)) continue;
        touch(it->first, u);
        touched[l].tasks.push_back({kTaskBit + it->second});
        if (u == life.last_crossing) touched[l].tasks_of_pass.push_back({kTaskBit + it->second});
      }
    }
    SLIP_ASSERT(any);
  }
  return touched;
}

Task PipelineTransfers::task_of(const Life& life, bool send) const {
  const int way = life.pass == Pass::forward ? 1 : -1;  // the direction through the parts
  // Both ends name the part from which the message comes.
  const int from = send ? life.last_part : life.first_part - way;
  const int hop = way * job_.schedule.placement.hop_after(std::min(from, from + way));  // the hop to the receiver
  Task task;
  task.name = transfer_name(send, fmt::format("{}.part{}/{}", job_.buffers[life.buffer].name, from, life.micro_batch));
  task.channel = job_.channel(hop > 0 ? (send ? Role::pipe_fwd_out : Role::pipe_fwd_in)
                                      : (send ? Role::pipe_bwd_out : Role::pipe_bwd_in));
  task.op = send ? Op::send : Op::recv;
  task.peer = static_cast<int16_t>(send ? hop : -hop);
  task.dtype = job_.model.dtype;
  task.elems = life.where.size_bytes / size_of(job_.model.dtype);
  (send ? task.reads : task.writes) = {life.where};
  return task;
}

void PipelineTransfers::append_tasks(Plan& plan, ItemId end) const {
  const std::vector<Touched> touched = touched_by(plan, end);
  // The sequence is the same at both ends, independent of the compute orders of the two stages: by part, then by
  // micro-batch.
  const auto in_sequence = [&](int Life::*part) {
    std::vector<size_t> sequence(lives_.size());
    for (size_t l = 0; l < lives_.size(); ++l) sequence[l] = l;
    const auto key = [&](const Life& life) { return std::tuple(life.pass, life.*part, life.micro_batch); };
    std::stable_sort(sequence.begin(), sequence.end(),
                     [&](size_t a, size_t b) { return key(lives_[a]) < key(lives_[b]); });
    return sequence;
  };
  std::vector<Point> sent(lives_.size());
  std::vector<ItemId> send_of(lives_.size(), 0);
  for (size_t l : in_sequence(&Life::last_part)) {
    if (!lives_[l].leaves) continue;
    Task task = task_of(lives_[l], true);
    task.after = touched[l].tasks_of_pass;
    task.after.push_back({touched[l].last_of_pass});
    send_of[l] = static_cast<ItemId>(plan.tasks.size());
    sent[l] = append_task(plan, std::move(task));
  }
  for (size_t l : in_sequence(&Life::first_part)) {
    const Life& life = lives_[l];
    const bool left = life.tenant >= 0 && lives_[static_cast<size_t>(life.tenant)].leaves;
    if (life.source == Source::computed) {
      // Compute writes the slot first, after its previous content has been sent.
      if (left) plan.tasks[send_of[static_cast<size_t>(life.tenant)]].before = Point{touched[l].first};
      continue;
    }
    Task task = task_of(life, false);
    if (life.tenant >= 0) {
      task.after = touched[static_cast<size_t>(life.tenant)].tasks;
      task.after.push_back({touched[static_cast<size_t>(life.tenant)].last});
    }
    if (left) task.after.push_back(sent[static_cast<size_t>(life.tenant)]);
    task.before = Point{touched[l].first};
    append_task(plan, std::move(task));
  }
}

}  // namespace slipstream
