// SPDX-License-Identifier: Apache-2.0
// The activation functions of the MLP.

#include "kernels/swiglu/swiglu.h"
#include "models/common/blocks.h"

namespace slipstream::models {

void SpecBuilder::swiglu(Slice gate_up, Slice y, int64_t width) {
  const kernels::SwigluForward shape{.rows = rows_of(y, width), .width = width, .dtype = options_.dtype};
  work("swiglu", kernels::swiglu_forward_cost(shape), {gate_up}, {y}, {.rule = Rule::rows}, [=](LaunchContext& c) {
    kernels::SwigluForward args = shape;
    args.gate_up = c.at(gate_up);
    args.y = c.at(y);
    kernels::swiglu_forward(c, args);
  });
}

void SpecBuilder::swiglu_gradient(Slice dy, Slice gate_up, Slice dgate_up, int64_t width) {
  const kernels::SwigluBackward shape{.rows = rows_of(dy, width), .width = width, .dtype = options_.dtype};
  work("swiglu_gradient", kernels::swiglu_backward_cost(shape), {dy, gate_up}, {dgate_up}, {.rule = Rule::rows},
       [=](LaunchContext& c) {
         kernels::SwigluBackward args = shape;
         args.dy = c.at(dy);
         args.gate_up = c.at(gate_up);
         args.dgate_up = c.at(dgate_up);
         kernels::swiglu_backward(c, args);
       });
}

}  // namespace slipstream::models
