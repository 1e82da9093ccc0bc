// SPDX-License-Identifier: Apache-2.0
#pragma once
// What crosses pipeline stages: in which slot it lives from its arrival to its last use, and the tasks that carry it.

#include <vector>

#include "engine/plan/passes/passes.h"

namespace slipstream {

/// Rings for what crosses: as many slots as are alive at once, and one more for every wire at their ends, so that one
/// can arrive or leave while the others are in use. Pure.
std::vector<Ring> size_rings(const std::vector<Chunk>& chunks, const std::vector<Action>& actions,
                             const ModelSpec& model);

/// Follows the compute order of a stage. A buffer that crosses is rebound to a slot for all items of its micro-batch
/// that may touch it; the slot whose tenant was used longest ago is next, so that receives can be posted early.
class PipelineTransfers {
 public:
  PipelineTransfers(const Job& job, const std::vector<Action>& actions);

  /// The items that will follow belong to use number `use`; the next one has number `id`.
  void enter(size_t action, ItemId id) { begins_[action] = id; }
  const std::vector<Rebind>& rebinds(size_t action) const { return rebinds_[action]; }

  /// Appends a receive before the first item that reads what arrives (after the last use of the slot, and after it has
  /// been sent), and a send after the last item of the pass that writes what leaves. `end` is the number of spine items
  /// of the uses. In an order that is the same at both ends of a wire.
  void append_tasks(Plan& plan, ItemId end) const;

 private:
  /// One use of a slot.
  struct Life {
    BufferId buffer = 0;
    Pass pass = Pass::forward;  // that it crosses in
    int chunk = 0, micro_batch = 0;
    size_t first_use = 0, last_use = 0;
    bool arrives = false, leaves = false;
    Slice where;
    int tenant = -1;  // the life before it in its slot
  };
  /// What of a plan touches a life.
  struct Touched {
    ItemId first = 0, last = 0, last_of_pass = 0;  // spine items; last_of_pass: in the pass that it crosses in
    std::vector<Point> tasks, tasks_of_pass;       // communication behind them that touches it too
  };
  friend std::vector<Ring> size_rings(const std::vector<Chunk>&, const std::vector<Action>&, const ModelSpec&);
  static std::vector<Life> lives_of(const std::vector<Chunk>& chunks, const std::vector<Action>& actions,
                                    const ModelSpec& model);
  std::vector<Touched> touched_by(const Plan& plan, ItemId end) const;

  const Job& job_;
  std::vector<Action> uses_;
  std::vector<Life> lives_;
  std::vector<ItemId> begins_;
  std::vector<std::vector<Rebind>> rebinds_;
};

}  // namespace slipstream
