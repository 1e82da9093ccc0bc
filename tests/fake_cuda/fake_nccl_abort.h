// SPDX-License-Identifier: Apache-2.0
#pragma once
// What NCCL's abort waits for, and communicators that break: an operation is something that exists from its call until
// it has run, and with a graph until that is destroyed.

#include <nccl.h>

#include <functional>

namespace slipstream::fake_nccl {

// --- called by the fake itself
/// `body` as an operation of `comm`.
std::function<void()> operation(ncclComm_t comm, std::function<void()> body);
/// Blocks. `wake` lets what waits inside bodies return. Then, as ncclCommAbort: until no operation of `comm` exists,
/// and, where ranks are processes, until none of this process runs, because what NCCL frees waits for the device.
void end_operations(ncclComm_t comm, const std::function<void()>& wake, bool of_process);

// --- called by tests
/// From its operation number `count` on this process's operations stand until they are aborted, and all its
/// communicators see an error.
void break_after(int64_t count);
/// The same without an error: a rank that is silent.
void silent_after(int64_t count);

}  // namespace slipstream::fake_nccl
