// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes memory resident before its first use.

#include <cstddef>
#include <span>

namespace slipstream::cpu {

/// Blocks. Gives whole pages of memory from Device::allocate to the process with `threads` threads. Their bytes do not
/// change. Otherwise the first write to each page would do it: 0.2 s for a GB, 2.4 s in a virtual machine whose host
/// has to find the page (measured). Has no effect on other memory, or before Linux 5.14.
void make_resident(std::span<std::byte> memory, int threads);

}  // namespace slipstream::cpu
