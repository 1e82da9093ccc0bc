// SPDX-License-Identifier: Apache-2.0
// Checks, cost, dispatch and the ordered sum of cross-entropy.

#include "kernels/cross_entropy/cross_entropy.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"

namespace slipstream::kernels {

void cross_entropy(LaunchContext& context, const CrossEntropy& args) {
  if (context.kind == DeviceKind::sim) no_kernel("cross_entropy", context.kind);
  require_at_least("cross_entropy", "rows", args.rows, 0);
  require_at_least("cross_entropy", "vocab", args.vocab, 0);
  require_at_least("cross_entropy", "stride", args.stride, 0);
  require_activation_dtype("cross_entropy", args.dtype);
  if (args.stride < args.vocab)
    throw ShapeError("[cross_entropy] rows of logits overlap: got stride = {}, need at least vocab = {}.", args.stride,
                     args.vocab);
  require_pointers("cross_entropy", {args.loss_sum});
  if (args.rows > 0) require_pointers("cross_entropy", {args.logits, args.targets, args.row_losses});
  if (context.kind == DeviceKind::cuda) return cross_entropy_cuda(context, args);
  if (args.rows > 0) {
    for (int64_t row = 0; row < args.rows; ++row)
      if (args.targets[row] < 0 || args.targets[row] >= args.vocab)
        throw DataError(
            "[cross_entropy] target {} of row {} is outside the vocabulary of {}. Tokenize the data again with "
            "the model's tokenizer.",
            args.targets[row], row, args.vocab);
    SLIP_CALL_ISA(cross_entropy_cpu(context, args))
  }
  *args.loss_sum = sum_of_losses(args.row_losses, args.rows);
}

double sum_of_losses(const float* row_losses, int64_t rows) {
  double lanes[kLossLanes] = {};
  for (int64_t row = 0; row < rows; ++row) lanes[row % kLossLanes] += static_cast<double>(row_losses[row]);
  for (int64_t width = kLossLanes / 2; width > 0; width /= 2)
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

Cost cross_entropy_cost(const CrossEntropy& args) {
  const int64_t read_bytes = bytes_of(args.rows * args.vocab, args.dtype) + 8 * args.rows;
  return {8 * args.rows * args.vocab, read_bytes + (args.backward ? bytes_of(args.rows * args.stride, args.dtype) : 0)};
}

}  // namespace slipstream::kernels
