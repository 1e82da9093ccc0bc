// SPDX-License-Identifier: Apache-2.0
// Keeps the names, sizes and views of buffers, and resolves a slice of an item to its actual bytes.

#include "engine/plan/buffers.h"

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream {
namespace {
constexpr int64_t kAlignmentBytes = 64;
}

const char* name_of(Owner owner) {
  switch (owner) {
    case Owner::parameters:
      return "parameters";
    case Owner::gradients:
      return "gradients";
    case Owner::optimizer:
      return "optimizer";
    case Owner::activations:
      return "activations";
    case Owner::batch:
      return "batch";
    case Owner::communication:
      return "communication";
    case Owner::scratch:
      return "scratch";
    case Owner::snapshot:
      return "snapshot";
    case Owner::kept:
      return "kept snapshots";
  }
  return "?";
}

BufferId Buffers::add(BufferSpec spec) {
  const auto id = static_cast<BufferId>(specs_.size());
  if (spec.size_bytes < 0) throw PlanError("[plan] buffer {} would have {} bytes.", spec.name, spec.size_bytes);
  if (!by_name_.emplace(spec.name, id).second) throw PlanError("[plan] two buffers are named {}.", spec.name);
  specs_.push_back(std::move(spec));
  return id;
}

void Buffers::set_view(BufferId buffer, const Slice& target) {
  BufferSpec& spec = specs_[buffer];
  const BufferSpec& storage = specs_[target.buffer];
  if (storage.is_view || storage.instances != Instances::one || target.begin_bytes < 0 ||
      target.size_bytes < spec.size_bytes || target.end_bytes() > storage.size_bytes)
    throw PlanError("[plan] {} ({} bytes) cannot be a view of {} at {}..{}: it has {} bytes.", spec.name,
                    spec.size_bytes, storage.name, target.begin_bytes, target.end_bytes(), storage.size_bytes);
  spec.is_view = true;
  spec.view = target;
}

void Buffers::set_slots(BufferId buffer, int slots) {
  specs_[buffer].instances = Instances::per_slot;
  specs_[buffer].slots = slots;
}

BufferId Buffers::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw PlanError("[plan] no buffer is named {}.", name);
  return found->second;
}

int64_t Buffers::instances(BufferId buffer) const {
  switch (specs_[buffer].instances) {
    case Instances::one:
      return 1;
    case Instances::per_micro_batch:
      return micro_batches;
    case Instances::per_slot:
      return specs_[buffer].slots;
  }
  return 1;
}

int64_t Buffers::stride_bytes(BufferId buffer) const { return round_up(specs_[buffer].size_bytes, kAlignmentBytes); }

Slice Buffers::resolve(const Slice& slice, std::span<const Rebind> rebinds, int micro_batch, int slot) const {
  Slice result = slice;
  for (const Rebind& rebind : rebinds)
    if (rebind.from == result.buffer) {
      result.buffer = rebind.to.buffer;
      result.begin_bytes += rebind.to.begin_bytes;
      break;
    }
  if (const BufferSpec& spec = specs_[result.buffer]; spec.is_view) {
    if (spec.view.size_bytes == 0)
      throw PlanError("[plan] an item uses {}, which has no slot at that time.", spec.name);
    result.buffer = spec.view.buffer;
    result.begin_bytes += spec.view.begin_bytes;
  }
  const Instances instances_kind = specs_[result.buffer].instances;
  const int64_t instance = instances_kind == Instances::one               ? 0
                           : instances_kind == Instances::per_micro_batch ? micro_batch
                                                                          : slot;
  if (instance >= instances(result.buffer))
    throw PlanError(
        "[plan] an item uses instance {} of {}, which has {}. Give it as many instances as slots or micro-batches are "
        "in flight.",
        instance, specs_[result.buffer].name, instances(result.buffer));
  result.begin_bytes += instance * stride_bytes(result.buffer);
  return result;
}

int64_t Buffers::bytes(Owner owner) const {
  int64_t total = 0;
  for (BufferId id = 0; id < specs_.size(); ++id)
    if (!specs_[id].is_view && specs_[id].owner == owner) total += instances(id) * stride_bytes(id);
  return total;
}

int64_t Buffers::total_bytes() const {
  int64_t total = 0;
  for (BufferId id = 0; id < specs_.size(); ++id)
    if (!specs_[id].is_view && is_on_device(specs_[id].owner)) total += instances(id) * stride_bytes(id);
  return total;
}

}  // namespace slipstream
