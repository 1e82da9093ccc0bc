// SPDX-License-Identifier: Apache-2.0
#pragma once
// An estimate of the GPU memory that NCCL allocates for itself, before a communicator exists.

#include <cstdint>

#include "comm/nccl/nccl_table.h"

namespace slipstream::comm {

/// NCCL allocates GPU memory in multiples of this size, for itself and for ncclMemAlloc. It is the granularity that
/// CUDA recommends for allocations, not that of multicast objects.
constexpr int64_t kNcclPieceBytes = int64_t{2} << 20;

/// The most blocks that a channel's collectives may use, by the user's variables or else by the table; 0: NCCL chooses.
/// Reads only the environment.
int64_t nccl_blocks(const NcclChannel& channel);

/// The bytes that one communicator of several ranks allocates for transfers: blocks x connections x the buffers of all
/// protocols. The number of blocks is the one that the user's variables or the table allow, or else NCCL's number on
/// the widest links, so the estimate is rather too high. Trees and NVLink SHARP need more. Reads only the environment:
/// ranks with the same NCCL_* get the same result.
int64_t nccl_buffer_bytes(const NcclChannel& channel, bool crosses_nodes);

}  // namespace slipstream::comm
