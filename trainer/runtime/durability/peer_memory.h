// SPDX-License-Identifier: Apache-2.0
#pragma once
// Snapshots of the training state in the memory of two hosts (checkpoint.peer_interval): the slots of Job::keeping in
// the hands of keepers.

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

/// Names a part in a keeper: its bytes' meaning, its rank, and which of its two copies it is. Parts of the same name
/// are the same memory, which a relaunched rank goes on using. Pure.
std::string kept_name(const checkpoint::KeptShape& shape, int copy);

/// The names by which a start of the program finds its snapshots in memory.
struct RunName {
  std::string run_id;  // of the run, across starts
  std::string keeper;  // of the keepers on its hosts: of this run in this very folder, so that a copy has others
  std::string start;   // drawn by this start
  /// An earlier start whose snapshots up to a step this one may continue.
  struct Former {
    std::string start;
    int64_t most_step = 0;
  };
  std::vector<Former> formers = {};

  /// Pure. May this start use a snapshot of `owner` after `step`?
  bool may_continue(const std::string& owner, int64_t step) const;
};
/// Blocks. Collective: rank 0 reads. A run that continues has the names in `dir`/run.json, and the starts in it as
/// formers; without a former, no snapshot is found. Others have new names.
RunName run_name_of(World& world, const std::string& dir, bool continues);
/// Blocks. Collective: rank 0 looks. The name of the keepers of a run in this folder, which exists.
std::string keeper_name_of(World& world, const std::string& run_id, const std::string& dir);

class PeerMemory {
 public:
  /// Blocks. Collective. Takes the memory for all slots, or finds it in this host's keeper.
  /// Throws on all ranks: ResourceError if a host refuses it.
  PeerMemory(World& world, const Job& job, const checkpoint::Manifest& manifest, const RunName& run, int64_t interval);

  /// Own slots and those that this rank holds for another (null: none), for RankOptions::kept.
  std::array<std::byte*, 2> slots() const;
  /// The run continues after `step`: snapshots of later steps, which could not be used, are forgotten, and so are all
  /// of other starts.
  void begin(int64_t step);

  bool is_due(int64_t step) const { return step % interval_ == 0; }
  int slot_of(int64_t step) const { return kept_slot(keeping_, interval_, step); }
  /// From now on the run can continue from the snapshot after `step`, once that is complete. The lines of metrics of
  /// the steps before are written. Call it before the snapshot of a later step begins.
  void mark(int64_t step, const checkpoint::KeptMark& mark);
  /// Blocks. Collective. The run is over: all hosts free the memory.
  void end();

 private:
  /// Memory of one part, and its place in the keeper.
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
  std::vector<Held> held_;               // own, peer's
  std::vector<std::string> names_here_;  // of all ranks of this host
  int64_t marked_ = 0;                   // by this object
};

}  // namespace slipstream::runtime
