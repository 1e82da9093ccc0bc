// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two sides of the small works; arguments are already checked.

#include "kernels/step_scalars/step_scalars.h"

namespace slipstream::kernels {

void add_loss_cpu(const AddLoss& args);
void clip_cpu(const Clip& args);
void report_cpu(const Report& args);
void copy_cpu(const Copy& args);
void zero_cpu(const Zero& args);
void upload_cpu(const Upload& args);

// The kernels are in step_scalars.cu.
void add_loss_cuda(LaunchContext& context, const AddLoss& args);
void clip_cuda(LaunchContext& context, const Clip& args);
void report_cuda(LaunchContext& context, const Report& args);
// These copies by the runtime are in upload_cuda.cpp.
void copy_cuda(LaunchContext& context, const Copy& args);
void zero_cuda(LaunchContext& context, const Zero& args);
void upload_cuda(LaunchContext& context, const Upload& args);
void prepare_upload_cuda(LaunchContext& context, const Upload& args);

}  // namespace slipstream::kernels
