// SPDX-License-Identifier: Apache-2.0
// Tensor maps of TMA, which the driver encodes.

#include "kernels/cuda/tensor_map.h"

#include <launch.h>

namespace slipstream::kernels::hopper {

bool hopper_compiled() {
#ifdef SLIP_HAVE_SM90A
  return true;
#else
  return false;
#endif
}

bool make_tensor_map(TensorMap& map, const TensorShape& shape, std::string& reason) {
  if (!tensor_shape_fits(shape, reason)) return false;
  // The function of the driver is found at run time, so that the program starts on machines without a driver.
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
               "asking for cuTensorMapEncodeTiled");
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found) : nullptr;
  }();
  if (!encode) {
    reason = "the driver has no cuTensorMapEncodeTiled, which CUDA 12.0 introduced";
    return false;
  }
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  cuuint64_t sizes[5], strides[5];
  cuuint32_t box[5], steps[5];
  for (int d = 0; d < shape.rank; ++d) {
    sizes[d] = shape.sizes[d];
    if (d > 0) strides[d - 1] = shape.strides_bytes[d];
    box[d] = shape.box[d];
    steps[d] = 1;
  }
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(shape.rank), const_cast<void*>(shape.base),
             sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzles[static_cast<int>(shape.swizzle)],
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status == CUDA_SUCCESS) return true;
  reason = "cuTensorMapEncodeTiled refuses the tensor with error " + std::to_string(static_cast<int>(status));
  return false;
}

}  // namespace slipstream::kernels::hopper
