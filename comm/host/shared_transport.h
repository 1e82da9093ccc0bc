// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages between ranks that share memory: a byte ring for every ordered pair, and a bell on which a rank sleeps.
//
// A message is a header and its bytes in the ring of (sender, receiver). Long messages flow through the ring while one
// side copies in and the other copies out. An idle rank sleeps on its bell, a futex that its peers ring: waiting uses
// no core, and waking needs no polling interval.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/host/transport.h"

namespace slipstream::comm {

/// Makes zeroed memory under a name ("/..."), which other processes of this machine can open. Returns null when there
/// is no room.
std::shared_ptr<std::byte> create_shared_memory(const std::string& name, int64_t size_bytes);
/// Opens that memory. Returns null when it does not exist.
std::shared_ptr<std::byte> open_shared_memory(const std::string& name, int64_t size_bytes);
/// Removes the name. The memory is freed with its last user.
void remove_shared_memory(const std::string& name);
/// The beginning of the names that a process makes: "/slipstream-SPACE-PROCESS-". SPACE is the number of its process
/// namespace. Pure.
std::string shared_memory_prefix(int64_t process);
/// Blocks. Removes the names that killed processes of this user have left. Only names of this process's namespace are
/// removed, because the processes of other namespaces cannot be seen from here.
void remove_abandoned_memory();

/// The number of bytes of the area in which one of `size` ranks receives messages.
int64_t shared_area_bytes(int size);
/// Initialises an area of shared_area_bytes(size). Its owner calls it before any rank makes its transport.
void prepare_shared_area(std::byte* area, int size);

/// `areas[r]`, 64-byte aligned, is where rank r receives; all ranks see the same memory. `names[r]` is the name of rank
/// r in error messages. `owner` keeps the memory alive. Ranks may be threads of one
/// process or processes.
std::unique_ptr<HostTransport> make_shared_transport(std::vector<std::byte*> areas, int rank, std::vector<int> names,
                                                     std::shared_ptr<void> owner);

}  // namespace slipstream::comm
