// SPDX-License-Identifier: Apache-2.0
// The emulated cuBLASLt: descriptors are checked against the rules in the library's manual, products follow their
// definition.

#include <cublasLt.h>

#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <vector>

#include "engine/base/dtype.h"
#include "tests/emulation/emulator.h"
#include "tests/emulation/fake_cublaslt.h"

struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t a_transposed = CUBLAS_OP_N, b_transposed = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  int32_t bias_type = -1;
  void* aux = nullptr;
  int64_t aux_ld = 0;
  int32_t aux_type = -1;
  int32_t multiprocessors = 0;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  int64_t rows, columns, ld;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace_bytes = 0;
  uint32_t alignment_bytes = 256;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};
struct cublasLtContext {};

namespace slipstream::emulation {
namespace {

constexpr uint64_t kMagic = 0x736c697073747265;
constexpr size_t kWorkspaceBytes = 4096;  // of every algorithm
// Virtual times of the candidates, in fourths of the time of the shape; 3 is refused.
constexpr int64_t kFourths[kCandidates] = {4, 6, 2, 1, 3, 1};

std::mutex mutex;

float load(const void* p, int64_t i, cudaDataType_t type) {
  return type == CUDA_R_32F ? static_cast<const float*>(p)[i] : static_cast<float>(static_cast<const bfloat16*>(p)[i]);
}
void store(void* p, int64_t i, cudaDataType_t type, double value) {
  if (type == CUDA_R_32F)
    static_cast<float*>(p)[i] = static_cast<float>(value);
  else
    static_cast<bfloat16*>(p)[i] = bfloat16(static_cast<float>(value));
}

constexpr double kRoot = 0.7978845608028654;  // sqrt(2/pi)
double gelu(double v) { return 0.5 * v * (1 + std::tanh(kRoot * (v + 0.044715 * v * v * v))); }
double gelu_slope(double v) {
  const double t = std::tanh(kRoot * (v + 0.044715 * v * v * v));
  return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * kRoot * (1 + 3 * 0.044715 * v * v);
}

cublasStatus_t refuse(const slipstream::emulation::Source&, cublasStatus_t status) { return status; }

struct Call {
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;
  int64_t m() const { return d.rows; }
  int64_t n() const { return d.columns; }
  int64_t k() const { return description.a_transposed ? a.rows : a.columns; }
  bool has_bias() const {
    return description.epilogue == CUBLASLT_EPILOGUE_BIAS || description.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool has_gelu() const {
    return description.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
           description.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool has_gelu_gradient() const {
    return description.epilogue == CUBLASLT_EPILOGUE_DGELU || description.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
  }
  bool has_sums() const {
    return description.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD || description.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  }
  bool has_types() const {
    const bool from_float = a.type == CUDA_R_32F && d.type == CUDA_R_32F,
               from_bf16 = a.type == CUDA_R_16BF && (d.type == CUDA_R_16BF || d.type == CUDA_R_32F);
    return description.compute == CUBLAS_COMPUTE_32F && description.scale == CUDA_R_32F && a.type == b.type &&
           c.type == d.type && (from_float || from_bf16);
  }
  int64_t ns(uint64_t candidate) const {
    const auto more = fake_cublaslt().more_ns.find(description.epilogue);
    return 1000 + m() * n() * k() * kFourths[candidate] / 4 +
           (more == fake_cublaslt().more_ns.end() ? 0 : more->second);
  }

  cublasStatus_t status() const {
    const auto& t = description;
    const auto is_op = [](int32_t op) { return op == CUBLAS_OP_N || op == CUBLAS_OP_T; };
    const bool shapes = is_op(t.a_transposed) && is_op(t.b_transposed) &&
                        (t.a_transposed ? a.columns : a.rows) == m() && (t.b_transposed ? b.columns : b.rows) == k() &&
                        (t.b_transposed ? b.rows : b.columns) == n() && c.rows == d.rows && c.columns == d.columns &&
                        a.ld >= a.rows && b.ld >= b.rows && c.ld >= c.rows && d.ld >= d.rows;
    if (!shapes) return refuse(source::kProductTypes, CUBLAS_STATUS_INVALID_VALUE);
    if (!has_types()) return refuse(source::kProductTypes, CUBLAS_STATUS_NOT_SUPPORTED);
    if (t.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !has_bias() && !has_gelu() && !has_gelu_gradient() && !has_sums())
      return refuse(source::kEpilogues, CUBLAS_STATUS_INVALID_VALUE);
    // Elements of the bias, of its gradient and of the matrix before GELU are those of D.
    if (has_bias() || has_sums())
      if (!t.bias || (t.bias_type != -1 && t.bias_type != d.type))
        return refuse(source::kProductAttributes, CUBLAS_STATUS_INVALID_VALUE);
    if (has_gelu() || has_gelu_gradient())
      if (!t.aux || t.aux_ld < m() || t.aux_ld % 8 != 0 || (t.aux_type != -1 && t.aux_type != d.type))
        return refuse(source::kProductAttributes, CUBLAS_STATUS_INVALID_VALUE);
    if (fake_cublaslt().refused.contains(t.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
  }

  void run(const void* pa, const void* pb, float beta, void* pd, bool rounds_halves) const {
    const auto at_b = [&](int64_t row, int64_t column) {
      return static_cast<double>(
          load(pb, description.b_transposed ? column + row * b.ld : row + column * b.ld, b.type));
    };
    std::vector<double> sums_of_d(static_cast<size_t>(m()));
    for (int64_t j = 0; j < n(); ++j)
      for (int64_t i = 0; i < m(); ++i) {
        double sum = 0;
        for (int64_t l = 0; l < k(); ++l) {
          if (rounds_halves && l == k() / 2 && d.type != CUDA_R_32F)
            sum = static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(sum))));
          sum += static_cast<double>(load(pa, description.a_transposed ? l + i * a.ld : i + l * a.ld, a.type)) *
                 at_b(l, j);
        }
        const int64_t at = i + j * d.ld, at_aux = i + j * description.aux_ld;
        if (beta != 0) sum += static_cast<double>(beta) * static_cast<double>(load(pd, at, d.type));
        if (has_bias()) sum += static_cast<double>(load(description.bias, i, d.type));
        if (has_gelu()) {
          store(description.aux, at_aux, d.type, sum);
          sum = gelu(sum);
        }
        if (has_gelu_gradient()) sum *= gelu_slope(static_cast<double>(load(description.aux, at_aux, d.type)));
        store(pd, at, d.type, sum);
        sums_of_d[static_cast<size_t>(i)] += sum;
      }
    if (description.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)
      for (int64_t i = 0; i < m(); ++i) store(description.bias, i, d.type, sums_of_d[static_cast<size_t>(i)]);
    if (description.epilogue != CUBLASLT_EPILOGUE_BGRADB) return;
    for (int64_t j = 0; j < n(); ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k(); ++l) sum += at_b(l, j);
      store(description.bias, j, d.type, sum);
    }
  }
};

cublasLtMatmulAlgo_t candidate_of(uint64_t index, const Call& call) {
  return {{kMagic, index, static_cast<uint64_t>(call.m()), static_cast<uint64_t>(call.n()),
           static_cast<uint64_t>(call.k()), call.description.epilogue, 0, 0}};
}

}  // namespace

FakeCublasLt& fake_cublaslt() {
  static FakeCublasLt fake;
  return fake;
}

}  // namespace slipstream::emulation

using slipstream::emulation::Call;
using slipstream::emulation::fake_cublaslt;

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "success"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                                 : "an error of the emulated library";
}
size_t cublasLtGetVersion() { return fake_cublaslt().version; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *description = new cublasLtMatmulDescOpaque_t{.compute = compute, .scale = scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t t, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size_bytes) {
  const auto take = [&](auto& to) {
    if (size_bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, value, size_bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(t->a_transposed);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(t->b_transposed);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(t->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(t->bias);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return take(t->multiprocessors);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(t->bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(t->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(t->aux_ld);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return take(t->aux_type);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  *layout = new cublasLtMatrixLayoutOpaque_t{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t size_bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    if (size_bytes != 8) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&preference->workspace_bytes, value, size_bytes);
  } else {
    if (size_bytes != 4) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? &preference->reduction_schemes
                                                                        : &preference->alignment_bytes,
                value, size_bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  const Call call{*description, *a, *b, *c, *d};
  *found = 0;
  if (const cublasStatus_t status = call.status(); status != CUBLAS_STATUS_SUCCESS) return status;
  if (preference->workspace_bytes < slipstream::emulation::kWorkspaceBytes) return CUBLAS_STATUS_NOT_SUPPORTED;
  // The library's first choice if allowed: two halves of the sum, each rounded as D is.
  if ((preference->reduction_schemes & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) &&
      call.k() > 1)
    results[(*found)++] = {slipstream::emulation::candidate_of(slipstream::emulation::kSplitCandidate, call),
                           slipstream::emulation::kWorkspaceBytes,
                           CUBLAS_STATUS_SUCCESS,
                           1.0f,
                           {}};
  for (uint64_t candidate = 0; candidate < slipstream::emulation::kSplitCandidate && *found < asked; ++candidate)
    results[(*found)++] = {slipstream::emulation::candidate_of(candidate, call),
                           slipstream::emulation::kWorkspaceBytes,
                           CUBLAS_STATUS_SUCCESS,
                           1.0f,
                           {}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  const Call call{*description, *a, *b, *c, *d};
  if (const cublasStatus_t status = call.status(); status != CUBLAS_STATUS_SUCCESS) return status;
  const uint64_t candidate = algorithm->data[1];
  if (candidate >= slipstream::emulation::kCandidates) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cublasLtMatmulAlgo_t own = slipstream::emulation::candidate_of(candidate, call);
  if (std::memcmp(&own, algorithm, sizeof own) != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {own, slipstream::emulation::kWorkspaceBytes, CUBLAS_STATUS_SUCCESS, 1.0f, {}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  cublasLtMatmulHeuristicResult_t checked;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, description, a_layout, b_layout, c_layout, d_layout, algorithm, &checked);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const uint64_t candidate = algorithm->data[1];
  if (candidate == slipstream::emulation::kFailingCandidate) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (*static_cast<const float*>(alpha) != 1 || c != d || !workspace || workspace_bytes < checked.workspaceSize)
    return CUBLAS_STATUS_INVALID_VALUE;
  {
    const std::lock_guard lock(slipstream::emulation::mutex);
    ++fake_cublaslt().calls[candidate];
    ++fake_cublaslt().targets[description->multiprocessors];
  }
  slipstream::emulation::enqueue(stream, [call = Call{*description, *a_layout, *b_layout, *c_layout, *d_layout}, a, b,
                                          d, candidate, workspace, factor = *static_cast<const float*>(beta)] {
    std::memset(workspace, 0xff, slipstream::emulation::kWorkspaceBytes);  // no other product uses it meanwhile
    call.run(a, b, factor, d, candidate == slipstream::emulation::kSplitCandidate);
    slipstream::emulation::elapse(call.ns(candidate));
  });
  return CUBLAS_STATUS_SUCCESS;
}
