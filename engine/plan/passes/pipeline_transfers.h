// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data that crosses from one part of the model to the next: its slot from its arrival to its last use, and the tasks
// that carry it if the next part is on another stage.

#include <vector>

#include "engine/plan/lifetimes.h"
#include "engine/plan/passes/passes.h"

namespace slipstream {

/// Pure. Returns the slots for transfers between stages: as many as are in use at once, and one more for every wire at
/// their ends, so that a transfer can arrive or leave while the others are in use.
std::vector<Ring> size_rings(const std::vector<Chunk>& chunks, const std::vector<Action>& actions,
                             const ModelSpec& model, const StagePlacement& placement);

/// Follows the compute order of a stage. A buffer that crosses is rebound to a slot for all items of its micro-batch
/// that may use it; the next one is the slot with the oldest last use, so that receives can be posted early. Where the
/// next part is on the same stage, both parts use the slot, and nothing travels.
class PipelineTransfers {
 public:
  PipelineTransfers(const Job& job, const std::vector<Action>& actions);

  /// The following items belong to action number `action`. The next item has number `id`.
  void enter(size_t action, ItemId id) { begins_[action] = id; }
  const std::vector<Rebind>& rebinds(size_t action) const { return rebinds_[action]; }

  /// Appends a receive before the first item that reads the arriving data, and a send after the last item of the pass
  /// that writes the leaving data. A receive begins after the last use of the slot and after its content has been sent.
  /// Both ends of a wire have the same order. `end` is the number of spine items of the actions.
  void append_tasks(Plan& plan, ItemId end) const;

 private:
  /// One use of a slot.
  struct Life : Lifetime {
    Pass pass = Pass::forward;  // the pass in which it crosses
    int micro_batch = 0;
    int first_part = 0, last_part = 0;  // the parts of the model on this stage that use it while it crosses
    std::vector<Position> uses = {};    // actions in any order
    Position last_crossing = 0;         // the action of last_part
    bool leaves = false;
    Slice where;
    int tenant = -1;  // the previous life in its slot
  };
  /// The items of a plan that use a life.
  struct Touched {
    ItemId first = 0, last = 0, last_of_pass = 0;  // spine items; last_of_pass is in last_crossing
    std::vector<Point> tasks, tasks_of_pass;       // the communication after them that also uses it
  };
  friend std::vector<Ring> size_rings(const std::vector<Chunk>&, const std::vector<Action>&, const ModelSpec&,
                                      const StagePlacement&);
  static std::vector<Life> lives_of(const std::vector<Chunk>& chunks, const std::vector<Action>& actions,
                                    const ModelSpec& model, const StagePlacement& placement);
  Task task_of(const Life& life, bool send) const;
  std::vector<Touched> touched_by(const Plan& plan, ItemId end) const;

  const Job& job_;
  std::vector<Life> lives_;
  std::vector<ItemId> begins_;
  std::vector<std::vector<Rebind>> rebinds_;
};

}  // namespace slipstream
