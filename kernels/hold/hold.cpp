// SPDX-License-Identifier: Apache-2.0
// Checks and dispatch of the works of an emulated link.

#include "kernels/hold/hold.h"

#include <cstring>

#include "kernels/common/checks.h"

namespace slipstream::kernels {

void hold_blocks(LaunchContext& context, const HoldBlocks& args) {
  if (context.kind != DeviceKind::cuda) no_kernel("hold_blocks", context.kind);
  require_at_least("hold_blocks", "size_bytes", args.size_bytes, 0);
  require_at_least("hold_blocks", "blocks", args.blocks, 1);
  require_pointers("hold_blocks", {args.release});
  hold_blocks_cuda(context, args);
}

void await_flag(LaunchContext& context, const AwaitFlag& args) {
  if (context.kind != DeviceKind::cuda) no_kernel("await_flag", context.kind);
  require_pointers("await_flag", {args.flag});
  await_flag_cuda(context, args);
}

void copy_around(LaunchContext& context, const CopyAround& args) {
  if (context.kind != DeviceKind::cuda) no_kernel("copy_around", context.kind);
  require_at_least("copy_around", "size_bytes", args.size_bytes, 0);
  require_at_least("copy_around", "staging_bytes", args.staging_bytes, 1);
  require_pointers("copy_around", {args.staging, args.scratch});
  copy_around_cuda(context, args);
}

void copy_on_device(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (context.kind == DeviceKind::cuda) return copy_on_device_cuda(context, to, from, size_bytes);
  std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

}  // namespace slipstream::kernels
