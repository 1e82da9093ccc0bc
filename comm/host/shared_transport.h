// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages between ranks that share memory: a ring of bytes for every ordered pair, and a bell on which a rank sleeps.
//
// A message is a header and its bytes in the ring of (sender, receiver); long ones flow through while they are copied
// in and out. A rank with nothing to do sleeps on its bell, a futex, which its peers ring: waiting costs no core and
// waking no polling interval.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/host/transport.h"

namespace slipstream::comm {

/// Zeroed memory under a name ("/..."), for other processes of this machine to open. Null when there is no room for it.
std::shared_ptr<std::byte> create_shared_memory(const std::string& name, int64_t size_bytes);
/// The same memory. Null when it is not there.
std::shared_ptr<std::byte> open_shared_memory(const std::string& name, int64_t size_bytes);
/// Takes the name away; the memory goes with its last user.
void remove_shared_memory(const std::string& name);

/// Bytes of the area in which one of `size` ranks receives.
int64_t shared_area_bytes(int size);
/// Makes an area of shared_area_bytes(size) ready. By its owner, before any rank makes its transport.
void prepare_shared_area(std::byte* area, int size);

/// `areas[r]`, 64-byte aligned, is where rank r receives; all ranks see the same memory. `names[r]` is what messages to
/// people call rank r. `owner` keeps the memory. The transport cannot be split. Threads of one process may be the ranks
/// as well as processes.
std::unique_ptr<HostTransport> make_shared_transport(std::vector<std::byte*> areas, int rank, std::vector<int> names,
                                                     std::shared_ptr<void> owner);

}  // namespace slipstream::comm
