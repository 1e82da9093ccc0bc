// SPDX-License-Identifier: Apache-2.0
// The emulated twin of kernels/cuda/cublaslt.cpp: products by their definition, and scratch memory.

#include "kernels/cuda/cublaslt.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/workspace.h"
#include "tests/emulation/emulator.h"

namespace slipstream::kernels {
namespace {

float load(const void* p, int64_t i, DType dtype) {
  return dtype == DType::f32 ? static_cast<const float*>(p)[i] : static_cast<float>(static_cast<const bfloat16*>(p)[i]);
}
void store(void* p, int64_t i, DType dtype, float value) {
  if (dtype == DType::f32) static_cast<float*>(p)[i] = value;
  else static_cast<bfloat16*>(p)[i] = bfloat16(value);
}

/// d[i, j] by its definition, in double.
void multiply(const Gemm& args) {
  for (int64_t j = 0; j < args.n; ++j)
    for (int64_t i = 0; i < args.m; ++i) {
      double sum = 0.0;
      for (int64_t k = 0; k < args.k; ++k)
        sum += static_cast<double>(load(args.a, args.a_transposed ? k + i * args.a_ld : i + k * args.a_ld, args.in)) *
               static_cast<double>(load(args.b, args.b_transposed ? j + k * args.b_ld : k + j * args.b_ld, args.in));
      const int64_t at = i + j * args.d_ld;
      if (args.accumulate) sum += static_cast<double>(load(args.d, at, args.out));
      if (args.bias) sum += static_cast<double>(load(args.bias, i, args.in));
      if (args.pre_gelu) {
        store(args.pre_gelu, at, args.in, static_cast<float>(sum));
        sum = 0.5 * sum * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (sum + 0.044715 * sum * sum * sum)));
      }
      store(args.d, at, args.out, static_cast<float>(sum));
    }
}

}  // namespace

void* scratch_of(const LaunchContext& context) {
  static std::mutex mutex;
  static std::map<void*, emulation::DeviceMemory> scratch;
  const std::lock_guard lock(mutex);
  return scratch.try_emplace(context.native_stream, static_cast<size_t>(kScratchBytes), "scratch").first->second.data();
}
void prepare_stream(void* native_stream) {
  LaunchContext context;
  context.native_stream = native_stream;
  scratch_of(context);
}
void release_stream(void*) {}

bool gemm(const LaunchContext& context, const Gemm& args) {
  // As cuBLASLt: the rows of an auxiliary output come in whole 16 bytes.
  if (args.pre_gelu && args.d_ld % 8 != 0) return false;
  emulation::enqueue(context.native_stream, [args] { multiply(args); });
  return true;
}

}  // namespace slipstream::kernels
