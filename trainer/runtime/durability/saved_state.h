// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts the state of a rank to boxes of logical tensors, and back: weights in the optimizer's precision, optimizer
// states, and what encoding held back.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/state_file.h"
#include "engine/plan/job.h"
#include "trainer/runtime/rank/rank.h"

namespace slipstream::runtime {

/// Returns the tensors of the model with the arrays of their optimizers. Pure.
std::vector<checkpoint::LogicalTensor> logical_tensors(const std::vector<std::shared_ptr<const Job>>& stages);

/// Returns a hash of everything that decides which rank holds which element. Runs with the same hash hold the same
/// bytes at the same positions. Pure.
std::string memory_layout_of(const std::vector<std::shared_ptr<const Job>>& stages);

/// Reads elements of a saved array, as Rank::read_state does: at rest, or from a snapshot.
using ReadState = std::function<void(size_t bucket, size_t array, int64_t begin, std::span<float> out)>;
ReadState read_at_rest(Rank& rank);
/// Returns a reader of the snapshot, which must be complete. Any thread may call it.
ReadState read_snapshot(const Rank& rank);

/// Returns what this rank writes into a checkpoint. Over all ranks, every element of every tensor is in exactly one
/// box. Reading a weight that is not finite throws NumericsError.
std::vector<checkpoint::BoxToSave> boxes_to_save(const Job& job, const ReadState& read);

/// Returns the same boxes with the position of their first byte in a slot of Job::keeping, counted from the end of the
/// slot's header. Pure.
std::vector<std::pair<checkpoint::Box, int64_t>> kept_boxes(const Job& job);

/// Sets weights and states of a rank from the boxes that it wants, and reads only its own bytes.
class Restoring {
 public:
  /// With `same_layout`, residuals return to the ranks and buckets that they come from. Another layout drops them,
  /// because they are the rounding errors of one step.
  Restoring(Rank& rank, bool same_layout);
  ~Restoring();

  /// Blocks. Reads files of a checkpoint once and sets what they hold. Returns the first problem, or an empty text.
  /// After a problem, weights and states are undefined.
  std::string take(const std::string& folder, const std::vector<checkpoint::StateFile>& files);
  /// Blocks. Sets the rest. Returns false if it drops residuals of the checkpoint.
  /// Throws: CheckpointError.
  bool finish(const checkpoint::StateReader& from);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the boxes that a rank wants. Pure.
std::vector<checkpoint::Box> wanted_boxes(const Job& job, bool same_layout);

}  // namespace slipstream::runtime
