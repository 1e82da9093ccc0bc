// SPDX-License-Identifier: Apache-2.0
#pragma once
// Why one item of a plan waits for another: the shortest chain of waits, channel orders and messages between them.

#include <cstdint>
#include <span>
#include <vector>

#include "comm/rehearse/runs.h"
#include "engine/plan/mesh.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

/// An item in a run of a rank that is given.
struct Place {
  uint32_t rank_index = 0;
  uint32_t run = 0;
  ItemId item = 0;
  bool operator==(const Place&) const = default;
};

/// Why an item cannot begin before another one.
enum class Because : uint8_t {
  wait,     // it waits for the other's end, in this plan or from an earlier one
  channel,  // the other is before it on its channel
  meeting,  // both belong to one message or one collective, which begins when all its ranks have entered
};

struct WaitStep {
  Place place;
  Because because = Because::wait;  // the reason why this item comes after the one before it in the chain
};

/// The shortest chain of waits from `later` (not in the result) to `earlier` (its last element); empty if `later` can
/// begin without it. Every rank given represents the ranks that differ from it in axes other than pipeline. The plans
/// must be finished, and their channels independent of each other. Pure.
std::vector<WaitStep> why_waits(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                                const Place& later, const Place& earlier);

}  // namespace slipstream::comm
