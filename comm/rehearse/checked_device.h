// SPDX-License-Identifier: Apache-2.0
#pragma once
// The hazard checker of a live run: a device that wraps another and follows streams, events and host waits.

#include <memory>

#include "engine/device/device.h"
#include "engine/plan/buffers.h"

namespace slipstream::comm {

/// Forwards everything to `inner`. A launch throws PlanError with Hazard::sentence(), before it is enqueued, if its
/// declared accesses conflict with those of an earlier work and no event or host wait orders the two. The check does
/// not depend on the actual timing. A copy by the host throws unless the host has waited for all works.
/// Call it from one thread, as a rank does. The cost falls on the host, not on the streams: for each launch, the device
/// looks up the ranges that its slices touch and keeps about 40 bytes. Borrows `buffers`, which maps slices to memory.
/// Works must outlive the device.
std::unique_ptr<Device> make_checked_device(std::unique_ptr<Device> inner, const Buffers& buffers);

}  // namespace slipstream::comm
