// SPDX-License-Identifier: Apache-2.0
// Cross-entropy on CUDA: one block per row finds maximum and sum together, then writes the gradient over the logits. It
// holds them in shared memory in between.
//
// Targets live on the device and cannot be refused: a target outside the vocabulary turns the loss into NaN. Nothing is
// read or written out of bounds.
//
// Memory traffic. The gradient needs a row twice: for its sum, then for its probabilities. A block keeps the row in
// shared memory between the two, so it reads memory once and writes it once: 2 x 65536 x 50304 x 2 bytes = 13.2 GB for
// 64 x 1024 tokens. A second read would be 6.6 GB more unless it hit the L2. Blocks of 256 threads have 6 x 132 rows of
// 98 KiB in flight, 80 MB; blocks of 1024 threads have 26 MB, but share the 50 MB of an H100 with the gradients that
// are written meanwhile. Shared memory depends on no such hit. Rows of 50304 bf16 logits per multiprocessor:
//   9.0, 10.0 (228 KiB): 2, so one computes while the other loads or stores;
//   8.0 (164 KiB), 8.6, 8.9, 12.0 (100 KiB): 1, whose copies run up to 48 KiB ahead of its sums.
// A row may be wider than the shared memory of a block: a vocabulary of 128256 has 251 KiB, a block 227 at most. The
// rest of the row is read twice, from the L2 the second time (132 x 24 KiB = 3 MB). Rows that are not aligned to 16
// bytes are not held. The order of additions depends on the vocabulary's size and the type alone.

#include <algorithm>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"
#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
// The packs of a row that a thread has in flight: 48 KiB per block.
constexpr int kAhead = 6;
constexpr float kLowest = -__builtin_inff();

/// The sum of e^(x - largest) over some logits. It is {-inf, 0} for no logits, or only masked ones.
struct Softmax {
  float largest, sum;

  /// The value that is subtracted from a logit before the exponential: e^(-inf - base) is 0 in every case. NaN is kept.
  __device__ __forceinline__ float base() const { return largest == kLowest ? 0.0f : largest; }
};

constexpr float kLog2E = 1.4426950408889634f;
/// Exact to a few ulp: ex2 costs two, and the rounding of the product affects only negligible weights.
__device__ __forceinline__ float weight_of(float x, float base) { return ptx::exp2_approx((x - base) * kLog2E); }

__device__ __forceinline__ Softmax merged(const Softmax& a, const Softmax& b) {
  const float largest = fmaxf(a.largest, b.largest);
  const float left = a.largest == largest ? a.sum : a.sum * weight_of(a.largest, largest);
  const float right = b.largest == largest ? b.sum : b.sum * weight_of(b.largest, largest);
  return {largest, left + right};
}

__device__ __forceinline__ Softmax warp_merged(Softmax mine) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2)
    mine = merged(mine, {__shfl_xor_sync(kWholeWarp, mine.largest, bits), __shfl_xor_sync(kWholeWarp, mine.sum, bits)});
  return mine;
}

/// mine += some logits.
template <int kElems>
__device__ __forceinline__ void add_logits(Softmax& mine, const float (&x)[kElems]) {
  float highest = mine.largest;
#pragma unroll
  for (int i = 0; i < kElems; ++i) highest = fmaxf(highest, x[i]);
  if (highest > mine.largest)
    mine = {highest, mine.sum * weight_of(mine.largest, highest)};  // rare after the first few packs
  const float base = mine.base();
#pragma unroll
  for (int i = 0; i < kElems; ++i) mine.sum += weight_of(x[i], base);
}

/// The merged sums of all threads, with the same bits on all threads of the block.
__device__ __forceinline__ Softmax block_merged(Softmax mine) {
  __shared__ float largest_storage[kWarps], sum_storage[kWarps];
  const Shared<float> largests(largest_storage), sums(sum_storage);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  mine = warp_merged(mine);
  if (lane == 0) {
    largests[threadIdx.x / kWarp] = mine.largest;
    sums[threadIdx.x / kWarp] = mine.sum;
  }
  __syncthreads();
  mine = {kLowest, 0.0f};
  if (lane < kWarps) mine = {largests[lane], sums[lane]};
  return warp_merged(mine);
}

/// One row. Thread t uses packs t, t + kThreads and so on: first those that shared memory holds, then other whole
/// packs, and then those that are not whole or not aligned.
template <bool kAligned, typename T>
struct Row {
  const T* logits;
  int vocab, stride;
  Shared<T> held;
  int held_packs;  // whole packs, 0 unless kAligned

  enum class Pack { held, whole, part };

  __device__ __forceinline__ int whole_packs() const { return kAligned ? vocab / kPack<T> : 0; }
  __device__ __forceinline__ int packs() const { return (vocab + kPack<T> - 1) / kPack<T>; }

  /// The logits of a pack. Elements after the vocabulary have no weight.
  template <Pack kKind>
  __device__ __forceinline__ void load(int pack, float (&x)[kPack<T>]) const {
    const int column = pack * kPack<T>;
    if constexpr (kKind == Pack::held) {
      unpack(ptx::load_16(held.at(column)), x, T{});
    } else if constexpr (kKind == Pack::whole) {
      unpack(ptx::load_16(logits + column), x, T{});
    } else {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) x[i] = column + i < vocab ? to_float(logits[column + i]) : kLowest;
    }
  }

  __device__ __forceinline__ void fetch(int pack) const {
    if (pack < held_packs) ptx::copy_async_16(held.at(pack * kPack<T>), logits + pack * kPack<T>, true);
    ptx::copy_async_commit();
  }

  /// Maximum and sum, the same on all threads of the block. Fills `held`: a thread reads only what it has copied
  /// itself.
  __device__ __forceinline__ Softmax softmax() const {
    Softmax mine = {kLowest, 0.0f};
    float x[kPack<T>];
    int pack = static_cast<int>(threadIdx.x);
    if (kAligned && held_packs > 0) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) fetch(pack + i * kThreads);
      for (; pack < held_packs; pack += kThreads) {
        ptx::copy_async_wait<kAhead - 1>();
        load<Pack::held>(pack, x);
        fetch(pack + kAhead * kThreads);
        add_logits(mine, x);
      }
    }
    for (; pack < whole_packs(); pack += kThreads) {
      load<Pack::whole>(pack, x);
      add_logits(mine, x);
    }
    for (; pack < packs(); pack += kThreads) {
      load<Pack::part>(pack, x);
      add_logits(mine, x);
    }
    return block_merged(mine);
  }

  /// The gradient of a pack: gradient_scale times the softmax, less gradient_scale at the target.
  template <Pack kKind>
  __device__ __forceinline__ void gradient_of(int pack, float base, float scale, int target, float gradient_scale,
                                              float (&x)[kPack<T>]) const {
    load<kKind>(pack, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x[i] = weight_of(x[i], base) * scale;
    if (static_cast<unsigned>(target - pack * kPack<T>) < kPack<T>)
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i)
        if (pack * kPack<T> + i == target) x[i] -= gradient_scale;
  }

  /// gradient = the gradient of the row, and 0 after the vocabulary. It may be `logits`. `target` < 0: there is no
  /// target.
  __device__ __forceinline__ void write_gradient(T* gradient, const Softmax& all, int target,
                                                 float gradient_scale) const {
    const float scale = gradient_scale / all.sum, base = all.base();
    float x[kPack<T>];
    int pack = static_cast<int>(threadIdx.x);
    if (kAligned)
      for (; pack < held_packs; pack += kThreads) {
        gradient_of<Pack::held>(pack, base, scale, target, gradient_scale, x);
        ptx::store_16(gradient + pack * kPack<T>, packed(x, T{}));
      }
    for (; pack < whole_packs(); pack += kThreads) {
      gradient_of<Pack::whole>(pack, base, scale, target, gradient_scale, x);
      ptx::store_16(gradient + pack * kPack<T>, packed(x, T{}));
    }
    for (; pack < packs(); pack += kThreads) {
      gradient_of<Pack::part>(pack, base, scale, target, gradient_scale, x);
      // NaN of an invalid row must not reach its padding.
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i)
        if (pack * kPack<T> + i >= vocab) x[i] = 0.0f;
      store_floats<kAligned>(gradient + pack * kPack<T>, stride - pack * kPack<T>, x);
    }
    const float zeros[kPack<T>] = {};
    for (; pack * kPack<T> < stride; pack += kThreads)
      store_floats<kAligned>(gradient + pack * kPack<T>, stride - pack * kPack<T>, zeros);
  }
};

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads, 2) row_kernel(CrossEntropy args, int held_packs) {
  ptx::after_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const int64_t row = blockIdx.x;
  T* logits = static_cast<T*>(args.logits) + row * args.stride;
  const int32_t target = args.targets[row];
  const bool known = target >= 0 && target < args.vocab;
  const float target_logit = known ? to_float(logits[target]) : 0.0f;
  const Row<kAligned, T> held_row = {logits, static_cast<int>(args.vocab), static_cast<int>(args.stride),
                                     Shared<T>(bytes, held_packs * kPack<T>), held_packs};
  const Softmax all = held_row.softmax();
  if (threadIdx.x == 0)
    args.row_losses[row] = known ? logf(all.sum) + (all.largest - target_logit) : __uint_as_float(0x7fffffffu);
  if (args.backward) held_row.write_gradient(logits, all, known ? target : -1, args.gradient_scale);
}

/// A row that is visited once. Nothing of it is held.
template <bool kAligned, typename T>
__device__ __forceinline__ Row<kAligned, T> visited_once(const void* logits, int64_t row, int64_t vocab,
                                                         int64_t stride) {
  return {static_cast<const T*>(logits) + row * stride, static_cast<int>(vocab), static_cast<int>(stride),
          Shared<T>(nullptr, 0), 0};
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads, 2) part_kernel(CrossEntropyPart args) {
  ptx::after_earlier_kernels();
  const int64_t row = blockIdx.x;
  const auto of_row = visited_once<kAligned, T>(args.logits, row, args.vocab, args.stride);
  const Softmax all = of_row.softmax();
  if (threadIdx.x != 0) return;
  const int64_t target = args.targets[row] - args.first;
  double* part = args.parts + row * kCrossEntropyPartElems;
  part[0] = static_cast<double>(all.largest);
  part[1] = static_cast<double>(all.sum);
  // A target that no rank can have makes the loss NaN, as in row_kernel.
  const bool known = args.targets[row] >= 0 && args.targets[row] < args.whole_vocab;
  part[2] = target >= 0 && target < args.vocab ? static_cast<double>(to_float(of_row.logits[target]))
            : known                            ? 0.0
                                               : static_cast<double>(__uint_as_float(0x7fffffffu));
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads, 2) merge_kernel(CrossEntropyMerge args) {
  ptx::after_earlier_kernels();
  const int64_t row = blockIdx.x;
  Softmax all = {kLowest, 0.0f};
  double logit = 0.0;
  for (int64_t rank = 0; rank < args.ranks; ++rank) {
    const double* part = args.parts + (rank * args.rows + row) * kCrossEntropyPartElems;
    all = merged(all, {static_cast<float>(part[0]), static_cast<float>(part[1])});
    logit += part[2];
  }
  if (threadIdx.x == 0)
    args.row_losses[row] = logf(all.sum) + static_cast<float>(static_cast<double>(all.largest) - logit);
  if (!args.backward) return;
  const int64_t target = args.targets[row] - args.first;
  visited_once<kAligned, T>(args.logits, row, args.vocab, args.stride)
      .write_gradient(static_cast<T*>(args.logits) + row * args.stride, all,
                      target >= 0 && target < args.vocab ? static_cast<int>(target) : -1, args.gradient_scale);
}

constexpr int kSumThreads = static_cast<int>(kLossLanes);

/// loss_sum = sum_of_losses, with one thread per lane of the op card.
__global__ void __launch_bounds__(kSumThreads) sum_kernel(const float* row_losses, int64_t rows, double* loss_sum) {
  ptx::after_earlier_kernels();
  __shared__ double storage[kSumThreads];
  const Shared<double> lanes(storage);
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0.0;
#pragma unroll 8
  for (int64_t row = thread; row < rows; row += kSumThreads) sum += static_cast<double>(row_losses[row]);
  lanes[thread] = sum;
  for (int width = kSumThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (thread < width) lanes[thread] += lanes[thread + width];
  }
  if (thread == 0) *loss_sum = lanes[0];
}

/// The bytes of a row that fit into shared memory, beside those of block_merged.
int64_t held_bytes_most() { return static_cast<int64_t>(shared_memory_bytes()) - 8 * kWarps; }

}  // namespace

void cross_entropy_cuda(LaunchContext& context, const CrossEntropy& args) {
  if (args.rows > 0)
    for_dtype(args.dtype, [&](auto type) {
      using T = decltype(type);
      for_flag(args.stride % kPack<T> == 0 && all_aligned(args.logits), [&](auto aligned) {
        // The loss alone visits a row only once.
        const int64_t held_packs =
            aligned.value && args.backward ? std::min(args.vocab / kPack<T>, held_bytes_most() / 16) : 0;
        launch(stream_of(context), row_kernel<aligned.value, T>, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads),
               static_cast<size_t>(16 * held_packs), args, static_cast<int>(held_packs));
      });
    });
  launch(stream_of(context), sum_kernel, dim3(1), dim3(kSumThreads), 0, args.row_losses, args.rows, args.loss_sum);
}

void cross_entropy_part_cuda(LaunchContext& context, const CrossEntropyPart& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(args.stride % kPack<T> == 0 && all_aligned(args.logits), [&](auto aligned) {
      launch(stream_of(context), part_kernel<aligned.value, T>, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads),
             0, args);
    });
  });
}

void cross_entropy_merge_cuda(LaunchContext& context, const CrossEntropyMerge& args) {
  if (args.rows > 0)
    for_dtype(args.dtype, [&](auto type) {
      using T = decltype(type);
      for_flag(args.stride % kPack<T> == 0 && all_aligned(args.logits), [&](auto aligned) {
        launch(stream_of(context), merge_kernel<aligned.value, T>, dim3(static_cast<unsigned>(args.rows)),
               dim3(kThreads), 0, args);
      });
    });
  launch(stream_of(context), sum_kernel, dim3(1), dim3(kSumThreads), 0, args.row_losses, args.rows, args.loss_sum);
}

}  // namespace slipstream::kernels
