// SPDX-License-Identifier: Apache-2.0
#pragma once
// Snapshots of the training state in the memory of two hosts (checkpoint.peer_interval). Keepers hold the slots of
// Job::keeping.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/kept_part.h"
#include "engine/plan/keeping.h"
#include "trainer/runtime/durability/checkpoints.h"
#include "trainer/runtime/durability/keeper.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// Returns the name of a part in a keeper. It identifies the meaning of its bytes, its rank, and which of the two
/// copies it is. Parts with the same name are the same memory, which a relaunched rank continues to use. Pure.
std::string kept_name(const checkpoint::KeptShape& shape, int copy);

/// The names by which a start of the program finds its snapshots in memory.
struct RunName {
  std::string run_id;  // identifies the run across starts
  std::string keeper;  // identifies the keepers on the run's hosts; a copy of the folder has others
  std::string start;   // chosen at random by this start
  /// An earlier start. This start may continue its snapshots up to a step.
  struct Former {
    std::string start;
    int64_t most_step = 0;
  };
  std::vector<Former> formers = {};

  /// Pure. Returns true if this start may use a snapshot of `owner` after `step`.
  bool may_continue(const std::string& owner, int64_t step) const;
};
/// Blocks. Collective: rank 0 reads. A run that continues takes the names in `dir`/run.json, and the starts in it as
/// formers. Without a former, no snapshot is found. Other runs get new names.
RunName run_name_of(World& world, const std::string& dir, bool continues);
/// Blocks. Collective: rank 0 reads. Returns the name of the keepers of a run in this folder, which must exist.
std::string keeper_name_of(World& world, const std::string& run_id, const std::string& dir);

class PeerMemory {
 public:
  /// Blocks. Collective. Takes the memory for all slots, or finds it in this host's keeper.
  /// Throws on all ranks: ResourceError if a host refuses it.
  PeerMemory(World& world, const Job& job, const checkpoint::Manifest& manifest, const RunName& run, int64_t interval);

  /// Returns the slots of this rank and those that it holds for another one (null: none), for RankOptions::kept.
  std::array<std::byte*, 2> slots() const;
  /// The run continues after `step`. Drops snapshots of later steps, which could not be used, and all snapshots of
  /// other starts.
  void begin(int64_t step);

  bool is_due(int64_t step) const { return step % interval_ == 0; }
  int slot_of(int64_t step) const { return kept_slot(keeping_, interval_, step); }
  /// From now on, the run can continue from the snapshot after `step` once that is complete. The lines of metrics of
  /// earlier steps must be written. Must be called before the snapshot of a later step begins.
  void mark(int64_t step, const checkpoint::KeptMark& mark);
  /// Blocks. Collective. The run is over, so all hosts free the memory.
  void end();

 private:
  /// The memory of one part, and its position in the keeper.
  struct Held {
    std::string name;
    std::unique_ptr<KeptMemory> memory;
    checkpoint::KeptPart part;
  };
  Held hold(const checkpoint::KeptShape& shape, int copy);
  void watch_keeper();
  void drop_older();

  World& world_;
  const Keeping keeping_;
  const int64_t interval_;
  const RunName name_;
  std::unique_ptr<Keeper> keeper_;
  std::vector<Held> held_;               // this rank's own part, and the peer's
  std::vector<std::string> names_here_;  // the names of all ranks of this host
  int64_t marked_ = 0;                   // the last step that this object has marked
};

}  // namespace slipstream::runtime
