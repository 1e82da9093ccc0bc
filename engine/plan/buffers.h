// SPDX-License-Identifier: Apache-2.0
#pragma once
// All buffers of a rank: owner, size, and views into other buffers.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/device/work.h"

namespace slipstream {

/// Purpose of the bytes; the memory table of a plan has one line for each.
enum class Owner : uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  batch,
  communication,
  scratch,
  snapshot,
  kept  // snapshots in memory that outlives the process
};
constexpr int kOwners = 9;
const char* name_of(Owner owner);

struct BufferSpec {
  std::string name;
  int64_t size_bytes = 0;  // of one instance
  Owner owner = Owner::scratch;
  Instances instances = Instances::one;
  int slots = 1;         // number of instances if they are per_slot
  bool is_view = false;  // then `view` has its location; views own no bytes
  Slice view;
};

/// Shared by all plans of a job, so that one BufferId means the same bytes in training, evaluation and saving.
class Buffers {
 public:
  /// Adds a buffer with its own storage. Throws PlanError if the name is taken or the size is negative.
  BufferId add(BufferSpec spec);
  /// Makes `buffer` a view into `target` (which has storage and Instances::one). Throws PlanError if it does not fit.
  void set_view(BufferId buffer, const Slice& target);

  /// Makes `buffer` one of `slots` instances, chosen by an item's slot.
  void set_slots(BufferId buffer, int slots);
  /// Gives a buffer without views its size, which its creator did not know yet.
  void set_size(BufferId buffer, int64_t size_bytes) { specs_[buffer].size_bytes = size_bytes; }
  /// Removes its bytes: nothing on this rank uses it.
  void drop(BufferId buffer) { specs_[buffer].size_bytes = 0; }

  const BufferSpec& operator[](BufferId buffer) const { return specs_[buffer]; }
  size_t size() const { return specs_.size(); }
  BufferId find(const std::string& name) const;  // Throws PlanError if there is none.
  Slice whole(BufferId buffer) const { return {buffer, 0, specs_[buffer].size_bytes}; }

  /// Number of instances of `buffer`, and the distance between two (64-byte multiple).
  int64_t instances(BufferId buffer) const;
  int64_t stride_bytes(BufferId buffer) const;

  /// Pure. Location of `slice` for micro-batch `micro_batch` and slot `slot`: follows rebinds, then views, then adds
  /// the instance. The result names a buffer with storage and counts from its first instance.
  Slice resolve(const Slice& slice, std::span<const Rebind> rebinds, int micro_batch, int slot) const;

  int64_t bytes(Owner owner) const;  // of all buffers with storage, all instances
  /// Are the owner's bytes in the memory of the device? Snapshots are not, if that is a GPU's.
  bool is_on_device(Owner owner) const {
    return (owner != Owner::snapshot && owner != Owner::kept) || !snapshots_beside;
  }
  int64_t total_bytes() const;  // of all owners on the device

  int micro_batches = 1;          // instances of per_micro_batch buffers
  bool snapshots_beside = false;  // host memory holds the snapshots, beside that of the device

 private:
  std::vector<BufferSpec> specs_;
  std::map<std::string, BufferId> by_name_;
};

}  // namespace slipstream
