// SPDX-License-Identifier: Apache-2.0
// NCCL's own arithmetic, read from its source (2.27) and not measured.
//
// src/init.cc, computeBuffSizes: a connection has buffers for all three protocols, whichever is used; NCCL_BUFFSIZE,
// NCCL_LL_BUFFSIZE and NCCL_LL128_BUFFSIZE set them. src/transport/p2p.cc, p2pRecvSetup: they are one allocation on the
// receiving rank (or, for reads, the sending one), a multiple of 2 MiB. src/transport/net.cc: to other nodes, send and
// receive buffers are on the GPU if it talks to the network itself. src/allocator.cc, ncclMemAlloc: a multiple of what
// cuMemGetAllocationGranularity recommends, in 2.27.3 and 2.30.7 alike.

#include "comm/nccl/nccl_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "engine/base/units.h"

namespace slipstream::comm {
namespace {

constexpr int64_t kSimpleBytes = 4 * kMiB;
constexpr int64_t kLlBytes = int64_t{8} * 512 * 8 * 16;  // lines of a thread, threads, steps, bytes of a line
constexpr int64_t kLl128Bytes =
    int64_t{120} * 640 * 8 * 8;  // elements of a thread, threads, steps, bytes of an element
// Observed in NCCL's log on eight H100 behind NVSwitch ("24 coll channels"); its documentation gives no number.
constexpr int64_t kWidestBlocks = 24;

/// The value of a user's variable, as NCCL reads it; `otherwise` if it is not set or is no number.
int64_t variable(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  if (!text || std::from_chars(text, text + std::strlen(text), value).ec != std::errc{} || value < 0) return otherwise;
  return value;
}

int64_t blocks_of(const NcclChannel& channel) {
  const int64_t most = nccl_blocks(channel);
  return most > 0 ? most : std::max<int64_t>(kWidestBlocks, channel.min_ctas);
}

}  // namespace

int64_t nccl_blocks(const NcclChannel& channel) {
  // The user's variables take precedence over the table.
  const int64_t most = variable("NCCL_MAX_CTAS", channel.max_ctas), channels = variable("NCCL_MAX_NCHANNELS", most);
  if (most == 0) return channels;
  return std::max<int64_t>(1, std::min(most, channels));
}

int64_t nccl_buffer_bytes(const NcclChannel& channel, bool crosses_nodes) {
  const int64_t connection_bytes = variable("NCCL_BUFFSIZE", kSimpleBytes) + variable("NCCL_LL_BUFFSIZE", kLlBytes) +
                                   variable("NCCL_LL128_BUFFSIZE", kLl128Bytes);
  return blocks_of(channel) * (crosses_nodes ? 2 : 1) * round_up(connection_bytes, kNcclPieceBytes);
}

}  // namespace slipstream::comm
