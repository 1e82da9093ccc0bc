// SPDX-License-Identifier: Apache-2.0
// Single numbers on the device: one thread each, a few bytes, about the time of an empty kernel.

#include <launch.h>

#include "kernels/step_scalars/step_scalars_devices.h"

namespace slipstream::kernels {
namespace {

__global__ void add_loss_kernel(const double* part, double* total, bool accumulate) {
  *total = (accumulate ? *total : 0.0) + *part;
}

/// One thread adds in order: a few hundred numbers, with the same bits as on cpu.
__global__ void clip_kernel(const double* sums, int64_t count, double max_norm, double* norm, float* clip) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += sums[i];
  const double root = sqrt(total);
  *norm = root;
  const double factor = max_norm / (root + 1e-6);
  // Like std::min(1, factor), which keeps 1 when the factor is NaN.
  *clip = static_cast<float>(factor < 1.0 ? factor : 1.0);
}

__global__ void report_kernel(const double* loss, const double* norm, double* slot) {
  slot[0] = *loss;
  slot[1] = *norm;
}

}  // namespace

void add_loss_cuda(LaunchContext& context, const AddLoss& args) {
  launch(stream_of(context), add_loss_kernel, dim3(1), dim3(1), 0, args.part, args.total, args.accumulate);
}

void clip_cuda(LaunchContext& context, const Clip& args) {
  launch(stream_of(context), clip_kernel, dim3(1), dim3(1), 0, args.sums, args.count, args.max_norm, args.norm,
         args.factor);
}

void report_cuda(LaunchContext& context, const Report& args) {
  launch(stream_of(context), report_kernel, dim3(1), dim3(1), 0, args.loss, args.norm, args.slot);
}

}  // namespace slipstream::kernels
