// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU side of cross_entropy, once per instruction set; arguments are already checked and not empty.

#include "kernels/common/isa.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"

namespace slipstream::kernels {

/// Writes row_losses and, with `backward`, the gradient; the caller adds the rows.
SLIP_DECLARE_PER_ISA(void cross_entropy_cpu(LaunchContext& context, const CrossEntropy& args);)
SLIP_DECLARE_PER_ISA(void cross_entropy_part_cpu(LaunchContext& context, const CrossEntropyPart& args);)
SLIP_DECLARE_PER_ISA(void cross_entropy_merge_cpu(LaunchContext& context, const CrossEntropyMerge& args);)

}  // namespace slipstream::kernels
