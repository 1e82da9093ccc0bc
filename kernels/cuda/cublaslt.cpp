// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt, and what a stream owns: scratch, handle, workspace and the algorithms chosen so far.

#include "kernels/cuda/cublaslt.h"

#include <cublasLt.h>
#include <launch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "engine/base/check.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::kernels {
namespace {

// What NVIDIA advises for Hopper.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw ResourceError("[cuda] {}: {} ({}). See that cuBLAS is the one of the toolkit that built this program.", what,
                        cublasLtGetStatusString(status), static_cast<int>(status));
}

using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, DType, DType, bool, bool, bool, uint32_t>;

struct Choice {
  bool found = false;
  cublasLtMatmulAlgo_t algorithm;
};

struct Owned {
  void* scratch = nullptr;
  void* workspace = nullptr;
  cublasLtHandle_t handle = nullptr;
  std::map<Key, Choice> choices;

  Owned() = default;
  /// Apart from the constructor: what was taken before a failure is given back.
  void take() {
    cuda_check(cudaMalloc(&scratch, static_cast<size_t>(kScratchBytes)), "taking the scratch memory of a stream");
    cuda_check(cudaMalloc(&workspace, static_cast<size_t>(kWorkspaceBytes)), "taking the cuBLASLt workspace of a stream");
    check(cublasLtCreate(&handle), "starting cuBLASLt");
  }
  ~Owned() {
    if (handle) cublasLtDestroy(handle);
    cudaFree(workspace);
    cudaFree(scratch);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
};

struct Streams {
  std::mutex mutex;
  std::unordered_map<void*, std::unique_ptr<Owned>> owned;
};
Streams& streams() {
  // Never destroyed: at exit the driver may be gone before us.
  static Streams* all = new Streams;
  return *all;
}

Owned& owned_by(void* stream) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  auto& owned = all.owned[stream];
  if (!owned) {
    auto taken = std::make_unique<Owned>();
    taken->take();
    owned = std::move(taken);
  }
  return *owned;
}

template <typename T, cublasStatus_t (*kDestroy)(T*)>
struct Destroy {
  void operator()(T* p) const { kDestroy(p); }
};
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescOpaque_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceOpaque_t, cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

template <typename Value>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value), "describing a product");
}

Description describe(const Gemm& args) {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  Description description(made);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, args.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, args.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  const cublasLtEpilogue_t epilogue = args.pre_gelu ? args.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX
                                      : args.bias   ? CUBLASLT_EPILOGUE_BIAS
                                                    : CUBLASLT_EPILOGUE_DEFAULT;
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (args.bias) {
    set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
    set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(args.in)));
  }
  if (args.pre_gelu) {
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.pre_gelu);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, args.d_ld);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, static_cast<int32_t>(type_of(args.in)));
  }
  return description;
}

Layout layout(DType dtype, int64_t rows, int64_t columns, int64_t ld) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), ld), "describing a matrix");
  return Layout(made);
}

/// Bytes that all of `pointers` are multiples of, at most 256, the library's default.
uint32_t alignment_of(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 256;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(bits & (~bits + 1));
}

Choice choose(Owned& owned, const Gemm& args, const Description& description, const Layout& a, const Layout& b, const Layout& d,
              uint32_t alignment_bytes) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "asking for algorithms");
  const Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value), "asking for algorithms");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, alignment_bytes);
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(owned.handle, description.get(), a.get(), b.get(), d.get(), d.get(),
                                                              preference.get(), 1, &result, &found);
  if (status == CUBLAS_STATUS_SUCCESS && found > 0) return {true, result.algo};
  if (!args.bias && !args.pre_gelu) check(status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status, "choosing an algorithm");
  return {};
}

}  // namespace

void* scratch_of(const LaunchContext& context) { return owned_by(context.native_stream).scratch; }
void prepare_stream(void* native_stream) { owned_by(native_stream); }
void release_stream(void* native_stream) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  all.owned.erase(native_stream);
}

bool gemm(const LaunchContext& context, const Gemm& args) {
  Owned& owned = owned_by(context.native_stream);
  const Description description = describe(args);
  const Layout a = args.a_transposed ? layout(args.in, args.k, args.m, args.a_ld) : layout(args.in, args.m, args.k, args.a_ld);
  const Layout b = args.b_transposed ? layout(args.in, args.n, args.k, args.b_ld) : layout(args.in, args.k, args.n, args.b_ld);
  const Layout d = layout(args.out, args.m, args.n, args.d_ld);
  const uint32_t alignment_bytes = alignment_of({args.a, args.b, args.d, args.bias, args.pre_gelu});
  const Key key = {args.m, args.n, args.k, args.a_ld, args.b_ld, args.d_ld, args.a_transposed, args.b_transposed, args.in, args.out,
                   args.accumulate, args.bias != nullptr, args.pre_gelu != nullptr, alignment_bytes};
  auto known = owned.choices.find(key);
  if (known == owned.choices.end())
    known = owned.choices.emplace(key, choose(owned, args, description, a, b, d, alignment_bytes)).first;
  if (!known->second.found) return false;
  const float one = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  check(cublasLtMatmul(owned.handle, description.get(), &one, args.a, a.get(), args.b, b.get(), &beta, args.d, d.get(), args.d, d.get(),
                       &known->second.algorithm, owned.workspace, static_cast<size_t>(kWorkspaceBytes),
                       static_cast<cudaStream_t>(context.native_stream)),
        "launching a product");
  return true;
}

}  // namespace slipstream::kernels
