// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU side of sum_squares, once per instruction set; arguments are already checked.

#include "kernels/common/isa.h"
#include "kernels/sum_squares/sum_squares.h"

namespace slipstream::kernels {

SLIP_DECLARE_PER_ISA(void sum_squares_cpu(LaunchContext& context, const SumSquares& args);)

}  // namespace slipstream::kernels
