// SPDX-License-Identifier: Apache-2.0
#pragma once
// The load that an emulated link puts on a GPU (comm/emulate): works with the cost of communication that compute
// nothing.

#include <cstdint>
#include <memory>

#include "engine/device/work.h"

namespace slipstream::kernels {

/// Occupies multiprocessors like the kernel of a collective: `blocks` blocks of 512 threads with all the shared memory
/// that a block may have, so that no other block with shared memory fits beside one of them. They read `memory` once,
/// spread over `ns`, and end when *release, which the host writes, is not 0, or after `limit_ns`. Changes nothing.
///
/// Shapes:  memory [size_bytes] of the device
/// Cost:    no flops; size_bytes bytes
/// Source:  NCCL's collectives occupy one multiprocessor per block: 512 to 640 threads of 91 to 96 registers
/// Errors:  ShapeError if a size is negative or blocks below 1; ResourceError on devices other than cuda
struct HoldBlocks {
  const std::byte* memory = nullptr;
  int64_t size_bytes = 0;
  const uint32_t* release = nullptr;  // in host memory, pinned
  int blocks = 1;
  int64_t ns = 0;
  int64_t limit_ns = int64_t{600} * 1000000000;
};

/// Delays its stream until *flag, which the host writes, is at least `value`, or for `limit_ns`. It has one thread, so
/// it takes no resources that other kernels need.
struct AwaitFlag {
  const uint32_t* flag = nullptr;  // in host memory, pinned
  uint32_t value = 1;
  int64_t limit_ns = int64_t{600} * 1000000000;
};

/// Copies `memory` to `staging` and back, in several turns if necessary; a GPU does this with its copy engines. The way
/// back ends in `scratch` on the device. Changes nothing else.
struct CopyAround {
  const std::byte* memory = nullptr;
  int64_t size_bytes = 0;
  std::byte* staging = nullptr;  // in host memory, pinned
  std::byte* scratch = nullptr;
  int64_t staging_bytes = 0;  // of staging, and of scratch
};

/// Enqueues. Throws: ShapeError, ResourceError.
void hold_blocks(LaunchContext& context, const HoldBlocks& args);
void await_flag(LaunchContext& context, const AwaitFlag& args);
void copy_around(LaunchContext& context, const CopyAround& args);
/// Enqueues. to = from, both on the device without overlap; memcpy on cpu.
void copy_on_device(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
void hold_blocks_cuda(LaunchContext& context, const HoldBlocks& args);
void await_flag_cuda(LaunchContext& context, const AwaitFlag& args);
void copy_around_cuda(LaunchContext& context, const CopyAround& args);
void copy_on_device_cuda(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes);

}  // namespace slipstream::kernels
