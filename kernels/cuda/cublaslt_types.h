// SPDX-License-Identifier: Apache-2.0
#pragma once
// Descriptors of cuBLASLt as values, only for cublaslt.cpp and algorithm_search.cpp.

#include <cublasLt.h>
#include <launch.h>

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/device/work.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/gemm.h"

namespace slipstream::kernels::lt {

/// Throws: ResourceError with the library's message unless `status` is success.
void check(cublasStatus_t status, const char* what);

template <typename T, cublasStatus_t (*kDestroy)(T*)>
struct Destroy {
  void operator()(T* p) const { kDestroy(p); }
};
using Description =
    std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescOpaque_t, cublasLtMatmulDescDestroy>>;
using Layout =
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutDestroy>>;

/// A product in the library's terms.
struct Described {
  explicit Described(const Gemm& args);
  /// Blocks. The library's candidates, the best first, at most `most`; none if the library lacks this epilogue.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle, uint32_t alignment_bytes, int most) const;
  /// Enqueues.
  cublasStatus_t enqueue(cublasLtHandle_t handle, const Gemm& args, const cublasLtMatmulAlgo_t& algorithm,
                         void* workspace, cudaStream_t stream) const;
  /// Does the library accept this algorithm with our workspace?
  bool takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const;

  Description description;
  bool has_epilogue, is_float;  // D
  Layout a, b, d;
};

/// Pure. The inputs of the choice for `args`.
ProductShape product_of(const Gemm& args);

inline cublasLtMatmulAlgo_t algorithm_of(const AlgorithmBits& bits) {
  static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof bits);
  return std::bit_cast<cublasLtMatmulAlgo_t>(bits);
}
inline AlgorithmBits bits_of(const cublasLtMatmulAlgo_t& algorithm) { return std::bit_cast<AlgorithmBits>(algorithm); }

/// The resources for the products of a stream, made by prepare_stream.
struct Tools {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
};
Tools tools_of(const LaunchContext& context);

}  // namespace slipstream::kernels::lt
