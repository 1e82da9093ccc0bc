// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensor maps of TMA, which the driver encodes.

#include <cuda.h>

#include <string>

#include "kernels/cuda/hopper_types.h"

namespace slipstream::kernels::hopper {

/// The place of a tensor and the box that is moved, for TMA. Kernels take `const __grid_constant__ TensorMap`.
using TensorMap = CUtensorMap;

/// Makes the map of a shape. Returns false, with the reason, if TMA cannot take it.
bool make_tensor_map(TensorMap& map, const TensorShape& shape, std::string& reason);

/// Pure. Does this build have code for sm_90a?
bool hopper_compiled();

}  // namespace slipstream::kernels::hopper
