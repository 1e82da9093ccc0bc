// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU side of matmul, once per instruction set; arguments are already checked and not empty.

#include "kernels/common/isa.h"
#include "kernels/matmul/matmul.h"

namespace slipstream::kernels {

SLIP_DECLARE_PER_ISA(void matmul_forward_cpu(LaunchContext& context, const MatmulForward& args);
                     void matmul_backward_input_cpu(LaunchContext& context, const MatmulBackwardInput& args);
                     void matmul_backward_weight_cpu(LaunchContext& context, const MatmulBackwardWeight& args);)

/// How the m x n result of a product is cut into tiles, one per thread.
struct TileSplit {
  int64_t m_tile = 0, n_tile = 0;  // of all tiles but the last of a row or column
  int64_t m_tiles = 1, n_tiles = 1;
};

/// The cut whose slowest thread has the least to do: multiply its tile and pack its share of both operands, which is
/// packed again by every tile that needs it. Wide results are therefore cut by columns, tall ones by rows. Pure.
TileSplit split_tiles(int64_t m, int64_t n, int64_t k, int threads);

}  // namespace slipstream::kernels
