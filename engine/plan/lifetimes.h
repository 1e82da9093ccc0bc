// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lifetimes of buffers that share memory: how many are alive at once, and which slot or which bytes each one receives.
//
// They serve gathered parameters and gradients on their way to a reduction (passes/residency.h), data between pipeline
// stages (passes/pipeline_transfers.h), and recomputed activations (recompute.h).

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/plan/buffers.h"

namespace slipstream {

/// Positions in an order of execution: items of a spine, actions of a stage, or works of a layer.
using Position = uint32_t;

/// The origin of the content.
enum class Source : uint8_t { computed, received };

/// The time from the first to the last use, both included.
struct Lifetime {
  BufferId buffer = 0;
  Position first_use = 0, last_use = 0;
  Source source = Source::computed;

  bool meets(const Lifetime& other) const { return first_use <= other.last_use && other.first_use <= last_use; }
};

/// Returns the largest number of lifetimes that are alive at once. Pure.
int most_alive(std::span<const Lifetime> lives);

/// Equal slots through which units (layers, micro-batches) pass. The least recently used slot is taken first. A lease
/// is the only access to a unit's slot, and it extends the tenancy. So the next tenant waits for every use, and no
/// release can be forgotten.
class Slots {
 public:
  struct Tenant {
    int64_t unit = 0;
    Position last_use = 0;
  };
  struct Lease {
    int slot = 0;
    bool moved_in = false;  // the unit was in no slot: its content must first be computed or brought
    /// The previous tenant of the slot, if the unit moved in; none: the slot was never used.
    std::optional<Tenant> previous;
  };
  explicit Slots(size_t count = 0) : tenants_(count) {}
  bool empty() const { return tenants_.empty(); }
  int count() const { return static_cast<int>(tenants_.size()); }
  /// Returns a lease for uses of a unit up to `last_use`.
  Lease lease(int64_t unit, Position last_use);

 private:
  std::vector<std::optional<Tenant>> tenants_;
};

/// A buffer of its own size with all its lifetimes, and its position among others.
struct Packed {
  BufferId buffer = 0;
  int64_t size_bytes = 0;
  std::vector<Lifetime> lives;
  int64_t begin_bytes = 0;  // set by pack()
};
/// Places the buffers so that those with disjoint lifetimes share bytes. The largest buffer is placed first, and each
/// one at the first position without a conflict. Returns the bytes of all. Pure.
int64_t pack(std::vector<Packed>& buffers);

}  // namespace slipstream
