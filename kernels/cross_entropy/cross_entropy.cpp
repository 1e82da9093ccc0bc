// SPDX-License-Identifier: Apache-2.0
// Checks, cost, dispatch and the ordered sum of cross-entropy.

#include "kernels/cross_entropy/cross_entropy.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cross_entropy/cross_entropy_cpu.h"

namespace slipstream::kernels {

void cross_entropy(LaunchContext& context, const CrossEntropy& args) {
  if (context.kind != DeviceKind::cpu) no_kernel("cross_entropy", context.kind);
  require_at_least("cross_entropy", "rows", args.rows, 0);
  require_at_least("cross_entropy", "vocab", args.vocab, 0);
  require_at_least("cross_entropy", "stride", args.stride, 0);
  require_activation_dtype("cross_entropy", args.dtype);
  if (args.stride < args.vocab)
    throw ShapeError("[cross_entropy] rows of logits overlap: got stride = {}, need at least vocab = {}.", args.stride,
                     args.vocab);
  require_pointers("cross_entropy", {args.loss_sum});
  if (args.rows > 0) {
    require_pointers("cross_entropy", {args.logits, args.targets, args.row_losses});
    for (int64_t row = 0; row < args.rows; ++row)
      if (args.targets[row] < 0 || args.targets[row] >= args.vocab)
        throw DataError(
            "[cross_entropy] target {} of row {} is outside the vocabulary of {}. Tokenize the data again with "
            "the model's tokenizer.",
            args.targets[row], row, args.vocab);
    SLIP_CALL_ISA(cross_entropy_cpu(context, args))
  }
  double sum = 0.0;
  for (int64_t row = 0; row < args.rows; ++row) sum += static_cast<double>(args.row_losses[row]);
  *args.loss_sum = sum;
}

Cost cross_entropy_cost(const CrossEntropy& args) {
  const int64_t read_bytes = bytes_of(args.rows * args.vocab, args.dtype) + 8 * args.rows;
  return {8 * args.rows * args.vocab, read_bytes + (args.backward ? bytes_of(args.rows * args.stride, args.dtype) : 0)};
}

}  // namespace slipstream::kernels
