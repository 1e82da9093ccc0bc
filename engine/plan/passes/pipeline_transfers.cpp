// SPDX-License-Identifier: Apache-2.0
// Lifetimes, slots and tasks of activations and their gradients between stages.

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
                                                                 const ModelSpec& model) {
  std::map<std::tuple<Pass, int, int>, Position> at;
  for (Position u = 0; u < actions.size(); ++u) at[{actions[u].pass, actions[u].chunk, actions[u].micro_batch}] = u;
  std::vector<Life> lives;
  for (Position u = 0; u < actions.size(); ++u) {
    const Action& action = actions[u];
    if (action.pass == Pass::weight) continue;
    const Chunk& chunk = chunks[static_cast<size_t>(action.chunk)];
    const bool forward = action.pass == Pass::forward;
    const std::vector<BufferId>& in = forward ? chunk.activations_in : chunk.gradients_in;
    std::vector<BufferId> crossing = forward ? chunk.activations_out : chunk.gradients_out;
    const size_t leaving = crossing.size();
    for (BufferId buffer : in)
      if (!contains(crossing, buffer)) crossing.push_back(buffer);
    for (size_t i = 0; i < crossing.size(); ++i) {
      const Source source = contains(in, crossing[i]) ? Source::received : Source::computed;
      Life life{{crossing[i], u, u, source}, action.pass, action.chunk, action.micro_batch, i < leaving, {}};
      for (Pass later : {Pass::backward, Pass::weight}) {
        const auto found = at.find({later, action.chunk, action.micro_batch});
        if (found != at.end() && found->second > u && touches(model, chunk.pieces(later), life.buffer))
          life.last_use = std::max(life.last_use, found->second);
      }
      lives.push_back(life);
    }
  }
  return lives;
}

std::vector<Ring> size_rings(const std::vector<Chunk>& chunks, const std::vector<Action>& actions,
                             const ModelSpec& model) {
  struct OfBuffer {
    std::vector<Lifetime> lives;
    bool arrives = false, leaves = false;
  };
  std::map<BufferId, OfBuffer> of_buffer;
  for (const PipelineTransfers::Life& life : PipelineTransfers::lives_of(chunks, actions, model)) {
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
      uses_(actions),
      lives_(lives_of(job.chunks, actions, job.model)),
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
    for (size_t u = life.first_use; u <= life.last_use; ++u)
      if (uses_[u].chunk == life.chunk && uses_[u].micro_batch == life.micro_batch)
        rebinds_[u].push_back({life.buffer, life.where});
  }
}

std::vector<PipelineTransfers::Touched> PipelineTransfers::touched_by(const Plan& plan, ItemId end) const {
  std::vector<std::pair<ItemId, ItemId>> behind;  // spine item and the task that follows it
  for (ItemId t = 0; t < plan.tasks.size(); ++t) behind.emplace_back(plan.tasks[t].after[0].item, t);
  std::sort(behind.begin(), behind.end());
  std::vector<Touched> touched(lives_.size());
  for (size_t l = 0; l < lives_.size(); ++l) {
    const Life& life = lives_[l];
    bool any = false;
    const auto touch = [&](ItemId i, size_t action) {
      touched[l].first = any ? std::min(touched[l].first, i) : i;
      touched[l].last = any ? std::max(touched[l].last, i) : i;
      if (action == life.first_use) touched[l].last_of_pass = std::max(touched[l].last_of_pass, i);
      any = true;
    };
    for (size_t u = life.first_use; u <= life.last_use; ++u) {
      if (uses_[u].chunk != life.chunk || uses_[u].micro_batch != life.micro_batch) continue;
      const ItemId stop = u + 1 < begins_.size() ? begins_[u + 1] : end;
      for (ItemId i = begins_[u]; i < stop; ++i)
        if (touches(plan.spine[i].reads, life.where) || touches(plan.spine[i].writes, life.where)) touch(i, u);
      for (auto it = std::lower_bound(behind.begin(), behind.end(), std::pair{begins_[u], ItemId{0}});
           it != behind.end() && it->first < stop; ++it) {
        const Task& task = plan.tasks[it->second];
        if (!touches(task.reads, life.where) && !touches(task.writes, life.where)) continue;
        touch(it->first, u);
        touched[l].tasks.push_back({kTaskBit + it->second});
        if (u == life.first_use) touched[l].tasks_of_pass.push_back({kTaskBit + it->second});
      }
    }
    SLIP_ASSERT(any);
  }
  return touched;
}

void PipelineTransfers::append_tasks(Plan& plan, ItemId end) const {
  const std::vector<Touched> touched = touched_by(plan, end);
  // The same sequence at both ends, whatever the compute orders of the two stages: by part, then micro-batch.
  std::vector<size_t> sequence(lives_.size());
  for (size_t l = 0; l < lives_.size(); ++l) sequence[l] = l;
  const auto part_of = [&](const Life& life) { return job_.chunks[static_cast<size_t>(life.chunk)].part; };
  std::stable_sort(sequence.begin(), sequence.end(), [&](size_t a, size_t b) {
    const auto key = [&](const Life& life) { return std::tuple(life.pass, part_of(life), life.micro_batch); };
    return key(lives_[a]) < key(lives_[b]);
  });
  const auto task_of = [&](const Life& life, bool send) {
    const bool forward = life.pass == Pass::forward;
    Task task;
    // Both ends name the part from which the message comes.
    const int from = send ? part_of(life) : part_of(life) + (forward ? -1 : 1);
    task.name =
        transfer_name(send, fmt::format("{}.part{}/{}", job_.buffers[life.buffer].name, from, life.micro_batch));
    task.channel = job_.channel(forward ? (send ? Role::pipe_fwd_out : Role::pipe_fwd_in)
                                        : (send ? Role::pipe_bwd_out : Role::pipe_bwd_in));
    task.op = send ? Op::send : Op::recv;
    task.peer = forward == send ? 1 : -1;
    task.dtype = job_.model.dtype;
    task.elems = life.where.size_bytes / size_of(job_.model.dtype);
    (send ? task.reads : task.writes) = {life.where};
    return task;
  };
  std::vector<Point> sent(lives_.size());
  std::vector<ItemId> send_of(lives_.size(), 0);
  for (size_t l : sequence) {
    if (!lives_[l].leaves) continue;
    Task task = task_of(lives_[l], true);
    task.after = touched[l].tasks_of_pass;
    task.after.push_back({touched[l].last_of_pass});
    send_of[l] = static_cast<ItemId>(plan.tasks.size());
    sent[l] = append_task(plan, std::move(task));
  }
  for (size_t l : sequence) {
    const Life& life = lives_[l];
    const bool left = life.tenant >= 0 && lives_[static_cast<size_t>(life.tenant)].leaves;
    if (life.source == Source::computed) {
      // Compute writes it first, after the slot's previous content has been sent.
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
