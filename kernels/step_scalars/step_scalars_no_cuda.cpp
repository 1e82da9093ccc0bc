// SPDX-License-Identifier: Apache-2.0
// The kernels of a build without CUDA: every call throws.

#include "kernels/common/checks.h"
#include "kernels/step_scalars/step_scalars_devices.h"

namespace slipstream::kernels {

void add_loss_cuda(LaunchContext& context, const AddLoss&) { no_kernel("add_loss", context.kind); }
void clip_cuda(LaunchContext& context, const Clip&) { no_kernel("clip", context.kind); }
void report_cuda(LaunchContext& context, const Report&) { no_kernel("report", context.kind); }

}  // namespace slipstream::kernels
