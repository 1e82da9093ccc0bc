// SPDX-License-Identifier: Apache-2.0
// The emulated cuBLASLt takes the types and epilogues of the library's manual, and no others.

#include <cublasLt.h>

#include <functional>
#include <map>

#include "tests/test.hpp"

namespace {

/// A product of a 16 x 24 and a 24 x 32 matrix, column-major.
struct Product {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F, a = CUDA_R_16BF, b = CUDA_R_16BF, c = CUDA_R_16BF, d = CUDA_R_16BF;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1, aux_type = -1, a_transposed = CUBLAS_OP_N;
  bool bias = true, aux = true;
  int64_t aux_ld = 16;
  uint64_t a_rows = 16, c_rows = 16;

  cublasStatus_t status() const {
    float memory = 0;
    void* const somewhere = &memory;
    cublasLtMatmulDesc_t description;
    cublasLtMatmulDescCreate(&description, compute, scale);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      REQUIRE(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, a_transposed);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
    if (aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, aux_type);
    cublasLtMatrixLayout_t la, lb, lc, ld;
    cublasLtMatrixLayoutCreate(&la, a, a_rows, 24, static_cast<int64_t>(a_rows));
    cublasLtMatrixLayoutCreate(&lb, b, 24, 32, 24);
    cublasLtMatrixLayoutCreate(&lc, c, c_rows, 32, static_cast<int64_t>(c_rows));
    cublasLtMatrixLayoutCreate(&ld, d, 16, 32, 16);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    const uint64_t workspace_bytes = 1 << 20;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, 8);
    cublasLtMatmulHeuristicResult_t results[8];
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(nullptr, description, la, lb, lc, ld, preference, 8, results, &found);
    CHECK((found > 0) == (status == CUBLAS_STATUS_SUCCESS));
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {la, lb, lc, ld}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(description);
    return status;
  }
};

cublasStatus_t with(const std::function<void(Product&)>& change) {
  Product product;
  change(product);
  return product.status();
}

}  // namespace

TEST_CASE("cublaslt: types of operands and results") {
  // The rows of the manual's table for CUBLAS_COMPUTE_32F that these types have.
  const std::map<std::pair<cudaDataType_t, cudaDataType_t>, bool> pairs = {{{CUDA_R_16BF, CUDA_R_16BF}, true},
                                                                           {{CUDA_R_16BF, CUDA_R_32F}, true},
                                                                           {{CUDA_R_32F, CUDA_R_32F}, true},
                                                                           {{CUDA_R_32F, CUDA_R_16BF}, false}};
  for (const auto& [types, taken] : pairs) {
    const auto& [in, out] = types;
    CAPTURE(in, out);
    CHECK(with([&](Product& p) { p.a = p.b = in, p.c = p.d = out; }) ==
          (taken ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED));
  }
  CHECK(with([](Product& p) { p.b = CUDA_R_32F; }) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(with([](Product& p) { p.c = CUDA_R_32F; }) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(with([](Product& p) { p.scale = CUDA_R_16BF; }) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(with([](Product& p) { p.compute = static_cast<cublasComputeType_t>(64); }) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(with([](Product& p) { p.a_rows = 17; }) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(with([](Product& p) { p.c_rows = 17; }) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(with([](Product& p) { p.a_transposed = 7; }) == CUBLAS_STATUS_INVALID_VALUE);
}

TEST_CASE("cublaslt: epilogues, and the types of what they read and write") {
  constexpr uint32_t kBias[] = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU_BGRAD,
                                CUBLASLT_EPILOGUE_BGRADB},
                     kAux[] = {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                               CUBLASLT_EPILOGUE_DGELU_BGRAD};
  for (uint32_t epilogue : kBias) {
    CAPTURE(epilogue);
    CHECK(with([&](Product& p) { p.epilogue = epilogue; }) == CUBLAS_STATUS_SUCCESS);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.bias = false; }) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.bias_type = CUDA_R_16BF; }) == CUBLAS_STATUS_SUCCESS);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.bias_type = CUDA_R_32F; }) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.bias_type = p.c = p.d = CUDA_R_32F; }) ==
          CUBLAS_STATUS_SUCCESS);
  }
  for (uint32_t epilogue : kAux) {
    CAPTURE(epilogue);
    CHECK(with([&](Product& p) { p.epilogue = epilogue; }) == CUBLAS_STATUS_SUCCESS);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.aux = false; }) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.aux_type = CUDA_R_32F; }) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.aux_ld = 8; }) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.aux_ld = 20; }) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(with([&](Product& p) { p.epilogue = epilogue, p.aux_ld = 24; }) == CUBLAS_STATUS_SUCCESS);
  }
  for (uint32_t unknown : {0u, 3u, 16u, 192u | 4u, 512u | 256u})
    CHECK(with([&](Product& p) { p.epilogue = unknown; }) == CUBLAS_STATUS_INVALID_VALUE);
}
