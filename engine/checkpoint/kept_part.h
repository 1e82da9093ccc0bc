// SPDX-License-Identifier: Apache-2.0
#pragma once
// A part of a run's state in memory that outlives its process: one rank's boxes after several steps, with hashes.
//
// The bytes are: head, start | marks | slots | text. The start identifies the start of the program that owns the
// snapshots, so that snapshots of another folder or of an older copy of this one do not count. The text is a manifest
// line and then a line "OFFSET BOX" for each box. That manifest has no step and no files and is equal on all ranks of a
// run. A slot is a header and the boxes' bytes. Its header is written last and has their hash. A mark has the data of a
// step that only the host has. A run cannot continue from a step without a mark.

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

/// The data of a step that only the host has, and that a snapshot of device memory therefore lacks.
struct KeptMark {
  NumericsHistory history;          // the history after the step
  std::array<double, 4> results{};  // the results of the step, in the caller's order
  bool operator==(const KeptMark&) const = default;
};

struct KeptShape {
  int rank = 0, ranks = 1;
  int slots = 2;
  int64_t slot_bytes = 0;    // including the header
  int64_t arrays_bytes = 0;  // the bytes after the header, which have a hash
  std::string text;
};
/// Returns the text of a part. Offsets count from the first byte after a slot's header. Pure.
std::string kept_text(const Manifest& manifest, const std::vector<std::pair<Box, int64_t>>& boxes);

/// Writes the header of a slot: its arrays are the state after `step`. The arrays must be complete before the call.
void seal_slot(std::byte* header, int64_t step, std::span<const std::byte> arrays);

/// A view of a part. Several threads and processes may use different slots at once.
class KeptPart {
 public:
  static constexpr int64_t kSlotHeaderBytes = 4096;

  /// Pure.
  static int64_t size_bytes(const KeptShape& shape);
  /// Makes a part without snapshots in zeroed memory of size_bytes() bytes.
  static KeptPart format(std::span<std::byte> memory, const KeptShape& shape);
  KeptPart() = default;
  /// Returns the part in this memory, or none if the memory does not hold one. Reads the head and the text.
  static std::optional<KeptPart> open(std::span<std::byte> memory);

  const KeptShape& shape() const { return shape_; }
  /// Returns the address of all slots, which follow each other.
  std::byte* slots() const { return slots_; }
  const std::byte* arrays(int slot) const { return slots_ + slot * shape_.slot_bytes + kSlotHeaderBytes; }
  /// Returns the step of a slot with a complete header, or none if there is no such header. The arrays may not match
  /// the header.
  std::optional<int64_t> step_of(int slot) const;
  /// Blocks. Hashes the arrays and returns true if they match the header.
  bool verifies(int slot) const;
  /// Removes the snapshots and marks of all steps after `step`.
  void forget_after(int64_t step);
  /// `start` has 16 characters.
  void set_start(const std::string& start);
  /// Returns the text of the latest set_start(), or an empty text without one.
  std::string start() const;

  void mark(int64_t step, const KeptMark& mark);
  std::optional<KeptMark> mark_of(int64_t step) const;

  /// Returns the line of the manifest, including its line feed.
  std::string manifest_text() const;
  std::vector<std::pair<Box, int64_t>> boxes() const;

 private:
  std::byte *start_ = nullptr, *marks_ = nullptr, *slots_ = nullptr;
  KeptShape shape_;
};

}  // namespace slipstream::checkpoint
