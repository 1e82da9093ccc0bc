// SPDX-License-Identifier: Apache-2.0
// Single numbers on the device: one thread each and a few bytes, in about the time of an empty kernel.

#include <launch.h>
#include <ptx.h>

#include "kernels/step_scalars/step_scalars_devices.h"

namespace slipstream::kernels {
namespace {

__global__ void add_loss_kernel(const double* part, double* total, bool accumulate) {
  ptx::after_earlier_kernels();
  *total = (accumulate ? *total : 0.0) + *part;
}

__device__ __forceinline__ bool is_finite(double x) { return x - x == 0.0; }

/// One thread adds a few hundred numbers in order, with the same bits as on cpu.
__global__ void clip_kernel(Clip args) {
  ptx::after_earlier_kernels();
  double total = 0.0;
  int64_t first = 0;
  for (int64_t i = 0; i < args.count; ++i) {
    total += args.sums[i];
    if (first == 0 && !is_finite(args.sums[i])) first = i + 1;
  }
  const double norm = sqrt(total);
  // A comparison with NaN is false.
  const bool skips = args.loss != nullptr &&
                     !(is_finite(norm) && is_finite(*args.loss) && norm <= static_cast<double>(args.limits[0]) &&
                       *args.loss <= static_cast<double>(args.limits[1]));
  args.norm[0] = norm;
  args.norm[1] = static_cast<double>(first);
  args.norm[2] = skips ? 1.0 : 0.0;
  const double factor = args.max_norm / (norm + 1e-6);
  // Like std::min(1, factor), which keeps 1 when the factor is NaN.
  *args.factor = skips ? kSkipUpdate : static_cast<float>(factor < 1.0 ? factor : 1.0);
}

__global__ void report_kernel(const double* loss, const double* norm, double* slot) {
  ptx::after_earlier_kernels();
  slot[0] = *loss;
  for (int i = 0; i < 3; ++i) slot[1 + i] = norm[i];
}

}  // namespace

void add_loss_cuda(LaunchContext& context, const AddLoss& args) {
  launch(stream_of(context), add_loss_kernel, dim3(1), dim3(1), 0, args.part, args.total, args.accumulate);
}

void clip_cuda(LaunchContext& context, const Clip& args) {
  launch(stream_of(context), clip_kernel, dim3(1), dim3(1), 0, args);
}

void report_cuda(LaunchContext& context, const Report& args) {
  launch(stream_of(context), report_kernel, dim3(1), dim3(1), 0, args.loss, args.norm, args.slot);
}

}  // namespace slipstream::kernels
