// SPDX-License-Identifier: Apache-2.0
// Checks, costs, dispatch and the ordered sum of cross-entropy over a sharded vocabulary.

#include "kernels/cross_entropy/sharded_cross_entropy.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace slipstream::kernels {
namespace {

template <typename Args>
void require_sizes(const char* op, const Args& args, DeviceKind kind) {
  if (kind == DeviceKind::sim) no_kernel(op, kind);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "vocab", args.vocab, 0);
  require_at_least(op, "first", args.first, 0);
  require_activation_dtype(op, args.dtype);
  if (args.stride < args.vocab)
    throw ShapeError("[{}] rows of logits overlap: got stride = {}, need at least vocab = {}.", op, args.stride,
                     args.vocab);
  if (args.rows > 0) require_pointers(op, {args.logits, args.targets, args.parts});
}

}  // namespace

void cross_entropy_part(LaunchContext& context, const CrossEntropyPart& args) {
  require_sizes("cross_entropy_part", args, context.kind);
  if (args.rows == 0) return;
  if (context.kind == DeviceKind::cuda) return cross_entropy_part_cuda(context, args);
  for (int64_t row = 0; row < args.rows; ++row)
    if (args.targets[row] < 0 || args.targets[row] >= args.whole_vocab)
      throw DataError(
          "[cross_entropy] target {} of row {} is outside the vocabulary of {}. Tokenize the data again with the "
          "model's tokenizer.",
          args.targets[row], row, args.whole_vocab);
  SLIP_CALL_ISA(cross_entropy_part_cpu(context, args))
}

void cross_entropy_merge(LaunchContext& context, const CrossEntropyMerge& args) {
  require_sizes("cross_entropy_merge", args, context.kind);
  require_at_least("cross_entropy_merge", "ranks", args.ranks, 1);
  require_pointers("cross_entropy_merge", {args.loss_sum});
  if (args.rows > 0) require_pointers("cross_entropy_merge", {args.row_losses});
  if (context.kind == DeviceKind::cuda) return cross_entropy_merge_cuda(context, args);
  if (args.rows > 0) {
    SLIP_CALL_ISA(cross_entropy_merge_cpu(context, args))
  }
  *args.loss_sum = sum_of_losses(args.row_losses, args.rows);
}

Cost cross_entropy_part_cost(const CrossEntropyPart& args) {
  return {4 * args.rows * args.stride, bytes_of(args.rows * args.stride, args.dtype) + 28 * args.rows};
}

Cost cross_entropy_merge_cost(const CrossEntropyMerge& args) {
  const int64_t logits_bytes = args.backward ? 2 * bytes_of(args.rows * args.stride, args.dtype) : 0;
  return {args.backward ? 4 * args.rows * args.stride : 0, logits_bytes + (24 * args.ranks + 8) * args.rows};
}

}  // namespace slipstream::kernels
