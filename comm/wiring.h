// SPDX-License-Identifier: Apache-2.0
#pragma once
// Assigns a connection to every channel. Each channel has its own, but the two ends of a wire ("x_out" here, "x_in" at
// the peer) share one.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/job.h"
#include "engine/report/critical_path.h"

namespace slipstream::comm {

/// A channel is one stream, and a connection serves one stream per rank. Neighbouring pairs of ranks on an axis
/// alternate between two connections, so that a rank can receive while it sends. A ring with an odd number of pairs
/// needs a third connection for the pair that closes it.
struct Wiring {
  std::vector<Axis> connections;   // to make collectively, in this order
  std::vector<int> connection_of;  // by channel; -1: the channel is local, or this rank does not use it
};

/// Pure. Returns the same `connections` on all ranks.
Wiring wire_up(const Job& job);

/// Pure. The name of a connection: the first channel that uses it on this rank, or "unused".
std::string name_of_connection(const Job& job, const Wiring& wiring, size_t connection);

/// Pure. A text that is equal on all ranks that meet on this channel, and different for any other group or pair.
std::string group_of(const Job& job, ChannelId channel);

/// Pure. The plans in the steps, by item of a timeline. A rendezvous is equal on the ranks that take part in a task,
/// and different for any other task. Items of one step wait for each other and for those of the step before. The plans
/// must be finished.
PlanGraph graph_of(const Job& job);

}  // namespace slipstream::comm
