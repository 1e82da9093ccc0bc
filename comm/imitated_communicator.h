// SPDX-License-Identifier: Apache-2.0
#pragma once
// A group in which only this rank exists, so that one device can measure the plan of many ranks.

#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace slipstream::comm {

/// Enqueues. Copies memory of the device on the context's stream.
using DeviceCopy =
    std::function<void(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes)>;

/// Makes rank `rank` of `size`. The absent members contribute zeros to every sum, and what they send is already at its
/// destination; in an all_to_all_v they have no rows. A work moves only this rank's own part, and only where the verb
/// is not in place. It takes no time on a link: emulate() adds that. A null `copy` means memcpy (cpu).
std::unique_ptr<Communicator> make_imitated_communicator(int rank, int size, DeviceCopy copy = {});

}  // namespace slipstream::comm
