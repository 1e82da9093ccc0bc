// SPDX-License-Identifier: Apache-2.0
// Checks and dispatch of the small works of a step.

#include "kernels/step_scalars/step_scalars.h"

#include "kernels/common/checks.h"
#include "kernels/step_scalars/step_scalars_devices.h"

namespace slipstream::kernels {

void add_loss(LaunchContext& context, const AddLoss& args) {
  require_pointers("add_loss", {args.part, args.total});
  switch (context.kind) {
    case DeviceKind::cpu:
      return add_loss_cpu(args);
    case DeviceKind::cuda:
      return add_loss_cuda(context, args);
    case DeviceKind::sim:
      no_kernel("add_loss", context.kind);
  }
}

void clip(LaunchContext& context, const Clip& args) {
  require_at_least("clip", "count", args.count, 0);
  require_pointers("clip", {args.norm, args.factor});
  if (args.count > 0) require_pointers("clip", {args.sums});
  if (args.loss != nullptr) require_pointers("clip", {args.limits});
  switch (context.kind) {
    case DeviceKind::cpu:
      return clip_cpu(args);
    case DeviceKind::cuda:
      return clip_cuda(context, args);
    case DeviceKind::sim:
      no_kernel("clip", context.kind);
  }
}

void report(LaunchContext& context, const Report& args) {
  require_pointers("report", {args.loss, args.norm, args.slot});
  switch (context.kind) {
    case DeviceKind::cpu:
      return report_cpu(args);
    case DeviceKind::cuda:
      return report_cuda(context, args);
    case DeviceKind::sim:
      no_kernel("report", context.kind);
  }
}

void copy(LaunchContext& context, const Copy& args) {
  require_at_least("copy", "size_bytes", args.size_bytes, 0);
  if (args.size_bytes == 0) return;
  require_pointers("copy", {args.from, args.to});
  switch (context.kind) {
    case DeviceKind::cpu:
      return copy_cpu(args);
    case DeviceKind::cuda:
      return copy_cuda(context, args);
    case DeviceKind::sim:
      no_kernel("copy", context.kind);
  }
}

void zero(LaunchContext& context, const Zero& args) {
  require_at_least("zero", "size_bytes", args.size_bytes, 0);
  if (args.size_bytes == 0) return;
  require_pointers("zero", {args.to});
  switch (context.kind) {
    case DeviceKind::cpu:
      return zero_cpu(args);
    case DeviceKind::cuda:
      return zero_cuda(context, args);
    case DeviceKind::sim:
      no_kernel("zero", context.kind);
  }
}

void upload(LaunchContext& context, const Upload& args) {
  for (const Upload::Part& part : args.parts) {
    require_at_least("upload", "size_bytes", part.size_bytes, 0);
    if (part.size_bytes > 0) require_pointers("upload", {part.to});
  }
  switch (context.kind) {
    case DeviceKind::cpu:
      return upload_cpu(args);
    case DeviceKind::cuda:
      return upload_cuda(context, args);
    case DeviceKind::sim:
      no_kernel("upload", context.kind);
  }
}

void prepare_upload(LaunchContext& context, const Upload& args) {
  if (context.kind == DeviceKind::cuda) prepare_upload_cuda(context, args);
}

}  // namespace slipstream::kernels
