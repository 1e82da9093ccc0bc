// SPDX-License-Identifier: Apache-2.0
#pragma once
// The waits of NCCL's abort, and communicators that break: an operation exists from its call until it has run, and in a
// graph until the graph is destroyed.

#include <nccl.h>

#include <functional>

namespace slipstream::fake_nccl {

// --- called by the fake itself
/// Runs `body` as an operation of `comm`.
std::function<void()> operation(ncclComm_t comm, std::function<void()> body);
/// Blocks. `wake` makes waits inside bodies return. Then, like ncclCommAbort, waits until no operation of `comm` exists
/// and, if ranks are processes, until none of this process runs, because freeing NCCL's memory waits for the device.
void end_operations(ncclComm_t comm, const std::function<void()>& wake, bool of_process);

// --- called by tests
/// From operation number `count` on, this process's operations hang until they are aborted, and all its communicators
/// see an error.
void break_after(int64_t count);
/// Does the same without an error: the rank is silent.
void silent_after(int64_t count);

}  // namespace slipstream::fake_nccl
