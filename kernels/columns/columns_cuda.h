// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the column copies.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/columns/columns.h"

namespace slipstream::kernels {

void columns_take_cuda(LaunchContext& context, const ColumnsTake& args);
void columns_sum_cuda(LaunchContext& context, const ColumnsSum& args);

}  // namespace slipstream::kernels
