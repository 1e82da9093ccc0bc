// SPDX-License-Identifier: Apache-2.0
// The CUDA side of the ops of experts, which have no CUDA kernels: every call throws.

#include "engine/base/check.h"
#include "kernels/experts/counts.h"
#include "kernels/experts/grouped.h"
#include "kernels/experts/route.h"
#include "kernels/experts/router_linear.h"
#include "kernels/experts/rows.h"
#include "kernels/experts/weighted_swiglu.h"

namespace slipstream::kernels {
namespace {

[[noreturn]] void refuse(const char* op) {
  throw ResourceError("[{}] this op has no CUDA kernel. Run it on device cpu.", op);
}

}  // namespace

void router_linear_cuda(LaunchContext&, const RouterLinear&) { refuse("router_linear"); }
void router_linear_backward_input_cuda(LaunchContext&, const RouterLinearBackwardInput&) {
  refuse("router_linear_backward_input");
}
void router_linear_backward_weight_cuda(LaunchContext&, const RouterLinearBackwardWeight&) {
  refuse("router_linear_backward_weight");
}
void route_forward_cuda(LaunchContext&, const RouteForward&) { refuse("route_forward"); }
void route_backward_cuda(LaunchContext&, const RouteBackward&) { refuse("route_backward"); }
void route_load_cuda(LaunchContext&, const RouteLoad&) { refuse("route_load"); }
void count_rows_cuda(LaunchContext&, const CountRows&) { refuse("count_rows"); }
void own_rows_cuda(LaunchContext&, const OwnRows&) { refuse("own_rows"); }
void arrange_rows_cuda(LaunchContext&, const ArrangeRows&) { refuse("arrange_rows"); }
void take_rows_cuda(LaunchContext&, const TakeRows&) { refuse("take_rows"); }
void return_rows_cuda(LaunchContext&, const ReturnRows&) { refuse("return_rows"); }
void grouped_forward_cuda(LaunchContext&, const GroupedForward&) { refuse("grouped_forward"); }
void grouped_backward_input_cuda(LaunchContext&, const GroupedBackwardInput&) { refuse("grouped_backward_input"); }
void grouped_backward_weight_cuda(LaunchContext&, const GroupedBackwardWeight&) { refuse("grouped_backward_weight"); }
void weighted_swiglu_forward_cuda(LaunchContext&, const WeightedSwigluForward&) { refuse("weighted_swiglu_forward"); }
void weighted_swiglu_backward_cuda(LaunchContext&, const WeightedSwigluBackward&) {
  refuse("weighted_swiglu_backward");
}

}  // namespace slipstream::kernels
