// SPDX-License-Identifier: Apache-2.0
#pragma once
// The errors of kernels that are wrong on purpose.

#include <launch.h>

#include <string>

#include "tests/emulation/emulator.h"
#include "tests/test.hpp"

namespace slipstream::test {

/// The error of a launch; empty if it runs.
template <typename Kernel, typename... Args>
std::string error_of(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, const Args&... args) {
  try {
    kernels::launch(cudaStream_t{}, kernel, grid, block, shared_bytes, args...);
  } catch (const std::exception& error) {  // of the emulated device, or of a check before a launch
    return error.what();
  }
  return {};
}

inline bool has(const std::string& text, const std::string& part) {
  INFO(text << " | should have | " << part);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

template <typename T>
T* as(const emulation::DeviceMemory& memory) {
  return reinterpret_cast<T*>(memory.data());
}

}  // namespace slipstream::test
