// SPDX-License-Identifier: Apache-2.0
#pragma once
// State of the fake NCCL in addition to moving bytes: its tuner, its configurations, its memory and registrations.

#include <nccl.h>

#include <string>
#include <vector>

namespace slipstream::fake_nccl {

// --- called by the fake itself
void began(ncclComm_t comm, int rank, int size, const ncclConfig_t* config);
void ended(ncclComm_t comm);
/// `bytes` are those of the larger buffer. Asks the tuner as NCCL does, if NCCL_TUNER_PLUGIN selects the linked one.
void tune(ncclComm_t comm, const std::string& verb, size_t bytes);

// --- called by tests
/// The configurations of one rank's communicators in order, such as "reduce: ctas 2 to 4, cluster 0, class 1, policy
/// 2";
/// "-" for values that are not set, and no policy if that is not.
std::vector<std::string> configs_of(int rank);
/// The current text at the name pointer of that rank's latest communicator: NCCL keeps the pointer.
std::string name_of_latest(int rank);
/// The result of every later ncclMemAlloc, whatever is free.
void memory_says(ncclResult_t result);
/// The exit code of a process that freed memory while it was registered.
constexpr int kFreedWhileRegistered = 87;
/// From now on, freeing registered memory ends the process.
void end_when_freed_while_registered();
/// The result of every later ncclCommRegister; with ncclSuccess and `gives_handle` false it does not use the memory. On
/// the fake's links it never uses memory that did not come from ncclMemAlloc: they are NVLink, and a registration
/// counts if memory is read in place. (The real one returns a handle, and copies.)
void set_registration(ncclResult_t result, bool gives_handle = true);
struct Registered {
  int now = 0, ever = 0;
  int windows = 0;                 // how many of them are symmetric windows
  int freed_while_registered = 0;  // memory freed while registered
  int ended_with_registered = 0;   // communicators destroyed with registered memory
};
Registered registered();
void reset_tuner();

}  // namespace slipstream::fake_nccl
