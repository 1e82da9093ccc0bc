// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt, and the resources of a stream: scratch, handle, workspace and the chosen algorithms.

#include "kernels/cuda/cublaslt.h"

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine/base/check.h"
#include "kernels/cuda/cublaslt_types.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::kernels {
namespace lt {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw ResourceError("[cuda] {}: {} ({}). Use the cuBLAS of the toolkit that built this program.", what,
                        cublasLtGetStatusString(status), static_cast<int>(status));
}

namespace {

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

template <typename Value>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value), "describing a product");
}

cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::gelu_gradient:
    case Epilogue::summed_gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::gelu_bias_gradient:
      return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case Epilogue::bias_gradient:
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

Description describe(const Gemm& args) {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  Description description(made);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, args.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, args.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(product_of(args).epilogue));
  if (args.multiprocessors > 0) set(description, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, args.multiprocessors);
  if (const void* vector = args.bias ? args.bias : args.d_sums ? args.d_sums : args.b_sums) {
    set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
    set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<int32_t>(type_of(args.bias ? args.in : args.out)));
  }
  if (const void* matrix = args.pre_gelu ? args.pre_gelu : args.gelu_input) {
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matrix);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, args.d_ld);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, static_cast<int32_t>(type_of(args.in)));
  }
  return description;
}

Layout layout(DType dtype, int64_t rows, int64_t columns, int64_t ld) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                   ld),
        "describing a matrix");
  return Layout(made);
}

/// The largest power of two that divides all of `pointers`, at most 256, which is the library's default.
uint32_t alignment_of(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 256;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(bits & (~bits + 1));
}

}  // namespace

Described::Described(const Gemm& args)
    : description(describe(args)),
      has_epilogue(product_of(args).epilogue != Epilogue::none),
      is_float(args.out == DType::f32),
      a(args.a_transposed ? layout(args.in, args.k, args.m, args.a_ld) : layout(args.in, args.m, args.k, args.a_ld)),
      b(args.b_transposed ? layout(args.in, args.n, args.k, args.b_ld) : layout(args.in, args.k, args.n, args.b_ld)),
      d(layout(args.out, args.m, args.n, args.d_ld)) {}

std::vector<cublasLtMatmulAlgo_t> Described::candidates(cublasLtHandle_t handle, uint32_t alignment_bytes,
                                                        int most) const {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "asking for algorithms");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        Destroy<cublasLtMatmulPreferenceOpaque_t, cublasLtMatmulPreferenceDestroy>>
      preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
          "asking for algorithms");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, alignment_bytes);
  // A split product is summed in float, in a fixed order. The sum may be in memory of D's type only if that is float,
  // because bfloat16 would round every part.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(is_float ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, description.get(), a.get(), b.get(), d.get(),
                                                               d.get(), preference.get(), most, results.data(), &found);
  // For a missing epilogue the library returns different statuses (GELU requires leading dimensions that are multiples
  // of 8). A kernel replaces it.
  if (status != CUBLAS_STATUS_SUCCESS) found = 0;
  if (!has_epilogue) check(status, "asking for algorithms");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i)
    if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(results[static_cast<size_t>(i)].algo);
  return algorithms;
}

bool Described::takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  return cublasLtMatmulAlgoCheck(handle, description.get(), a.get(), b.get(), d.get(), d.get(), &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         static_cast<int64_t>(result.workspaceSize) <= kWorkspaceBytes;
}

cublasStatus_t Described::enqueue(cublasLtHandle_t handle, const Gemm& args, const cublasLtMatmulAlgo_t& algorithm,
                                  void* workspace, cudaStream_t stream) const {
  const float one = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  return cublasLtMatmul(handle, description.get(), &one, args.a, a.get(), args.b, b.get(), &beta, args.d, d.get(),
                        args.d, d.get(), &algorithm, workspace, static_cast<size_t>(kWorkspaceBytes), stream);
}

ProductShape product_of(const Gemm& args) {
  return {.m = args.m,
          .n = args.n,
          .k = args.k,
          .a_ld = args.a_ld,
          .b_ld = args.b_ld,
          .d_ld = args.d_ld,
          .a_transposed = args.a_transposed,
          .b_transposed = args.b_transposed,
          .in = args.in,
          .out = args.out,
          .accumulate = args.accumulate,
          .epilogue = args.d_sums       ? Epilogue::gelu_bias_gradient
                      : args.gelu_input ? args.summed_after ? Epilogue::summed_gelu_gradient : Epilogue::gelu_gradient
                      : args.b_sums     ? Epilogue::bias_gradient
                      : args.pre_gelu   ? args.bias ? Epilogue::gelu_bias : Epilogue::gelu
                      : args.bias       ? Epilogue::bias
                                        : Epilogue::none,
          .alignment_bytes = alignment_of(
              {args.a, args.b, args.d, args.bias, args.pre_gelu, args.gelu_input, args.d_sums, args.b_sums}),
          .multiprocessors = args.multiprocessors};
}

}  // namespace lt

namespace {

using From = ChosenAlgorithm::From;

struct Owned {
  void* scratch = nullptr;
  lt::Tools tools;
  std::map<ProductShape, ChosenAlgorithm> choices;

  Owned() = default;
  /// This is not in the constructor, so that memory that was taken before a failure is freed.
  void take() {
    cuda_check(cudaMalloc(&scratch, static_cast<size_t>(kScratchBytes)), "allocating the scratch memory of a stream");
    cuda_check(cudaMalloc(&tools.workspace, static_cast<size_t>(kWorkspaceBytes)),
               "allocating the cuBLASLt workspace of a stream");
    lt::check(cublasLtCreate(&tools.handle), "starting cuBLASLt");
  }
  ~Owned() {
    if (tools.handle) cublasLtDestroy(tools.handle);
    cudaFree(tools.workspace);
    cudaFree(scratch);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
};

struct Streams {
  std::mutex mutex;
  std::unordered_map<void*, std::unique_ptr<Owned>> owned;
  AlgorithmTable table;
  std::map<ProductShape, ChosenAlgorithm> chosen;  // also by streams that no longer exist
};
Streams& streams() {
  // The object is never destroyed, because at exit the driver may shut down first.
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

ChosenAlgorithm choose(const lt::Tools& tools, const AlgorithmTable& table, const ProductShape& product,
                       const lt::Described& described) {
  const TimedAlgorithm* timed = table.find(product);
  if (timed && timed->wins() && described.takes(tools.handle, lt::algorithm_of(timed->algorithm)))
    return {From::table, timed->algorithm};
  if (is_gradient(product.epilogue)) return {From::kernel, {}};
  const std::vector<cublasLtMatmulAlgo_t> first = described.candidates(tools.handle, product.alignment_bytes, 1);
  if (!first.empty()) return {From::library, lt::bits_of(first[0])};
  if (product.epilogue == Epilogue::none) lt::check(CUBLAS_STATUS_NOT_SUPPORTED, "choosing an algorithm");
  return {From::kernel, {}};
}

}  // namespace

lt::Tools lt::tools_of(const LaunchContext& context) { return owned_by(context.native_stream).tools; }

void* scratch_of(const LaunchContext& context) { return owned_by(context.native_stream).scratch; }
void prepare_stream(void* native_stream) { owned_by(native_stream); }
void release_stream(void* native_stream) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  all.owned.erase(native_stream);
}

GemmLibrary gemm_library() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "asking for the current GPU");
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "asking for the name of a GPU");
  return {.card = properties.name, .version = static_cast<int64_t>(cublasLtGetVersion())};
}

void use_algorithms(AlgorithmTable table) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  all.table = std::move(table);
  all.chosen.clear();
  for (auto& [stream, owned] : all.owned) owned->choices.clear();
}

std::map<ProductShape, ChosenAlgorithm> chosen_algorithms() {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  std::map<ProductShape, ChosenAlgorithm> chosen = all.chosen;
  for (const auto& [stream, owned] : all.owned)
    for (const auto& [product, choice] : owned->choices) chosen[product].calls += choice.calls;
  return chosen;
}

bool gemm(const LaunchContext& context, const Gemm& given) {
  Gemm args = given;
  if (context.frame) args.multiprocessors = context.frame->multiprocessors;
  Owned& owned = owned_by(context.native_stream);
  const ProductShape product = lt::product_of(args);
  const lt::Described described(args);
  auto known = owned.choices.find(product);
  if (known == owned.choices.end()) {
    Streams& all = streams();
    const std::lock_guard lock(all.mutex);
    known = owned.choices.emplace(product, choose(owned.tools, all.table, product, described)).first;
    all.chosen.insert(*known);
  }
  ++known->second.calls;
  if (known->second.from == From::kernel) return false;
  lt::check(described.enqueue(owned.tools.handle, args, lt::algorithm_of(known->second.algorithm),
                              owned.tools.workspace, stream_of(context)),
            "launching a product");
  return true;
}

}  // namespace slipstream::kernels
