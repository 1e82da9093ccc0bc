// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU side of encode, decode and sum_parts, once per instruction set; arguments are already checked and not empty.

#include "kernels/common/isa.h"
#include "kernels/wire/wire.h"

namespace slipstream::kernels {

SLIP_DECLARE_PER_ISA(void encode_cpu(LaunchContext& context, const Encode& args);
                     void decode_cpu(LaunchContext& context, const Decode& args);
                     void sum_parts_cpu(LaunchContext& context, const SumParts& args);)

}  // namespace slipstream::kernels
