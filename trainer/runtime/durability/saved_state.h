// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a rank as boxes of logical tensors, and back: weights as the optimizer keeps them, optimizer states, and
// what encoding held back.

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

/// The tensors of the model with the arrays of their optimizers. Pure.
std::vector<checkpoint::LogicalTensor> logical_tensors(const std::vector<std::shared_ptr<const Job>>& stages);

/// Hash of everything that decides which rank holds which element. Runs with the same hash hold the same bytes in the
/// same places. Pure.
std::string memory_layout_of(const std::vector<std::shared_ptr<const Job>>& stages);

/// Reads elements of a saved array, as Rank::read_state does: at rest, or from a snapshot.
using ReadState = std::function<void(size_t bucket, size_t array, int64_t begin, std::span<float> out)>;
ReadState read_at_rest(Rank& rank);
/// The snapshot must be done. Any thread may read.
ReadState read_snapshot(const Rank& rank);

/// What this rank writes into a checkpoint. Over all ranks every element of every tensor is in one box. Reading a
/// weight that is not finite throws NumericsError.
std::vector<checkpoint::BoxToSave> boxes_to_save(const Job& job, const ReadState& read);

/// The same boxes with their first bytes in a slot of Job::keeping, counted behind its header. Pure.
std::vector<std::pair<checkpoint::Box, int64_t>> kept_boxes(const Job& job);

/// Sets weights and states of a rank from the boxes that it wants; reads its own bytes only.
class Restoring {
 public:
  /// Residuals return to the ranks and buckets that they come from (`same_layout`). Another layout drops them: they are
  /// the rounding errors of one step.
  Restoring(Rank& rank, bool same_layout);
  ~Restoring();

  /// Blocks. Reads files of a checkpoint once: sets what they hold, and returns the first problem, or an empty text.
  /// After a problem, weights and states are undefined.
  std::string take(const std::string& folder, const std::vector<checkpoint::StateFile>& files);
  /// Blocks. Sets the rest. Returns false if it drops residuals of the checkpoint.
  /// Throws: CheckpointError.
  bool finish(const checkpoint::StateReader& from);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The boxes that a rank wants. Pure.
std::vector<checkpoint::Box> wanted_boxes(const Job& job, bool same_layout);

}  // namespace slipstream::runtime
