// SPDX-License-Identifier: Apache-2.0
// Matrix products on CUDA: cuBLASLt with its epilogues where available, kernels for the rest.

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/workspace.h"
#include "kernels/gelu/gelu_cuda.h"
#include "kernels/matmul/matmul_cuda.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;

/// y[row] += bias for every row (= without inputs). One thread per pack of a row.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) bias_kernel(int64_t rows, int64_t out, const T* bias, T* y, bool start) {
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

/// partial[block] (+)= the column sums of a block of rows: one thread per pack of columns and eighth of the rows,
/// eighths in order.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kColumns* kRowLanes)
    column_sums_kernel(const T* dy, int64_t stride, int64_t rows, int64_t rows_per_block, int64_t out, float* partial,
                       bool add) {
  __shared__ float
      storage[kRowLanes * kPack<T> * kColumns];  // element i of a pack: neighbouring lanes in neighbouring banks
  const Shared<float> all(storage);
  const int lane = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = (int64_t{blockIdx.x} * kColumns + lane) * kPack<T>,
                left = out - column;  // 0 or less: no column
  const int64_t begin = blockIdx.y * rows_per_block,
                end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
  float sums[kPack<T>] = {};
  if (left > 0) {
#pragma unroll 4
    for (int64_t row = begin + part; row < end; row += kRowLanes) {
      float values[kPack<T>];
      load_floats<kAligned>(dy + row * stride + column, left, values);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sums[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) all[(part * kPack<T> + i) * kColumns + lane] = sums[i];
  __syncthreads();
  for (int i = part; i < kPack<T> && i < left; i += kRowLanes) {
    float sum = all[i * kColumns + lane];
    for (int other = 1; other < kRowLanes; ++other) sum += all[(other * kPack<T> + i) * kColumns + lane];
    float* to = partial + blockIdx.y * out + column + i;
    *to = add ? *to + sum : sum;
  }
}

/// dbias (+)= the partial sums, block by block.
__global__ void __launch_bounds__(kThreads)
    column_finish_kernel(const float* partial, int64_t blocks, int64_t out, float* dbias, bool accumulate) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= out) return;
  float sum = accumulate ? dbias[column] : 0.0f;
  for (int64_t block = 0; block < blocks; ++block) sum += partial[block * out + column];
  dbias[column] = sum;
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

template <typename T>
void bias_gradient(const LaunchContext& context, const MatmulBackwardWeight& args) {
  // As many blocks of rows as fill a GPU and the scratch has room for; depends on the shape only.
  int64_t blocks = blocks_for(args.rows, 16);
  blocks = blocks < 64 ? blocks : 64;
  const int64_t fitting = kScratchBytes / 4 / args.out;
  blocks = blocks < fitting ? blocks : fitting > 1 ? fitting : 1;
  const int64_t rows_per_block = blocks > 0 ? blocks_for(args.rows, blocks) : 0;
  blocks = rows_per_block > 0 ? blocks_for(args.rows, rows_per_block) : 0;
  float* partial = blocks == 1 ? args.dbias : static_cast<float*>(scratch_of(context));
  if (blocks > 0)
    for_flag(args.dy_stride % kPack<T> == 0 && all_aligned(args.dy), [&](auto aligned) {
      launch(stream_of(context), column_sums_kernel<aligned.value, T>,
             dim3(static_cast<unsigned>(blocks_for(args.out, kColumns * kPack<T>)), static_cast<unsigned>(blocks)),
             dim3(kColumns * kRowLanes), 0, static_cast<const T*>(args.dy), args.dy_stride, args.rows, rows_per_block,
             args.out, partial, partial == args.dbias && args.accumulate);
    });
  if (partial != args.dbias)
    launch(stream_of(context), column_finish_kernel, dim3(blocks_of(args.out)), dim3(kThreads), 0, partial, blocks,
           args.out, args.dbias, args.accumulate);
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
  if (gemm(context, product)) return;
  product.gelu_input = nullptr;
  gemm(context, product);
  gelu_backward_cuda(context, {args.dx, args.pre_activation, args.dx, args.rows * args.in, args.dtype});
}

void matmul_backward_weight_cuda(LaunchContext& context, const MatmulBackwardWeight& args) {
  if (args.in > 0 && args.rows > 0) {
    // Fused sums are stored, not added: those of a later micro-batch pass through the scratch.
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
      if (args.accumulate)
        launch(stream_of(context), column_finish_kernel, dim3(blocks_of(args.out)), dim3(kThreads), 0,
               static_cast<const float*>(sums), int64_t{1}, args.out, args.dbias, true);
      return;
    }
    product.b_sums = nullptr;
    gemm(context, product);
  } else if (args.in > 0 && !args.accumulate) {
    zero(context, args.dweight, bytes_of(args.out * args.in, DType::f32));
  }
  if (args.dbias) for_dtype(args.dtype, [&](auto type) { bias_gradient<decltype(type)>(context, args); });
}

}  // namespace slipstream::kernels
