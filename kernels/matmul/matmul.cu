// SPDX-License-Identifier: Apache-2.0
// Matrix products on CUDA: cuBLASLt with its epilogues where available, kernels for the rest.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/workspace.h"
#include "kernels/gelu/gelu.cuh"
#include "kernels/gelu/gelu.h"
#include "kernels/matmul/matmul.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;
// The blocks of the column sums that a multiprocessor holds, with 64 registers per thread.
constexpr int kResident = 4;

/// y[row] += bias for every row (= if there are no inputs). Runs one thread per pack of a row.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) bias_kernel(int64_t rows, int64_t out, const T* bias, T* y, bool start) {
  ptx::after_earlier_kernels();
  const int64_t packs = (out + kPack<T> - 1) / kPack<T>, index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t column = index % packs * kPack<T>, left = out - column;
  if (index >= rows * packs) return;
  T* to = y + index / packs * out + column;
  float v[kPack<T>] = {}, b[kPack<T>] = {};
  if (!start) load_floats<kAligned>(to, left, v);
  if (bias) load_floats<kAligned>(bias + column, left, b);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) v[i] += b[i];
  store_floats<kAligned>(to, left, v);
}

constexpr int kColumns = 32, kRowLanes = 8;

/// A matrix [rows, out] whose columns are summed.
template <typename T>
struct Columns {
  const T* from;
  int64_t stride;  // elements between its rows
  int64_t rows, out;
  const T* pre;  // for GELU: from *= gelu'(pre) comes first and is stored in `to`; both are dense
  T* to;
};

/// partial[block] (+)= the column sums of a block of rows. There is one thread per pack of columns and eighth of the
/// rows, and the eighths are added in order. A thread loads kAtOnce rows before it uses one, because `to` may be
/// `from`.
template <bool kGelu, bool kAligned, typename T>
__global__ void __launch_bounds__(kColumns* kRowLanes, kResident)
    column_sums_kernel(Columns<T> args, int64_t rows_per_block, float* partial, bool add) {
  ptx::after_earlier_kernels();
  constexpr int kAtOnce = kGelu ? 2 : 4;
  __shared__ float
      storage[kRowLanes * kPack<T> * kColumns];  // element i of a pack: neighbouring lanes use neighbouring banks
  const Shared<float> all(storage);
  const int lane = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = (int64_t{blockIdx.x} * kColumns + lane) * kPack<T>,
                left = args.out - column;  // 0 or less: there is no column
  const int64_t begin = blockIdx.y * rows_per_block,
                end = begin + rows_per_block < args.rows ? begin + rows_per_block : args.rows;
  float sums[kPack<T>] = {};
  const auto add_rows = [&](auto whole, auto rows, int64_t row) {
    constexpr int kRows = decltype(rows)::value;
    const int64_t count = whole.value ? kPack<T> : left;
    float values[kRows][kPack<T>];
    [[maybe_unused]] float pre[kRows][kPack<T>];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = row + r * kRowLanes;
      load_floats<whole.value>(args.from + at * args.stride + column, count, values[r]);
      if constexpr (kGelu) load_floats<whole.value>(args.pre + at * args.out + column, count, pre[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kGelu) {
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) values[r][i] = GeluGradient{}(values[r][i], pre[r][i]);
        store_floats<whole.value>(args.to + (row + r * kRowLanes) * args.out + column, count, values[r]);
      }
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sums[i] += values[r][i];
    }
  };
  const auto add_all = [&](auto whole) {
    int64_t row = begin + part;
    for (; row + (kAtOnce - 1) * kRowLanes < end; row += kAtOnce * kRowLanes)
      add_rows(whole, std::integral_constant<int, kAtOnce>{}, row);
    for (; row < end; row += kRowLanes) add_rows(whole, std::integral_constant<int, 1>{}, row);
  };
  if (kAligned && left >= kPack<T>)
    add_all(std::bool_constant<kAligned>{});
  else if (left > 0)
    add_all(std::false_type{});
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) all[(part * kPack<T> + i) * kColumns + lane] = sums[i];
  __syncthreads();  // the sums of all lanes are there
  for (int i = part; i < kPack<T> && i < left; i += kRowLanes) {
    float sum = all[i * kColumns + lane];
    for (int other = 1; other < kRowLanes; ++other) sum += all[(other * kPack<T> + i) * kColumns + lane];
    float* to = partial + blockIdx.y * args.out + column + i;
    *to = add ? *to + sum : sum;
  }
}

/// dbias (+)= the partial sums. Thread i of a column adds blocks i, i + kRowLanes and so on, and the sums of the
/// threads are added in order.
template <typename P>
__global__ void __launch_bounds__(kColumns* kRowLanes)
    column_finish_kernel(const P* partial, int64_t blocks, int64_t out, float* dbias, bool accumulate) {
  ptx::after_earlier_kernels();
  __shared__ float storage[kRowLanes * kColumns];
  const Shared<float> all(storage);
  const int lane = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = int64_t{blockIdx.x} * kColumns + lane;
  float sum = 0.0f;
  if (column < out)
#pragma unroll 8
    for (int64_t block = part; block < blocks; block += kRowLanes) sum += to_float(partial[block * out + column]);
  all[static_cast<int>(threadIdx.x)] = sum;
  __syncthreads();  // the sums of all lanes are there
  if (part > 0 || column >= out) return;
#pragma unroll
  for (int i = 1; i < kRowLanes; ++i) sum += all[i * kColumns + lane];
  dbias[column] = accumulate ? dbias[column] + sum : sum;
}

unsigned blocks_of(int64_t elems) { return static_cast<unsigned>(blocks_for(elems, kThreads)); }

void zero(const LaunchContext& context, void* p, int64_t size_bytes) {
  cuda_check(cudaMemsetAsync(p, 0, static_cast<size_t>(size_bytes), stream_of(context)), "zeroing an empty product");
}

template <typename T>
void add_bias(const LaunchContext& context, const MatmulForward& args, void* y, bool start) {
  for_flag(args.out % kPack<T> == 0 && all_aligned(args.bias, y), [&](auto aligned) {
    launch(stream_of(context), bias_kernel<aligned.value, T>,
           dim3(blocks_of(args.rows * blocks_for(args.out, kPack<T>))), dim3(kThreads), 0, args.rows, args.out,
           static_cast<const T*>(args.bias), static_cast<T*>(y), start);
  });
}

/// Enqueues. dbias (+)= `blocks` partial sums.
template <typename P>
void finish_columns(const LaunchContext& context, const P* partial, int64_t blocks, int64_t out, float* dbias,
                    bool accumulate) {
  launch(stream_of(context), column_finish_kernel<P>, dim3(static_cast<unsigned>(blocks_for(out, kColumns))),
         dim3(kColumns * kRowLanes), 0, partial, blocks, out, dbias, accumulate);
}

/// Enqueues. dbias (+)= the column sums.
template <typename T>
void sum_columns(const LaunchContext& context, const Columns<T>& args, float* dbias, bool accumulate) {
  // Three times the blocks that 132 multiprocessors hold at once (norm.cuh has the reason), if there are as many rows
  // and if the scratch has room. The number depends only on the shape.
  constexpr int64_t kRowsLeast = 16;
  const int64_t across = blocks_for(args.out, kColumns * kPack<T>), fitting = kScratchBytes / 4 / args.out;
  int64_t blocks = std::min({blocks_for(args.rows, kRowsLeast), std::max<int64_t>(1, 3 * kResident * 132 / across),
                             std::max<int64_t>(1, fitting)});
  const int64_t rows_per_block = blocks > 0 ? blocks_for(args.rows, blocks) : 0;
  blocks = rows_per_block > 0 ? blocks_for(args.rows, rows_per_block) : 0;
  float* partial = blocks == 1 ? dbias : static_cast<float*>(scratch_of(context));
  if (blocks > 0)
    for_flag(args.pre != nullptr, [&](auto gelu) {
      for_flag(args.stride % kPack<T> == 0 && all_aligned(args.from, args.pre, args.to), [&](auto aligned) {
        launch(stream_of(context), column_sums_kernel<gelu.value, aligned.value, T>,
               dim3(static_cast<unsigned>(across), static_cast<unsigned>(blocks)), dim3(kColumns * kRowLanes), 0, args,
               rows_per_block, partial, partial == dbias && accumulate);
      });
    });
  if (partial != dbias) finish_columns<float>(context, partial, blocks, args.out, dbias, accumulate);
}

/// Enqueues. dbias (+)= the column sums of dx, which is first multiplied by gelu'(pre) if there is one.
void sum_dx(const LaunchContext& context, const MatmulBackwardInput& args, const void* pre) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    T* const dx = static_cast<T*>(args.dx);
    sum_columns<T>(context, {dx, args.in, args.rows, args.in, static_cast<const T*>(pre), dx}, args.dbias,
                   args.accumulate_bias);
  });
}

}  // namespace

void matmul_forward_cuda(LaunchContext& context, const MatmulForward& args) {
  // Row-major y = x · weight^T is column-major y^T = weight · x^T.
  Gemm product = {.a = args.weight,
                  .b = args.x,
                  .d = args.y,
                  .bias = args.bias,
                  .pre_gelu = args.pre_activation,
                  .m = args.out,
                  .n = args.rows,
                  .k = args.in,
                  .a_ld = args.in,
                  .b_ld = args.in,
                  .d_ld = args.out,
                  .a_transposed = true,
                  .in = args.dtype,
                  .out = args.dtype};
  if (args.in > 0 && gemm(context, product)) return;
  void* value = args.pre_activation ? args.pre_activation : args.y;
  product.d = value;
  product.pre_gelu = nullptr;
  if (args.in == 0 || !gemm(context, product)) {
    product.bias = nullptr;
    if (args.in > 0) gemm(context, product);
    for_dtype(args.dtype, [&](auto type) { add_bias<decltype(type)>(context, args, value, args.in == 0); });
  }
  if (args.pre_activation) gelu_forward_cuda(context, {args.pre_activation, args.y, args.rows * args.out, args.dtype});
}

void matmul_backward_input_cuda(LaunchContext& context, const MatmulBackwardInput& args) {
  if (args.out == 0) {
    if (!args.accumulate) zero(context, args.dx, bytes_of(args.rows * args.in, args.dtype));
    if (args.dbias) sum_dx(context, args, nullptr);
    return;
  }
  Gemm product = {.a = args.weight,
                  .b = args.dy,
                  .d = args.dx,
                  .gelu_input = args.pre_activation,
                  .m = args.in,
                  .n = args.rows,
                  .k = args.out,
                  .a_ld = args.in,
                  .b_ld = args.out,
                  .d_ld = args.in,
                  .in = args.dtype,
                  .out = args.dtype,
                  .accumulate = args.accumulate};
  if (args.pre_activation && args.dbias) {
    // Fused sums are stored, not added, and have dx's type.
    product.d_sums = bytes_of(args.in, args.dtype) <= kScratchBytes ? scratch_of(context) : nullptr;
    if (product.d_sums && gemm(context, product))
      return for_dtype(args.dtype, [&](auto type) {
        finish_columns(context, static_cast<const decltype(type)*>(product.d_sums), 1, args.in, args.dbias,
                       args.accumulate_bias);
      });
    product.d_sums = nullptr;
    product.summed_after = true;
  }
  if (gemm(context, product)) {
    if (args.dbias) sum_dx(context, args, nullptr);
    return;
  }
  product.gelu_input = nullptr;
  product.summed_after = false;
  gemm(context, product);
  gelu_gradient_cuda(context, args);
}

void gelu_gradient_cuda(LaunchContext& context, const MatmulBackwardInput& args) {
  if (args.dbias) return sum_dx(context, args, args.pre_activation);
  gelu_backward_cuda(context, {args.dx, args.pre_activation, args.dx, args.rows * args.in, args.dtype});
}

void matmul_backward_weight_cuda(LaunchContext& context, const MatmulBackwardWeight& args) {
  if (args.in > 0 && args.rows > 0) {
    // Fused sums are stored, not added, so those of a later micro-batch pass through the scratch.
    const bool fits = bytes_of(args.out, DType::f32) <= kScratchBytes;
    void* sums = args.accumulate ? scratch_of(context) : args.dbias;
    Gemm product = {.a = args.x,
                    .b = args.dy,
                    .d = args.dweight,
                    .b_sums = args.dbias && fits ? sums : nullptr,
                    .m = args.in,
                    .n = args.out,
                    .k = args.rows,
                    .a_ld = args.in,
                    .b_ld = args.dy_stride,
                    .d_ld = args.in,
                    .b_transposed = true,
                    .in = args.dtype,
                    .out = DType::f32,
                    .accumulate = args.accumulate};
    if (product.b_sums && gemm(context, product)) {
      if (args.accumulate) finish_columns(context, static_cast<const float*>(sums), 1, args.out, args.dbias, true);
      return;
    }
    product.b_sums = nullptr;
    gemm(context, product);
  } else if (args.in > 0 && !args.accumulate) {
    zero(context, args.dweight, bytes_of(args.out * args.in, DType::f32));
  }
  if (args.dbias)
    for_dtype(args.dtype, [&](auto type) {
      using T = decltype(type);
      sum_columns<T>(context, {static_cast<const T*>(args.dy), args.dy_stride, args.rows, args.out, nullptr, nullptr},
                     args.dbias, args.accumulate);
    });
}

}  // namespace slipstream::kernels
