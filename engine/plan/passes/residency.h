// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which layers are in memory when: slots for gathered parameters and for gradients on their way to reduction.

#include <map>
#include <set>
#include <vector>

#include "engine/plan/passes/passes.h"

namespace slipstream {

/// Follows a spine as it is built and decides, use by use, where sharded layers live (ZeRO stages 2 and 3).
///
/// Parameters: a use of a layer that is in a slot is a hit; otherwise it takes the slot whose last use is longest ago.
/// Gradients: the backward of a layer takes the next slot in turn; its reduction frees it.
class Residency {
 public:
  explicit Residency(const Job& job);

  /// Sets the rebinds of the item that will be number `id`, a piece of `micro_batch`, and whether it accumulates.
  void enter(ItemId id, const Piece& piece, bool backward, SpineItem& item);

  /// Appends gathers, and the reductions and additions of layer gradients, now that the spine is complete. Fills the
  /// points of layer buckets in `reduced` (sized by bucket) if it is not null.
  void append_tasks(Plan& plan, Reduced* reduced) const;

 private:
  struct Gather {
    size_t bucket = 0;
    Slice where;
    ItemId first_use = 0;
    bool has_tenant = false;
    ItemId tenant_last_use = 0;
  };
  struct Reduce {
    size_t bucket = 0;
    int slot = 0;
    int32_t micro_batch = 0;
    ItemId first_use = 0;
    ItemId last_use = 0;
  };
  struct Slot {
    int layer = -1;
    bool used = false;
    ItemId last_use = 0;
  };

  std::set<size_t> gradients_of(const Piece& piece) const;  // buckets of layers
  bool reads_parameters(const Piece& piece) const;
  void bind(size_t bucket, const Slice& where, bool gradients, std::vector<Rebind>& rebinds) const;

  const Job& job_;
  std::map<int, std::vector<size_t>> buckets_of_layer_;  // one, or one for each pass of a split backward
  std::map<BufferId, size_t> bucket_of_gradient_;
  std::vector<Slot> slots_;
  std::vector<Gather> gathers_;
  std::vector<Reduce> reduces_;
};

}  // namespace slipstream
