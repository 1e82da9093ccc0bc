// SPDX-License-Identifier: Apache-2.0
// Matrix products by Eigen, for builds without oneDNN.

#include <Eigen/Core>

#include "engine/base/check.h"
#include "kernels/matmul/product.h"

namespace slipstream::kernels {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using ConstMap = Eigen::Map<const RowMajor, 0, Stride>;
using Map = Eigen::Map<RowMajor, 0, Stride>;

template <typename A, typename B>
void multiply(const A& a, const B& b, Map& c, bool accumulate) {
  if (accumulate)
    c.noalias() += a * b;
  else
    c.noalias() = a * b;
}

}  // namespace

void product_f32(const Product& p) {
  const ConstMap a(static_cast<const float*>(p.a), p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k,
                   Stride(p.a_stride));
  const ConstMap b(static_cast<const float*>(p.b), p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n,
                   Stride(p.b_stride));
  Map c(static_cast<float*>(p.c), p.m, p.n, Stride(p.c_stride));
  if (p.a_transposed && p.b_transposed)
    multiply(a.transpose(), b.transpose(), c, p.accumulate);
  else if (p.a_transposed)
    multiply(a.transpose(), b, c, p.accumulate);
  else if (p.b_transposed)
    multiply(a, b.transpose(), c, p.accumulate);
  else
    multiply(a, b, c, p.accumulate);
}

bool product_has_bf16() { return false; }

void product_bf16(const Product&) {
  throw InternalError("[matmul] Eigen has no bfloat16 product; call product_has_bf16 first.");
}

bool product_direct(const Product&, DType, int) { return false; }

std::string_view product_library() {
#define SLIP_TEXT_OF(x) #x
#define SLIP_TEXT(x) SLIP_TEXT_OF(x)
  return "Eigen " SLIP_TEXT(EIGEN_WORLD_VERSION) "." SLIP_TEXT(EIGEN_MAJOR_VERSION) "." SLIP_TEXT(EIGEN_MINOR_VERSION);
#undef SLIP_TEXT
#undef SLIP_TEXT_OF
}

}  // namespace slipstream::kernels
