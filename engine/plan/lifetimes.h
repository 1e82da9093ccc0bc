// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lifetimes of buffers that share memory: how many are alive at once, and which slot or which bytes each receives.
//
// Gathered parameters and gradients on their way to a reduction (passes/residency.h), data between pipeline stages
// (passes/pipeline_transfers.h) and recomputed activations (recompute.h) use it.

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

/// From the first to the last use, both included.
struct Lifetime {
  BufferId buffer = 0;
  Position first_use = 0, last_use = 0;
  Source source = Source::computed;

  bool meets(const Lifetime& other) const { return first_use <= other.last_use && other.first_use <= last_use; }
};

/// The most lifetimes that are alive at once. Pure.
int most_alive(std::span<const Lifetime> lives);

/// Equal slots that units (layers, micro-batches) pass through, least recently used first. The only access to a unit's
/// slot is a lease, and the lease extends the tenancy: the next tenant therefore waits for every use, and no release
/// can be forgotten.
class Slots {
 public:
  struct Tenant {
    int64_t unit = 0;
    Position last_use = 0;
  };
  struct Lease {
    int slot = 0;
    bool moved_in = false;           // the unit was in no slot: its content must be computed or brought first
    std::optional<Tenant> previous;  // in the slot, if the unit moved in; none: the slot was never used
  };
  explicit Slots(size_t count = 0) : tenants_(count) {}
  bool empty() const { return tenants_.empty(); }
  int count() const { return static_cast<int>(tenants_.size()); }
  /// For uses of a unit up to `last_use`.
  Lease lease(int64_t unit, Position last_use);

 private:
  std::vector<std::optional<Tenant>> tenants_;
};

/// A buffer of its own size with all its lifetimes, and its place among others.
struct Packed {
  BufferId buffer = 0;
  int64_t size_bytes = 0;
  std::vector<Lifetime> lives;
  int64_t begin_bytes = 0;  // set by pack()
};
/// Buffers whose lifetimes are disjoint share bytes: each is at the first place without a conflict, the largest first.
/// Returns the bytes of all. Pure.
int64_t pack(std::vector<Packed>& buffers);

}  // namespace slipstream
