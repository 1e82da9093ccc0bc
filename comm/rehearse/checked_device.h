// SPDX-License-Identifier: Apache-2.0
#pragma once
// The hazard checker beside a live run: a device in front of another that follows streams, events and host waits.

#include <memory>

#include "engine/device/device.h"
#include "engine/plan/buffers.h"

namespace slipstream::comm {

/// Forwards everything to `inner`. A launch whose declared accesses conflict with those of an earlier work that no
/// event and no host wait orders before it throws PlanError with Hazard::sentence(), before it is enqueued; what really
/// happened on the streams plays no part, so a run that was lucky is caught too. So does a copy by the host while it
/// has not waited for all works. Call from one thread, as a rank does. Costs the host, not the streams: per launch the
/// ranges that its slices touch and about 40 bytes that are kept. Borrows `buffers`, which says where slices live.
/// Works must outlive the device.
std::unique_ptr<Device> make_checked_device(std::unique_ptr<Device> inner, const Buffers& buffers);

}  // namespace slipstream::comm
