// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an emulated link does to a GPU while it is busy (comm/emulate): work that costs what communication costs and
// computes nothing.

#include <cstdint>
#include <memory>

#include "engine/device/work.h"

namespace slipstream::kernels {

/// Holds multiprocessors as a collective's kernel does: `blocks` blocks of 512 threads with all the shared memory that
/// a block may have, so that nothing which needs any fits beside one. They read `memory` once, spread over `ns`, and
/// leave when *release, which the host writes, is not 0; after `limit_ns` in any case. Changes nothing.
///
/// Shapes:  memory [size_bytes] of the device
/// Cost:    no flops; size_bytes bytes
/// Source:  NCCL's collectives hold one multiprocessor per block: 512 to 640 threads of 91 to 96 registers
/// Errors:  ShapeError if a size is negative or blocks below 1; ResourceError on devices other than cuda
struct HoldBlocks {
  const std::byte* memory = nullptr;
  int64_t size_bytes = 0;
  const uint32_t* release = nullptr;  // of the host, pinned
  int blocks = 1;
  int64_t ns = 0;
  int64_t limit_ns = int64_t{600} * 1000000000;
};

/// Holds up its stream until *flag, which the host writes, is at least `value`; after `limit_ns` in any case. One
/// thread: takes nothing that others would miss.
struct AwaitFlag {
  const uint32_t* flag = nullptr;  // of the host, pinned
  uint32_t value = 1;
  int64_t limit_ns = int64_t{600} * 1000000000;
};

/// Copies `memory` to `staging` and back in, and what does not fit in several turns; on a GPU by its copy engines. The
/// way back ends in `scratch` of the device. Changes nothing else.
struct CopyAround {
  const std::byte* memory = nullptr;
  int64_t size_bytes = 0;
  std::byte* staging = nullptr;  // of the host, pinned
  std::byte* scratch = nullptr;
  int64_t staging_bytes = 0;  // of both
};

/// Enqueues. Throws: ShapeError, ResourceError.
void hold_blocks(LaunchContext& context, const HoldBlocks& args);
void await_flag(LaunchContext& context, const AwaitFlag& args);
void copy_around(LaunchContext& context, const CopyAround& args);
/// Enqueues. to = from, both of the device, which do not overlap; memcpy on cpu.
void copy_on_device(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes);

}  // namespace slipstream::kernels
