// SPDX-License-Identifier: Apache-2.0
#pragma once
// A fake of the NCCL calls that the communicator uses: ranks are threads of one process, each with a stream of the fake
// CUDA runtime, or processes of one machine. Non-blocking as the real one: calls answer "in progress" and are accepted some
// looks later.

#include <nccl.h>

#include <string>
#include <vector>

namespace slipstream::fake_nccl {

/// The calls of one rank, such as "all_reduce 7 ncclFloat32", "group", "send 7 to 1", in order.
std::vector<std::string> calls_of(int rank);
void reset();
/// From now on every look at `rank`'s communicators sees this error.
void break_rank(int rank, ncclResult_t error);
/// The next communicators never finish connecting.
void never_connect(bool never);
void set_version(int version);
/// From now on the ranks of a group are processes; then there are collectives only.
void between_processes();

}  // namespace slipstream::fake_nccl
