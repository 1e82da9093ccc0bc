// SPDX-License-Identifier: Apache-2.0
#pragma once
// GPU memory that NCCL takes for itself, estimated before there is a communicator.

#include <cstdint>

#include "comm/nccl/nccl_table.h"

namespace slipstream::comm {

/// NCCL takes GPU memory in multiples of it, for itself and for ncclMemAlloc: the granularity that CUDA recommends for
/// allocations, not that of multicast objects.
constexpr int64_t kNcclPieceBytes = int64_t{2} << 20;

/// Bytes that one communicator of several ranks takes for what travels: blocks x connections x the buffers of all
/// protocols. The blocks are those that the user's variables or the table allow, else as many as NCCL takes where links
/// are widest, so that it is rather too much than too little. Trees and NVLink SHARP take more. Reads the environment,
/// and nothing else: the same on ranks whose NCCL_* agree.
int64_t nccl_buffer_bytes(const NcclChannel& channel, bool crosses_nodes);

}  // namespace slipstream::comm
