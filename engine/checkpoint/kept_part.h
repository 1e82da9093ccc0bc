// SPDX-License-Identifier: Apache-2.0
#pragma once
// A part of a run's state in memory that outlives its process: one rank's boxes after several steps, with hashes.
//
// Bytes: head, start | marks | slots | text. The start names the start of the program that owns the snapshots, so that
// those of another folder or of an older copy of this one do not count. The text is a manifest line, which has no step
// and no files and is equal on all ranks of a run, then a line "OFFSET BOX" for each box. A slot is a header and the
// boxes' bytes; its header comes last and has their hash. A mark has the data of a step that only the host has; a step
// without one cannot be continued.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/state_file.h"

namespace slipstream::checkpoint {

/// Data of a step that only the host has, so that a snapshot of device memory lacks them.
struct KeptMark {
  NumericsHistory history;          // after the step
  std::array<double, 4> results{};  // of the step, in the caller's order
  bool operator==(const KeptMark&) const = default;
};

struct KeptShape {
  int rank = 0, ranks = 1;
  int slots = 2;
  int64_t slot_bytes = 0;    // header included
  int64_t arrays_bytes = 0;  // behind the header, with a hash
  std::string text;
};
/// The text of a part; offsets count from the first byte behind a slot's header. Pure.
std::string kept_text(const Manifest& manifest, const std::vector<std::pair<Box, int64_t>>& boxes);

/// Writes the header of a slot: its arrays are the state after `step`. Not before the arrays are complete.
void seal_slot(std::byte* header, int64_t step, std::span<const std::byte> arrays);

/// A view of a part. Several threads and processes may use different slots.
class KeptPart {
 public:
  static constexpr int64_t kSlotHeaderBytes = 4096;

  /// Pure.
  static int64_t size_bytes(const KeptShape& shape);
  /// Makes a part without snapshots in zeroed memory of size_bytes().
  static KeptPart format(std::span<std::byte> memory, const KeptShape& shape);
  KeptPart() = default;
  /// The part in this memory; none if it is not one. Reads head and text.
  static std::optional<KeptPart> open(std::span<std::byte> memory);

  const KeptShape& shape() const { return shape_; }
  /// All slots in a row.
  std::byte* slots() const { return slots_; }
  const std::byte* arrays(int slot) const { return slots_ + slot * shape_.slot_bytes + kSlotHeaderBytes; }
  /// The step of a slot with a whole header; the arrays may differ from it. None: nothing is there.
  std::optional<int64_t> step_of(int slot) const;
  /// Blocks. Hashes the arrays: do they match the header?
  bool verifies(int slot) const;
  /// From now on there are no snapshots and marks of later steps.
  void forget_behind(int64_t step);
  /// `start`: 16 characters.
  void set_start(const std::string& start);
  /// That of the latest set_start(); empty without one.
  std::string start() const;

  void mark(int64_t step, const KeptMark& mark);
  std::optional<KeptMark> mark_of(int64_t step) const;

  /// The line of the manifest, line feed included.
  std::string manifest_text() const;
  std::vector<std::pair<Box, int64_t>> boxes() const;

 private:
  std::byte *start_ = nullptr, *marks_ = nullptr, *slots_ = nullptr;
  KeptShape shape_;
};

}  // namespace slipstream::checkpoint
