// SPDX-License-Identifier: Apache-2.0
#pragma once
// A fake of the NCCL calls that the communicator uses: ranks are threads of one process, each with a stream of the fake
// CUDA runtime, or processes of one machine. Non-blocking like NCCL: calls return "in progress" and complete some polls
// later.

#include <nccl.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/fake_cuda/shared_group.h"

namespace slipstream::fake_nccl {

/// The calls of one rank, such as "all_reduce 7 ncclFloat32", "group", "send 7 to 1", in order.
std::vector<std::string> calls_of(int rank);
void reset();
/// From now on every poll of `rank`'s communicators returns this error.
void break_rank(int rank, ncclResult_t error);
/// The next communicators never finish connecting.
void never_connect(bool never);
void set_version(int version);
/// From now on the ranks of a group are processes, and the operations of each run one at a time in the order of their
/// launches, as on a GPU that one of them fills: if another rank launches them in another order, they never end. The
/// operations of a graph count as launched with it, in the order in which they were recorded. A process exits with
/// kOrdersDiffer if its operations wait longer than `patience` for each other or for those of other ranks, or if they
/// meet different ones.
void between_processes(std::chrono::milliseconds patience = std::chrono::milliseconds(60000));

}  // namespace slipstream::fake_nccl
