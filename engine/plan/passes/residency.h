// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which layers are in memory when: slots for gathered parameters and for gradients on their way to reduction.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/passes/passes.h"

namespace slipstream {

/// Slots that units (layers, as a rule) pass through, the least recently used first. Where one is can only be had as a
/// lease for one item of the spine, and taking the lease is what extends the tenancy: so a use that the next tenant
/// would not wait for cannot be written, and there is no release that could be forgotten.
class Slots {
 public:
  struct Lease {
    int slot = 0;
    bool moved_in = false;                  // the unit was not there: it must be gathered first
    std::optional<ItemId> tenant_last_use;  // of the unit that was there before
  };
  explicit Slots(size_t count = 0) : tenants_(count) {}
  bool empty() const { return tenants_.empty(); }
  int count() const { return static_cast<int>(tenants_.size()); }
  Lease lease(int unit, ItemId use);

 private:
  struct Tenant {
    std::optional<int> unit;
    std::optional<ItemId> last_use;
  };
  std::vector<Tenant> tenants_;
};

/// Follows a spine as it is built and decides, use by use, where sharded layers live (ZeRO stages 2 and 3). Embedding
/// and head, where they share no table, take turns in a slot of their own: the one is gathered, and the other's
/// gradients are reduced, while layers compute.
///
/// Parameters: a use of a layer that is in a slot is a hit; otherwise it takes the slot whose last use is longest ago.
/// Gradients: the backward of a layer takes the next slot in turn; its reduction frees it. Those of small parameters
/// that persist stay where they are, and are reduced when the backward pass of a micro-batch is over.
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
    std::optional<ItemId> tenant_last_use;
  };
  struct Reduce {
    size_t bucket = 0;
    int slot = -1;  // of gradient_slot_slice(); -1: the whole gradients of parameters that persist
    int32_t micro_batch = 0;
    ItemId first_use = 0;
    ItemId last_use = 0;
    std::optional<ItemId> next_write;  // of the same bytes, by backward
  };
  /// Does a work of `piece` touch values (or gradients) of `bucket`?
  bool touches(const Piece& piece, size_t bucket, bool gradients) const;
  void reduce_from(size_t bucket, int slot, ItemId id, int32_t micro_batch);
  std::string name_of(size_t bucket) const;
  void bind(size_t bucket, const Slice& where, bool gradients, std::vector<Rebind>& rebinds) const;

  const Job& job_;
  std::map<int, std::vector<size_t>> buckets_of_unit_;  // of a layer one, or one for each pass of a split backward
  std::map<int, std::vector<size_t>> persistent_of_layer_;
  Slots slots_;     // of layers
  Slots end_slot_;  // of what is before the first layer and what is behind the last
  std::vector<Gather> gathers_;
  std::vector<Reduce> reduces_;
  int slots_taken_ = 0;  // of gradients, so far
};

}  // namespace slipstream
