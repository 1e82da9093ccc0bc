// SPDX-License-Identifier: Apache-2.0
// ncclMemAlloc and ncclMemFree with NCCL's error messages. Allocations are rounded up to kNcclPieceBytes.

#include <nccl.h>

#include "comm/nccl/nccl.h"
#include "comm/nccl/nccl_memory.h"
#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

std::string words_of(ncclResult_t result) {
  const char* last = ncclGetLastError(nullptr);
  return fmt::format("{}{}", ncclGetErrorString(result),
                     last && *last ? fmt::format(" (NCCL's last error, possibly unrelated: {})", last) : "");
}

std::string take(void** block, size_t size_bytes) {
  const ncclResult_t result = ncclMemAlloc(block, size_bytes);
  if (result == ncclSuccess) return "";
  return fmt::format(
      "NCCL cannot allocate it: {}; set NCCL_DEBUG=WARN to see why, or NCCL_CUMEM_ENABLE=0 for memory that NVLink does "
      "not read in place",
      words_of(result));
}

std::string give_back(void* block) {
  const ncclResult_t result = ncclMemFree(block);
  return result == ncclSuccess ? "" : fmt::format("NCCL cannot free memory: {}", words_of(result));
}

}  // namespace

CudaMemory nccl_device_memory() { return {.take = take, .give_back = give_back, .piece_bytes = kNcclPieceBytes}; }

}  // namespace slipstream::comm
