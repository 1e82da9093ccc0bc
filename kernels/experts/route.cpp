// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the choice of experts.

#include "kernels/experts/route.h"

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

void require_choices(std::string_view op, int64_t tokens, int64_t experts, int64_t top_k) {
  require_at_least(op, "tokens", tokens, 0);
  require_at_least(op, "experts", experts, 1);
  require_at_least(op, "top_k", top_k, 1);
}

void require_top_k(std::string_view op, int64_t experts, int64_t top_k) {
  if (top_k > experts) throw ShapeError("[{}] top_k is {}, need at most experts = {}.", op, top_k, experts);
}

void require_sequences(std::string_view op, int64_t tokens, int64_t sequence) {
  require_at_least(op, "sequence", sequence, 1);
  if (tokens % sequence != 0)
    throw ShapeError("[{}] sequence is {}, need a divisor of tokens = {}.", op, sequence, tokens);
}

void require_groups(std::string_view op, const RouteForward& args) {
  require_at_least(op, "groups", args.groups, 1);
  if (args.groups > kExpertGroupsMax)
    throw ShapeError("[{}] groups is {}, need at most {}.", op, args.groups, kExpertGroupsMax);
  if (args.experts % args.groups != 0)
    throw ShapeError("[{}] groups is {}, need a divisor of experts = {}.", op, args.groups, args.experts);
  require_at_least(op, "group_top_k", args.group_top_k, 1);
  if (args.group_top_k > args.groups)
    throw ShapeError("[{}] group_top_k is {}, need at most groups = {}.", op, args.group_top_k, args.groups);
  const int64_t left = args.experts / args.groups * args.group_top_k;
  if (args.top_k > left)
    throw ShapeError("[{}] top_k is {}, need at most the {} experts of {} of {} groups.", op, args.top_k, left,
                     args.group_top_k, args.groups);
}

}  // namespace

void route_forward(LaunchContext& context, const RouteForward& args) {
  constexpr std::string_view op = "route_forward";
  require_choices(op, args.tokens, args.experts, args.top_k);
  require_top_k(op, args.experts, args.top_k);
  require_groups(op, args);
  if (args.tokens == 0) return;
  require_pointers(op, {args.logits, args.scores, args.chosen, args.weights});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return route_forward_cuda(context, args);
  SLIP_CALL_ISA(route_forward_cpu(context, args))
}

void route_backward(LaunchContext& context, const RouteBackward& args) {
  constexpr std::string_view op = "route_backward";
  require_choices(op, args.tokens, args.experts, args.top_k);
  require_top_k(op, args.experts, args.top_k);
  require_sequences(op, args.tokens, args.sequence);
  if (args.tokens == 0) return;
  require_pointers(op, {args.scores, args.chosen, args.dweights, args.dlogits});
  if (args.z_loss != 0) require_pointers(op, {args.logits});
  if (args.auxiliary != 0) require_pointers(op, {args.load});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return route_backward_cuda(context, args);
  SLIP_CALL_ISA(route_backward_cpu(context, args))
}

void route_load(LaunchContext& context, const RouteLoad& args) {
  constexpr std::string_view op = "route_load";
  require_choices(op, args.tokens, args.experts, args.top_k);
  require_sequences(op, args.tokens, args.sequence);
  if (args.tokens == 0) return;
  require_pointers(op, {args.chosen, args.load});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return route_load_cuda(context, args);
  SLIP_CALL_ISA(route_load_cpu(context, args))
}

Cost route_forward_cost(const RouteForward& args) {
  return {21 * args.tokens * args.experts,
          bytes_of(2 * args.tokens * (args.experts + args.top_k) + (args.bias ? args.experts : 0), DType::f32)};
}

Cost route_backward_cost(const RouteBackward& args) {
  const int64_t all = args.tokens * args.experts;
  return {(args.z_loss != 0 ? 29 : 8) * all,
          bytes_of((args.z_loss != 0 ? 3 : 2) * all + 2 * args.tokens * args.top_k +
                       (args.auxiliary != 0 ? args.tokens / args.sequence * args.experts : 0),
                   DType::f32)};
}

Cost route_load_cost(const RouteLoad& args) {
  return {0, bytes_of(args.tokens * args.top_k + args.tokens / args.sequence * args.experts, DType::i32)};
}

}  // namespace slipstream::kernels
