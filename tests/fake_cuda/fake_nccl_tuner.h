// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the fake NCCL asks and keeps beside moving bytes: its tuner, its configurations, its memory and what is
// registered.

#include <nccl.h>

#include <string>
#include <vector>

namespace slipstream::fake_nccl {

// --- called by the fake itself
void began(ncclComm_t comm, int rank, int size, const ncclConfig_t* config);
void ended(ncclComm_t comm);
/// `bytes`: of the larger buffer. Asks the tuner as NCCL does, if NCCL_TUNER_PLUGIN says that it is in the program.
void tune(ncclComm_t comm, const std::string& verb, size_t bytes);

// --- called by tests
/// The configurations of one rank's communicators in order, such as "reduce: ctas 2 to 4, cluster 0, class 1"; what is
/// not set is "-".
std::vector<std::string> configs_of(int rank);
/// What the name of that rank's latest communicator points to now: NCCL keeps the pointer.
std::string name_of_latest(int rank);
/// What ncclMemAlloc says from now on, whatever is free.
void memory_says(ncclResult_t result);
/// The exit code of a process that freed memory which a communicator still knew.
constexpr int kFreedWhileRegistered = 87;
/// From now on that ends the process.
void end_when_freed_while_registered();
/// What ncclCommRegister says from now on; with ncclSuccess and `gives_handle` false it has no use for the memory. On
/// the fake's links it has none for memory that did not come from ncclMemAlloc: they are NVLink, and a registration
/// counts where memory is read in place. (The real one gives a handle, and copies.)
void register_says(ncclResult_t result, bool gives_handle = true);
struct Registered {
  int now = 0, ever = 0;
  int freed_while_registered = 0;  // memory freed that a communicator still knew
  int ended_with_registered = 0;   // communicators destroyed with memory that they still knew
};
Registered registered();
void reset_tuner();

}  // namespace slipstream::fake_nccl
