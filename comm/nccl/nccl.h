// SPDX-License-Identifier: Apache-2.0
#pragma once
// Communicators between GPUs. Each has an NCCL communicator, which runs on the stream that a work is launched on.
//
// NCCL forms the sums: algorithm, protocol and topology determine the order of additions, not the rank. With the same
// three a run repeats its bits. `Transfer::algorithm` does not choose NCCL's algorithm; NCCL_ALGO and NCCL_PROTO do.

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/nccl/nccl_table.h"
#include "engine/device/cuda/cuda_memory.h"

namespace slipstream::comm {

/// Blocks. Collective among one group: every rank receives the bytes of the group's rank 0.
using ShareBytes = std::function<std::string(const std::string& bytes)>;

struct NcclOptions {
  std::string name = "channel";  // appears in NCCL's log and in every error message
  NcclChannel channel;           // its entry in the table
  double timeout_seconds = 600;  // limit for set-up and end
};

/// NCCL's version in its own numbers (22809 is 2.28.9), or 0 if this build has none. Ranks compare it before they
/// connect.
int nccl_version();

struct NcclEnvironment {
  int world_rank = 0;
  bool shares_gpu = false;  // a test mode: several ranks on one GPU
  bool deterministic =
      false;  // one algorithm and one protocol for all sizes, so that bits do not depend on NCCL's tuning
};

/// Sets the variables that NCCL reads when its first communicator is made, unless the user has set them. Launches of
/// different communicators then keep the host's order on every rank, and our tuner applies the table and records NCCL's
/// choices. `deterministic` selects ring and the simple protocol. `shares_gpu` adds what several ranks on one GPU need:
/// a host name per rank, sockets on the loopback interface, and few blocks.
void prepare_nccl_environment(const NcclEnvironment& environment);

/// NCCL's memory of the current GPU (ncclMemAlloc); call it after prepare_nccl_environment. NVLink reads and writes
/// this memory in place once it is registered, while cudaMalloc memory is copied through NCCL's buffers. Free it only
/// after every communicator has deregistered it. With NCCL_CUMEM_ENABLE=0, or where the driver lacks support, NCCL
/// returns cudaMalloc memory. A build without NCCL uses cudaMalloc.
CudaMemory nccl_device_memory();

/// Blocks. Collective among `size` ranks, each with its CUDA device current. `share` carries only NCCL's identifier
/// from rank 0 to the others.
///
/// A work enqueues and returns; it throws CommError when NCCL refuses it or has failed before. abort() ends what is in
/// flight: its streams continue with undefined data, and every later work throws. It blocks until graphs that hold
/// works of this communicator are destroyed and, where NCCL frees memory, until the device is idle, that is, until all
/// communicators are aborted.
/// Throws: CommError when this build has no NCCL, versions differ or the group cannot connect.
std::unique_ptr<Communicator> make_nccl_communicator(int rank, int size, const ShareBytes& share,
                                                     const NcclOptions& options = {});

}  // namespace slipstream::comm
