// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which connection serves which channel: one each, but the two ends of a wire ("x_out" here, "x_in" at the peer) share
// one.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream::comm {

/// A channel is one stream, and a connection serves one stream per rank. So that a rank can receive while it sends, the
/// hops of a wire along an axis take turns in using two connections; where a ring of hops has an odd length, the one
/// that closes it has a third.
struct Wiring {
  std::vector<Axis> connections;   // to make, collectively, in this order
  std::vector<int> connection_of;  // by channel; -1: local, or not used by this rank
};

/// The same `connections` on all ranks. Pure.
Wiring wire_up(const Job& job);

/// What a connection is called: the first channel that uses it here, or "unused". Pure.
std::string name_of_connection(const Job& job, const Wiring& wiring, size_t connection);

/// A number for every communication task of the training plan, the same on the ranks that take part in it and on no
/// other: by item, 0 for the rest. Pure; the plan must be finished.
std::vector<uint64_t> rendezvous_of(const Job& job);

}  // namespace slipstream::comm
