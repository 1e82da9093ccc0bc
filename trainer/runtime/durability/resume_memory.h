// SPDX-License-Identifier: Apache-2.0
#pragma once
// Continues a run from the memory that keepers hold, without a disk.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/kept_part.h"
#include "trainer/runtime/durability/keeper.h"
#include "trainer/runtime/durability/peer_memory.h"
#include "trainer/runtime/durability/resume.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// The parts of a complete snapshot on the hosts of this launch.
class MemoryState {
 public:
  /// Blocks. Collective. Fetches the parts with the boxes that this rank wants, from other hosts if necessary. The
  /// reader borrows this state and reads only these boxes.
  checkpoint::StateReader reader(World& world, const std::vector<checkpoint::Box>& wanted,
                                 const checkpoint::Manifest& manifest, const std::string& name);

 private:
  friend class MemorySearch;
  struct Part {
    int provider = -1;                // the rank that provides it to all others
    const std::byte* here = nullptr;  // its arrays, on this host or as received
    int64_t arrays_bytes = 0;
    std::vector<std::pair<checkpoint::Box, int64_t>> boxes;
  };
  std::vector<std::unique_ptr<KeptMemory>> memories_;
  std::vector<std::vector<std::byte>> received_;
  std::vector<Part> parts_;  // by the rank of the run that left them
};

/// Blocks. Collective. Returns the newest step for which the keepers of this launch's hosts have a complete part of
/// every rank, or none. Prints why newer steps are not used. Only snapshots that `name` may continue count.
std::optional<ResumePoint> find_in_memory(World& world, const RunName& name);

/// Blocks. Collective. Returns the newest state of the run: in memory, or a checkpoint in `dir`. Reads no file of a
/// checkpoint that is older than the state in memory. Throws: as find_resume_point().
std::optional<ResumePoint> find_newest_state(World& world, const std::string& dir, const RunName& name,
                                             ResumeSearch search);

}  // namespace slipstream::runtime
