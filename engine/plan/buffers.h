// SPDX-License-Identifier: Apache-2.0
#pragma once
// All buffers of a rank: the owner, the size, and views into other buffers.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/device/work.h"

namespace slipstream {

/// The purpose of the bytes. The memory table of a plan has one line for each owner.
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
  int64_t size_bytes = 0;  // the size of one instance
  Owner owner = Owner::scratch;
  Instances instances = Instances::one;
  int slots = 1;         // the number of instances if the buffer is per_slot
  bool is_view = false;  // `view` then has its location; views own no bytes
  Slice view;
};

/// The buffers that all plans of a job share, so that one BufferId means the same bytes in training, evaluation and
/// saving.
class Buffers {
 public:
  /// Adds a buffer with storage of its own. Throws: PlanError if the name is taken or the size is negative.
  BufferId add(BufferSpec spec);
  /// Makes `buffer` a view into `target`, which must have storage and Instances::one. Throws: PlanError if it does not
  /// fit.
  void set_view(BufferId buffer, const Slice& target);

  /// Makes `buffer` one of `slots` instances. The slot of an item selects the instance.
  void set_slots(BufferId buffer, int slots);
  /// Sets the size of a buffer without views, if its creator did not know the size yet.
  void set_size(BufferId buffer, int64_t size_bytes) { specs_[buffer].size_bytes = size_bytes; }
  /// Removes the bytes of a buffer that nothing on this rank uses.
  void drop(BufferId buffer) { specs_[buffer].size_bytes = 0; }

  const BufferSpec& operator[](BufferId buffer) const { return specs_[buffer]; }
  size_t size() const { return specs_.size(); }
  BufferId find(const std::string& name) const;  // throws PlanError if there is none
  Slice whole(BufferId buffer) const { return {buffer, 0, specs_[buffer].size_bytes}; }

  /// Return the number of instances of `buffer`, and the distance between two of them (a multiple of 64 bytes).
  int64_t instances(BufferId buffer) const;
  int64_t stride_bytes(BufferId buffer) const;

  /// Pure. Returns the location of `slice` for micro-batch `micro_batch` and slot `slot`: follows rebinds, then views,
  /// and then adds the instance. The result names a buffer with storage and counts from its first instance.
  Slice resolve(const Slice& slice, std::span<const Rebind> rebinds, int micro_batch, int slot) const;

  int64_t bytes(Owner owner) const;  // of all buffers with storage and all their instances
  /// Returns true if the owner's bytes are in the memory of the device. If the device is a GPU, snapshots are not.
  bool is_on_device(Owner owner) const {
    return (owner != Owner::snapshot && owner != Owner::kept) || !snapshots_beside;
  }
  int64_t total_bytes() const;  // the bytes of all owners on the device

  int micro_batches = 1;          // instances of per_micro_batch buffers
  bool snapshots_beside = false;  // snapshots are in host memory, which is separate from the device's

 private:
  std::vector<BufferSpec> specs_;
  std::map<std::string, BufferId> by_name_;
};

}  // namespace slipstream
