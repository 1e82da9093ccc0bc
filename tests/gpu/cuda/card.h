// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by tests on a GPU: without one they exit with Meson's code for "skipped" and a reason.

#include <cstdio>
#include <cstdlib>

#include "engine/device/cuda/cuda_choice.h"

namespace slipstream::test {

/// Ends the process where no GPU can be used. Called before the first test.
inline bool require_card() {
  const CudaDevices devices = find_cuda_devices();
  if (devices.count() > 0) return true;
  std::printf("skipped: %s\n", devices.reason.c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace slipstream::test
