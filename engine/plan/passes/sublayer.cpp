// SPDX-License-Identifier: Apache-2.0
// Turns communication that the model declares between its pieces into tasks. Declared accesses determine which items
// wait.

#include <algorithm>
#include <map>

#include <fmt/core.h>

#include "engine/plan/passes/passes.h"

namespace slipstream {
namespace {

class SublayerPass {
 public:
  SublayerPass(const Job& job, Plan& plan) : job_(job), plan_(plan) {}

  void run() {
    const bool several = job_.buffers.micro_batches > 1;
    for (ItemId id = 0; id < plan_.spine.size(); ++id) {
      const SpineItem& item = plan_.spine[id];
      for (const Slice& slice : item.reads) wait_for_open(slice, false, id);
      for (const Slice& slice : item.writes) wait_for_open(slice, true, id);
      if (item.piece >= job_.model.pieces.size()) continue;  // the item is no piece of the model
      const Piece& piece = job_.model.pieces[item.piece];
      for (const Communication& c : piece.communications)
        append(c, id,
               c.name + (piece.layer >= 0 ? fmt::format(".{}", piece.layer) : "") +
                   (several ? fmt::format("/{}", item.micro_batch) : ""));
    }
  }

 private:
  /// The accesses of a task, kept until a spine item waits for the task.
  struct Open {
    size_t task = 0;
    Slice slice;
    bool is_write = false;

    bool conflicts(const Slice& other, bool other_writes) const {
      return (is_write || other_writes) && slice.begin_bytes < other.end_bytes() &&
             other.begin_bytes < slice.end_bytes();
    }
  };

  /// The spine is in order, so that items after the first waiting one need no wait.
  void wait_for_open(const Slice& slice, bool is_write, ItemId id) {
    const auto found = open_.find(slice.buffer);
    if (found == open_.end()) return;
    std::erase_if(found->second, [&](const Open& open) {
      std::optional<Point>& before = plan_.tasks[open.task].before;
      if (!before && open.conflicts(slice, is_write)) before = Point{id};
      return before.has_value();
    });
  }

  void append(const Communication& c, ItemId id, std::string name) {
    const SpineItem& item = plan_.spine[id];
    Task task;
    task.name = std::move(name);
    task.channel = job_.channel(c.channel);
    task.op = c.op;
    task.peer = c.peer;
    task.dtype = c.dtype;
    task.elems = c.elems;
    task.algorithm = job_.options.algorithm;
    task.route = c.route;
    task.after = {{id}};
    const auto touch = [&](const Slice& named, std::vector<Slice>& slices, bool is_write) {
      if (named.size_bytes == 0) return;
      const Slice slice = job_.buffers.resolve(named, item.rebinds, item.micro_batch, item.slot);
      slices.push_back(slice);
      std::vector<Open>& others = open_[slice.buffer];
      for (const Open& other : others) {
        const Point point{kTaskBit + static_cast<ItemId>(other.task)};
        if (other.task == plan_.tasks.size() || plan_.tasks[other.task].before || !other.conflicts(slice, is_write))
          continue;
        if (std::find(task.after.begin(), task.after.end(), point) == task.after.end()) task.after.push_back(point);
      }
      others.push_back({plan_.tasks.size(), slice, is_write});
    };
    touch(c.from, task.reads, false);
    touch(c.counts, task.reads, false);
    touch(c.to, task.writes, true);
    append_task(plan_, std::move(task));
  }

  const Job& job_;
  Plan& plan_;
  std::map<BufferId, std::vector<Open>> open_;  // by buffer with storage
};

}  // namespace

void sublayer_pass(const Job& job, Plan& plan) { SublayerPass(job, plan).run(); }

}  // namespace slipstream
