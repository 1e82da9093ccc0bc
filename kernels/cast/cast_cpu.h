// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU side of cast and add, once per instruction set; arguments are already checked and not empty.

#include "kernels/cast/cast.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

SLIP_DECLARE_PER_ISA(void cast_cpu(LaunchContext& context, const Cast& args);
                     void add_cpu(LaunchContext& context, const Add& args);)

}  // namespace slipstream::kernels
