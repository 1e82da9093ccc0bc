// SPDX-License-Identifier: Apache-2.0
// The small works on devices whose memory is the host's.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/step_scalars/step_scalars_devices.h"

namespace slipstream::kernels {

void add_loss_cpu(const AddLoss& args) { *args.total = (args.accumulate ? *args.total : 0.0) + *args.part; }

void clip_cpu(const Clip& args) {
  double total = 0;
  for (int64_t i = 0; i < args.count; ++i) total += args.sums[i];
  const double norm = std::sqrt(total);
  *args.norm = norm;
  // The small constant keeps a zero gradient finite.
  *args.factor = static_cast<float>(std::min(1.0, args.max_norm / (norm + 1e-6)));
}

void report_cpu(const Report& args) {
  args.slot[0] = *args.loss;
  args.slot[1] = *args.norm;
}

void copy_cpu(const Copy& args) { std::memcpy(args.to, args.from, static_cast<size_t>(args.size_bytes)); }

void zero_cpu(const Zero& args) { std::memset(args.to, 0, static_cast<size_t>(args.size_bytes)); }

void upload_cpu(const Upload& args) { args.fill({args.parts[0].to, args.parts[1].to}); }

}  // namespace slipstream::kernels
