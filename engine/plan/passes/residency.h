// SPDX-License-Identifier: Apache-2.0
#pragma once
// The residency of layers: slots for gathered parameters, and for gradients on their way to a reduction.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/lifetimes.h"
#include "engine/plan/passes/passes.h"

namespace slipstream {

/// Follows a spine as it is built and chooses the location of sharded layers at each use (Sharding::gradients and
/// Sharding::parameters). If embedding and head share no table, they take turns in a separate slot: while layers
/// compute, one of them is gathered, and the gradients of the other are reduced.
///
/// Parameters: if a layer is in a slot, its use is a hit. Otherwise it takes the slot with the oldest last use.
/// Gradients: the backward of a layer takes the slot with the oldest last use of each group as well; its reduction
/// frees it.
/// Gradients of small persistent parameters stay in place and are reduced at the end of a micro-batch's backward pass.
class Residency {
 public:
  explicit Residency(const Job& job);

  /// Sets the rebinds of item number `id`, a piece of `micro_batch`, and whether it accumulates.
  void enter(ItemId id, const Piece& piece, bool backward, SpineItem& item);

  /// Appends gathers, and the reductions and additions of layer gradients. The spine must be complete. Fills in the
  /// points of layer buckets in `reduced` (sized by bucket) if it is not null.
  void append_tasks(Plan& plan, Reduced* reduced) const;

 private:
  struct Gather {
    size_t bucket = 0;
    Slice where;
    ItemId first_use = 0;
    std::optional<ItemId> tenant_last_use;
  };
  struct Reduce {
    size_t bucket = 0;
    int slot = -1;  // the slot of gradient_slot_slice(); -1: the whole gradients of persistent parameters
    int32_t micro_batch = 0;
    ItemId first_use = 0;
    ItemId last_use = 0;
    std::optional<ItemId> next_write;  // the next item of the backward pass that writes the same bytes
  };
  /// Returns true if a work of `piece` uses values (or gradients) of `bucket`.
  bool touches(const Piece& piece, size_t bucket, bool gradients) const;
  /// Returns the points of each of gathers_.
  std::vector<std::vector<Point>> append_gathers(Plan& plan) const;
  bool shares_place(const Reduce& earlier, size_t bucket, int slot) const;
  void reduce_from(size_t bucket, int slot, ItemId id, int32_t micro_batch);
  std::string name_of(size_t bucket) const;
  void bind(size_t bucket, const Slice& where, bool gradients, std::vector<Rebind>& rebinds) const;

  const Job& job_;
  /// One bucket per layer, or one for each pass of a split backward.
  std::map<int, std::vector<size_t>> buckets_of_unit_;
  std::map<int, std::vector<size_t>> persistent_of_layer_;
  Slots slots_;                        // for layers
  Slots end_slot_;                     // for the parameters before the first layer and after the last
  std::vector<Slots> gradient_slots_;  // by group; for a bucket in a micro-batch
  /// Buckets whose unit has a slot, but that no item has used since: the last use of the slot's previous tenant.
  std::map<size_t, std::optional<ItemId>> missing_;
  std::vector<Gather> gathers_;
  std::vector<Reduce> reduces_;
};

}  // namespace slipstream
