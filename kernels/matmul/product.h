// SPDX-License-Identifier: Apache-2.0
#pragma once
// The only interface to a library of matrix products: a single product on the calling thread.

#include <cstdint>
#include <string_view>

#include "engine/base/dtype.h"

namespace slipstream::kernels {

/// c[m,n] (+)= op(a)[m,k] · op(b)[k,n], row-major. A transposed operand is stored [k,m] or [n,k]. Strides are elements
/// between stored rows. `a` and `b` are float for product_f32 and bfloat16 for product_bf16, which may add a bias per
/// column to its float sums and round them to a bfloat16 `c`.
struct Product {
  const void* a = nullptr;
  int64_t a_stride = 0;
  bool a_transposed = false;
  const void* b = nullptr;
  int64_t b_stride = 0;
  bool b_transposed = false;
  void* c = nullptr;
  int64_t c_stride = 0;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;     // only with a float c
  DType c_dtype = DType::f32;  // bf16: only with product_bf16
  const void* bias = nullptr;  // [n] bfloat16; only with a bfloat16 c
  // m and k differ from call to call, as the rows of an expert do: product_bf16 prepares one product for all of them.
  bool varying = false;
};

/// Blocks. Uses no other thread. Sizes must be at least 1. Throws: InternalError with the library's status.
void product_f32(const Product& product);

/// Pure. Does the library multiply bfloat16 faster than float on this machine?
bool product_has_bf16();

/// Blocks. Like product_f32, on bfloat16 operands; only if product_has_bf16().
void product_bf16(const Product& product);

/// Blocks. The library's own product on `threads` of its threads. It is the reference for measuring matmul, and never
/// part of a step. `dtype` is the type of the operands: f32, or bf16 if product_has_bf16(). Returns false and does
/// nothing if the library has no threads of its own.
bool product_direct(const Product& product, DType dtype, int threads);

/// Pure. "oneDNN 2.6.3" or "Eigen 3.4.0".
std::string_view product_library();

/// Memory of the calling thread that grows and is never freed, aligned to 64 bytes. The slots are distinct areas.
enum class Scratch : uint8_t { a, b, c };
float* product_scratch(Scratch slot, int64_t elems);

}  // namespace slipstream::kernels
