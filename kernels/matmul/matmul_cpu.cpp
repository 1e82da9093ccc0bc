// SPDX-License-Identifier: Apache-2.0
// The tiles, bias, GELU and bfloat16 storage around the library's matrix products.

#include "kernels/matmul/matmul_cpu.h"

#include "kernels/common/simd.h"
#include "kernels/matmul/product.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// The blocks of a bfloat16 product. A result block (2 MiB of float) and the converted operands (at most 4 and 8 MiB)
// stay in the last level of cache, and an element is converted at most once per 512 multiplications.
constexpr int64_t kBlockM = 512;
constexpr int64_t kBlockN = 1024;
constexpr int64_t kBlockK = 2048;
// The columns of a bias gradient that are summed at once: they fit in part of L1.
constexpr int64_t kBiasColumns = 256;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <typename From, typename To>
void copy_row(const From* from, To* to, int64_t elems) {
  int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes) store(to + i, load(from + i));
  if (i < elems) store_part(to + i, load_part(from + i, elems - i), elems - i);
}

template <typename From, typename To>
void copy_block(const From* from, int64_t from_stride, To* to, int64_t to_stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) copy_row(from + r * from_stride, to + r * to_stride, columns);
}

template <typename T>
void add_row(const float* from, T* to, int64_t elems) {
  int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes) store(to + i, load(to + i) + load(from + i));
  if (i < elems) store_part(to + i, load_part(to + i, elems - i) + load_part(from + i, elems - i), elems - i);
}

void zero_block(float* to, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) std::memset(to + r * stride, 0, static_cast<size_t>(columns) * sizeof(float));
}

/// Copies the block [first_row, +rows) x [first_column, +columns) of op(stored) in its stored layout.
void widen(const void* stored, int64_t stride, bool transposed, int64_t row, int64_t column, int64_t rows,
           int64_t columns, float* to) {
  const auto* from = static_cast<const bfloat16*>(stored);
  if (transposed)
    copy_block(from + column * stride + row, stride, to, rows, columns, rows);
  else
    copy_block(from + row * stride + column, stride, to, columns, rows, columns);
}

/// A product of bfloat16 operands on a CPU that multiplies only float. It goes block by block through float copies.
void product_widened(const Product& p) {
  float* a = product_scratch(Scratch::a, smaller(p.m, kBlockM) * smaller(p.k, kBlockK));
  float* b = product_scratch(Scratch::b, smaller(p.n, kBlockN) * smaller(p.k, kBlockK));
  for (int64_t k0 = 0; k0 < p.k; k0 += kBlockK) {
    const int64_t k = smaller(kBlockK, p.k - k0);
    for (int64_t n0 = 0; n0 < p.n; n0 += kBlockN) {
      const int64_t n = smaller(kBlockN, p.n - n0);
      widen(p.b, p.b_stride, p.b_transposed, k0, n0, k, n, b);
      for (int64_t m0 = 0; m0 < p.m; m0 += kBlockM) {
        const int64_t m = smaller(kBlockM, p.m - m0);
        widen(p.a, p.a_stride, p.a_transposed, m0, k0, m, k, a);
        product_f32({a, p.a_transposed ? m : k, p.a_transposed, b, p.b_transposed ? k : n, p.b_transposed,
                     static_cast<float*>(p.c) + m0 * p.c_stride + n0, p.c_stride, m, n, k, p.accumulate || k0 > 0});
      }
    }
  }
}

template <typename T>
void multiply(const Product& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    if (!p.accumulate) zero_block(static_cast<float*>(p.c), p.c_stride, p.m, p.n);
    return;
  }
  if constexpr (sizeof(T) == sizeof(float))
    product_f32(p);
  else if (product_has_bf16())
    product_bf16(p);
  else
    product_widened(p);
}

/// v / (1 + e^(-2u)) with u = sqrt(2/pi) (v + 0.044715 v^3): the tanh form with one exponential.
inline Vf gelu(Vf v) {
  const Vf u = v * (0.79788456080286536f + 0.035677408136300125f * (v * v));
  return v / (1.0f + exp(u * -2.0f));
}

/// pre = value + bias, and y = gelu(pre) of the unrounded pre. Without `pre`, y = value + bias.
template <typename T>
inline void finish_vector(Vf value, T* pre, T* y, int64_t elems) {
  if (pre != nullptr) {
    elems == kLanes ? store(pre, value) : store_part(pre, value, elems);
    value = gelu(value);
  }
  elems == kLanes ? store(y, value) : store_part(y, value, elems);
}

template <typename T>
void finish_row(const float* product, const T* bias, T* pre, T* y, int64_t elems) {
  for (int64_t i = 0; i < elems; i += kLanes) {
    const int64_t lanes = smaller(kLanes, elems - i);
    Vf value = lanes == kLanes ? load(product + i) : load_part(product + i, lanes);
    if (bias != nullptr) value += lanes == kLanes ? load(bias + i) : load_part(bias + i, lanes);
    finish_vector(value, pre == nullptr ? nullptr : pre + i, y + i, lanes);
  }
}

/// Computes one tile of y. In float without GELU, the product adds to rows that already hold the bias, which saves a
/// pass.
void forward_tile_f32(const MatmulForward& args, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  const auto* bias = static_cast<const float*>(args.bias);
  auto* y = static_cast<float*>(args.y) + row * args.out + column;
  auto* pre =
      args.pre_activation == nullptr ? nullptr : static_cast<float*>(args.pre_activation) + row * args.out + column;
  const bool filled = bias != nullptr && pre == nullptr;
  if (filled)
    for (int64_t r = 0; r < rows; ++r) copy_row(bias + column, y + r * args.out, columns);
  float* product = pre == nullptr ? y : pre;
  multiply<float>({static_cast<const float*>(args.x) + row * args.in, args.in, false,
                   static_cast<const float*>(args.weight) + column * args.in, args.in, true, product, args.out, rows,
                   columns, args.in, filled});
  if (pre == nullptr) return;
  for (int64_t r = 0; r < rows; ++r)
    finish_row(product + r * args.out, bias == nullptr ? nullptr : bias + column, pre + r * args.out, y + r * args.out,
               columns);
}

void forward_tile_bf16(const MatmulForward& args, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  const auto* bias = static_cast<const bfloat16*>(args.bias);
  if (product_has_bf16() && args.pre_activation == nullptr && args.in > 0)
    return product_bf16({static_cast<const bfloat16*>(args.x) + row * args.in, args.in, false,
                         static_cast<const bfloat16*>(args.weight) + column * args.in, args.in, true,
                         static_cast<bfloat16*>(args.y) + row * args.out + column, args.out, rows, columns, args.in,
                         false, DType::bf16, bias == nullptr ? nullptr : bias + column});
  float* block = product_scratch(Scratch::c, smaller(rows, kBlockM) * smaller(columns, kBlockN));
  for (int64_t n0 = 0; n0 < columns; n0 += kBlockN)
    for (int64_t m0 = 0; m0 < rows; m0 += kBlockM) {
      const int64_t m = smaller(kBlockM, rows - m0), n = smaller(kBlockN, columns - n0), first = column + n0;
      multiply<bfloat16>({static_cast<const bfloat16*>(args.x) + (row + m0) * args.in, args.in, false,
                          static_cast<const bfloat16*>(args.weight) + first * args.in, args.in, true, block, n, m, n,
                          args.in, false});
      for (int64_t r = 0; r < m; ++r) {
        const int64_t at = (row + m0 + r) * args.out + first;
        finish_row(block + r * n, bias == nullptr ? nullptr : bias + first,
                   args.pre_activation == nullptr ? nullptr : static_cast<bfloat16*>(args.pre_activation) + at,
                   static_cast<bfloat16*>(args.y) + at, n);
      }
    }
}

/// A product of bfloat16 operands in a bfloat16 result, which the library cannot compute: it goes block by block
/// through float sums.
void product_rounded(const Product& p) {
  const auto* a = static_cast<const bfloat16*>(p.a);
  const auto* b = static_cast<const bfloat16*>(p.b);
  float* block = product_scratch(Scratch::c, smaller(p.m, kBlockM) * smaller(p.n, kBlockN));
  for (int64_t n0 = 0; n0 < p.n; n0 += kBlockN)
    for (int64_t m0 = 0; m0 < p.m; m0 += kBlockM) {
      const int64_t m = smaller(kBlockM, p.m - m0), n = smaller(kBlockN, p.n - n0);
      multiply<bfloat16>({a + (p.a_transposed ? m0 : m0 * p.a_stride), p.a_stride, p.a_transposed,
                          b + (p.b_transposed ? n0 * p.b_stride : n0), p.b_stride, p.b_transposed, block, n, m, n, p.k,
                          false});
      for (int64_t r = 0; r < m; ++r) {
        bfloat16* c = static_cast<bfloat16*>(p.c) + (m0 + r) * p.c_stride + n0;
        p.accumulate ? add_row(block + r * n, c, n) : copy_row(block + r * n, c, n);
      }
    }
}

void backward_input_tile(const MatmulBackwardInput& args, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  const auto at = [&](const void* p, int64_t elems) {
    return static_cast<const std::byte*>(p) + bytes_of(elems, args.dtype);
  };
  product_tile_cpu({.a = at(args.dy, row * args.out),
                    .a_stride = args.out,
                    .b = at(args.weight, column),
                    .b_stride = args.in,
                    .c = static_cast<std::byte*>(args.dx) + bytes_of(row * args.in + column, args.dtype),
                    .c_stride = args.in,
                    .m = rows,
                    .n = columns,
                    .k = args.out - args.padding,
                    .accumulate = args.accumulate,
                    .c_dtype = args.dtype},
                   args.dtype);
}

/// Sums the rows of dy in row order, some columns at a time, so that any split of the columns gives the same bits.
template <typename T>
void bias_gradient(const MatmulBackwardWeight& args, int64_t begin, int64_t end) {
  alignas(64) float sums[kBiasColumns];
  for (int64_t column = begin; column < end; column += kBiasColumns) {
    const int64_t columns = smaller(kBiasColumns, end - column);
    std::memset(sums, 0, sizeof sums);
    for (int64_t row = 0; row < args.rows; ++row) {
      const T* dy = static_cast<const T*>(args.dy) + row * args.dy_stride + column;
      int64_t i = 0;
      for (; i + kLanes <= columns; i += kLanes) store(sums + i, load(sums + i) + load(dy + i));
      for (; i < columns; ++i) sums[i] += static_cast<float>(dy[i]);
    }
    args.accumulate ? add_row(sums, args.dbias + column, columns) : copy_row(sums, args.dbias + column, columns);
  }
}

/// Calls body(row, column, rows, columns) for every tile of an m x n result, each on a separate thread.
template <typename Body>
void for_tiles(LaunchContext& context, int64_t m, int64_t n, int64_t k, const Body& body) {
  if (m == 0 || n == 0) return;
  const TileSplit split = split_tiles(m, n, k, context.pool->threads());
  context.parallel_for(split.m_tiles * split.n_tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / split.n_tiles * split.m_tile, column = tile % split.n_tiles * split.n_tile;
      body(row, column, smaller(split.m_tile, m - row), smaller(split.n_tile, n - column));
    }
  });
}

template <typename T>
void backward_weight(LaunchContext& context, const MatmulBackwardWeight& args) {
  const auto* dy = static_cast<const T*>(args.dy);
  const auto* x = static_cast<const T*>(args.x);
  const int64_t out = args.out - args.padding;
  if (args.in > 0) {
    for_tiles(context, out, args.in, args.rows, [&](int64_t row, int64_t column, int64_t rows, int64_t columns) {
      multiply<T>({dy + row, args.dy_stride, true, x + column, args.in, false, args.dweight + row * args.in + column,
                   args.in, rows, columns, args.rows, args.accumulate});
    });
    if (!args.accumulate) zero_block(args.dweight + out * args.in, args.in, args.padding, args.in);
  }
  if (args.dbias == nullptr) return;
  const int64_t groups = (args.out + kLanes - 1) / kLanes;
  const int64_t grain = 1 + 65536 / (kLanes * (args.rows + 1));
  context.parallel_for(groups, grain, [&](int64_t begin, int64_t end) {
    bias_gradient<T>(args, begin * kLanes, smaller(args.out, end * kLanes));
  });
}

}  // namespace

void matmul_forward_cpu(LaunchContext& context, const MatmulForward& args) {
  for_tiles(context, args.rows, args.out - args.padding, args.in,
            [&](int64_t row, int64_t column, int64_t rows, int64_t columns) {
              if (args.dtype == DType::f32)
                forward_tile_f32(args, row, column, rows, columns);
              else
                forward_tile_bf16(args, row, column, rows, columns);
            });
  if (args.padding == 0) return;
  const int64_t row_bytes = bytes_of(args.out, args.dtype), padding_bytes = bytes_of(args.padding, args.dtype);
  context.parallel_for(args.rows, 1 + 65536 / padding_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memset(static_cast<std::byte*>(args.y) + (row + 1) * row_bytes - padding_bytes, 0,
                  static_cast<size_t>(padding_bytes));
  });
}

void matmul_backward_input_cpu(LaunchContext& context, const MatmulBackwardInput& args) {
  for_tiles(context, args.rows, args.in, args.out - args.padding,
            [&](int64_t row, int64_t column, int64_t rows, int64_t columns) {
              backward_input_tile(args, row, column, rows, columns);
            });
}

void product_tile_cpu(const Product& p, DType dtype) {
  if (dtype == DType::f32) return multiply<float>(p);
  if (p.c_dtype == DType::f32) return multiply<bfloat16>(p);
  product_has_bf16() && !p.accumulate && p.k > 0 ? product_bf16(p) : product_rounded(p);
}

void matmul_backward_weight_cpu(LaunchContext& context, const MatmulBackwardWeight& args) {
  if (args.dtype == DType::f32)
    backward_weight<float>(context, args);
  else
    backward_weight<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA
