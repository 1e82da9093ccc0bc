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
  int64_t first = 0;
  for (int64_t i = 0; i < args.count; ++i) {
    total += args.sums[i];
    if (first == 0 && !std::isfinite(args.sums[i])) first = i + 1;
  }
  const double norm = std::sqrt(total);
  // A comparison with NaN is false.
  const bool skips = args.loss != nullptr && !(std::isfinite(norm) && std::isfinite(*args.loss) &&
                                               norm <= static_cast<double>(args.limits[0]) &&
                                               *args.loss <= static_cast<double>(args.limits[1]));
  args.norm[0] = norm;
  args.norm[1] = static_cast<double>(first);
  args.norm[2] = skips ? 1.0 : 0.0;
  // The small constant keeps a zero gradient finite.
  *args.factor = skips ? kSkipUpdate : static_cast<float>(std::min(1.0, args.max_norm / (norm + 1e-6)));
}

void report_cpu(const Report& args) {
  args.slot[0] = *args.loss;
  std::copy_n(args.norm, 3, args.slot + 1);
}

void copy_cpu(const Copy& args) { std::memcpy(args.to, args.from, static_cast<size_t>(args.size_bytes)); }

void zero_cpu(const Zero& args) { std::memset(args.to, 0, static_cast<size_t>(args.size_bytes)); }

void upload_cpu(const Upload& args) { args.fill({args.parts[0].to, args.parts[1].to}); }

}  // namespace slipstream::kernels
