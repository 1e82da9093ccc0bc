// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU side of matmul, once per instruction set; arguments are already checked and not empty.

#include "kernels/common/isa.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/product.h"

namespace slipstream::kernels {

SLIP_DECLARE_PER_ISA(void matmul_forward_cpu(LaunchContext& context, const MatmulForward& args);
                     void matmul_backward_input_cpu(LaunchContext& context, const MatmulBackwardInput& args);
                     void matmul_backward_weight_cpu(LaunchContext& context, const MatmulBackwardWeight& args);
                     /// One product on the calling thread. Its operands have the type `dtype` and its result the type
                     /// `c_dtype`, which is f32 or `dtype`. It has no bias, and its sizes are at least 1, but k may be
                     /// 0. Float sums are rounded once.
                     void product_tile_cpu(const Product& product, DType dtype);)

/// The division of the m x n result of a product into tiles, one per thread.
struct TileSplit {
  int64_t m_tile = 0, n_tile = 0;  // of all tiles except the last of a row or column
  int64_t m_tiles = 1, n_tiles = 1;
};

/// Pure. The division whose slowest thread has the least work. A thread multiplies its tile and packs its share of both
/// operands, and every tile that needs a share packs it again. Wide results are therefore divided by columns, tall ones
/// by rows.
TileSplit split_tiles(int64_t m, int64_t n, int64_t k, int threads);

}  // namespace slipstream::kernels
