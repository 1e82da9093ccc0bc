// SPDX-License-Identifier: Apache-2.0
// Copies of a build without CUDA: every call throws.

#include "kernels/common/checks.h"
#include "kernels/step_scalars/step_scalars_devices.h"

namespace slipstream::kernels {

std::shared_ptr<UploadStaging> make_upload_staging() { return std::make_shared<UploadStaging>(); }

void copy_cuda(LaunchContext& context, const Copy&) { no_kernel("copy", context.kind); }
void zero_cuda(LaunchContext& context, const Zero&) { no_kernel("zero", context.kind); }
void upload_cuda(LaunchContext& context, const Upload&) { no_kernel("upload", context.kind); }
void prepare_upload_cuda(LaunchContext& context, const Upload&) { no_kernel("upload", context.kind); }

}  // namespace slipstream::kernels
