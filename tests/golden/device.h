// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects the device on which golden values and text generation are compared.

#include <memory>

#include "engine/device/device.h"

namespace slipstream::golden {

/// Throws: ResourceError.
std::unique_ptr<Device> make_device();

}  // namespace slipstream::golden
