// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the norm of heads.

#include "kernels/head_norm/head_norm.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/common/row_blocks.h"

namespace slipstream::kernels {
namespace {

constexpr int64_t kHeadDimMax = 256;  // a warp holds a head in registers on cuda

template <typename Args>
void check(std::string_view op, const Args& args) {
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "heads", args.heads, 1);
  require_at_least(op, "kv_heads", args.kv_heads, 1);
  require_at_least(op, "head_dim", args.head_dim, 1);
  if (args.head_dim > kHeadDimMax)
    throw ShapeError("[{}] head_dim is {}, need at most {}. Use more heads.", op, args.head_dim, kHeadDimMax);
}

}  // namespace

void head_norm_forward(LaunchContext& context, const HeadNormForward& args) {
  constexpr std::string_view op = "head_norm_forward";
  check(op, args);
  if (args.rows == 0) return;
  require_pointers(op, {args.x, args.q_weight, args.k_weight, args.y, args.inv_rms});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return head_norm_forward_cuda(context, args);
  SLIP_CALL_ISA(head_norm_forward_cpu(context, args));
}

void head_norm_backward(LaunchContext& context, const HeadNormBackward& args) {
  constexpr std::string_view op = "head_norm_backward";
  check(op, args);
  require_pointers(op, {args.q_weight, args.k_weight, args.dq_weight, args.dk_weight});
  if (args.rows > 0) require_pointers(op, {args.d, args.x, args.inv_rms, args.workspace});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return head_norm_backward_cuda(context, args);
  SLIP_CALL_ISA(head_norm_backward_cpu(context, args));
}

Cost head_norm_forward_cost(const HeadNormForward& args) {
  const int64_t heads = args.rows * (args.heads + args.kv_heads), values = args.rows * args.kv_heads;
  return {4 * heads * args.head_dim, bytes_of((2 * (heads + values) + 2) * args.head_dim, args.dtype) + 4 * heads};
}

Cost head_norm_backward_cost(const HeadNormBackward& args) {
  const int64_t heads = args.rows * (args.heads + args.kv_heads);
  return {11 * heads * args.head_dim, bytes_of((3 * heads + 2) * args.head_dim, args.dtype) +
                                          (args.accumulate ? 2 : 1) * 8 * args.head_dim + 4 * heads};
}

int64_t head_norm_backward_workspace_elems(int64_t rows, int64_t head_dim) {
  return 2 * head_dim * RowBlocks{rows}.count();
}

}  // namespace slipstream::kernels
