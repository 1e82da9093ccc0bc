// SPDX-License-Identifier: Apache-2.0
#pragma once
// A group of which only this rank exists: so that one device can measure the plan of many.

#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace slipstream::comm {

/// Enqueues. Copies memory of the device on the context's stream.
using DeviceCopy =
    std::function<void(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes)>;

/// Rank `rank` of `size` whose other members hold zeros in every sum, and send what is already where it would arrive.
/// Moves this rank's own part where that is not in place, and no other byte; time is the business of emulate(). `copy`
/// null: memcpy (cpu).
std::unique_ptr<Communicator> make_imitated_communicator(int rank, int size, DeviceCopy copy = {});

}  // namespace slipstream::comm
