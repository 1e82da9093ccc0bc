// SPDX-License-Identifier: Apache-2.0
#pragma once
// Communicators between GPUs, one NCCL communicator each, on the stream that the work is launched on.
//
// Sums are NCCL's: the order of additions is fixed by algorithm, protocol and topology, not by rank. With the same of
// these a run repeats its bits. `Transfer::algorithm` does not choose NCCL's; NCCL_ALGO and NCCL_PROTO do.

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/nccl/nccl_table.h"
#include "engine/device/cuda/cuda_memory.h"

namespace slipstream::comm {

/// Blocks. Collective among one group: every rank gets the bytes of the group's rank 0.
using ShareBytes = std::function<std::string(const std::string& bytes)>;

struct NcclOptions {
  std::string name = "channel";  // reaches NCCL's log and every error text
  NcclChannel channel;           // what the table says of it
  double timeout_seconds = 600;  // of setting up, splitting and ending
};

/// NCCL's version as it numbers it (22809 is 2.28.9), 0 when this build has none. Ranks compare it before they connect.
int nccl_version();

struct NcclEnvironment {
  int world_rank = 0;
  bool shares_gpu = false;  // a test mode: several ranks on one GPU
  bool deterministic =
      false;  // one algorithm and one protocol for all sizes, so that bits do not depend on NCCL's tuning
};

/// Sets what NCCL reads when its first communicator is made, where the user has not set it: launches of different
/// communicators keep the host's order on every rank; our tuner, which applies the table and records what NCCL chose;
/// with `deterministic` ring and simple protocol; with `shares_gpu` also what several ranks on one GPU need: a host
/// name per rank, sockets on the loopback interface, few blocks.
void prepare_nccl_environment(const NcclEnvironment& environment);

/// NCCL's memory of the current GPU (ncclMemAlloc), after prepare_nccl_environment: what is registered of it NVLink
/// reads and writes in place, where that of cudaMalloc is copied through NCCL's buffers. Give it back when no
/// communicator knows it. With NCCL_CUMEM_ENABLE=0, or where the driver lacks what it takes, NCCL gives cudaMalloc's.
/// In a build without NCCL: cudaMalloc's.
CudaMemory nccl_device_memory();

/// Blocks. Collective among `size` ranks, whose current CUDA device is the one they will use. `share` carries NCCL's
/// identifier, and nothing else, from rank 0 to the others.
///
/// A work enqueues and returns; it throws CommError when NCCL refuses it or has failed before. abort() tells what is in
/// flight to end: its streams go on, with undefined data, and every later work throws. It blocks until graphs that hold
/// works of this communicator are destroyed and, where NCCL frees memory, until the device is idle, that is until all
/// communicators are aborted.
/// Throws: CommError with a sentence when this build has no NCCL, versions differ or the group cannot connect.
std::unique_ptr<Communicator> make_nccl_communicator(int rank, int size, const ShareBytes& share,
                                                     const NcclOptions& options = {});

}  // namespace slipstream::comm
