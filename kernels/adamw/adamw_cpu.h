// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU side of adamw, once per instruction set; arguments are already checked and not empty.

#include "kernels/adamw/adamw.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

SLIP_DECLARE_PER_ISA(void adamw_cpu(LaunchContext& context, const Adamw& args);)

}  // namespace slipstream::kernels
