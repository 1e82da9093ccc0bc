// SPDX-License-Identifier: Apache-2.0
// The comparisons run on the CPU.

#include "tests/golden/device.h"

namespace slipstream::golden {

std::unique_ptr<Device> make_device() { return make_cpu_device(); }

}  // namespace slipstream::golden
