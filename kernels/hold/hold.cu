// SPDX-License-Identifier: Apache-2.0
// Blocks that occupy their multiprocessor, and copies for the copy engines.

#include "kernels/cuda/common.cuh"
#include "kernels/hold/hold.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // of a thread in flight, so that four blocks read as fast as a link between GPUs
constexpr int64_t kPieceBytes = int64_t{kThreads} * 16 * kLoads;
constexpr uint64_t kPollNs = 1000;

/// Waits until `ns` have passed since `begin`, or until the host has written at least `value`. One thread of a block
/// calls it. It reads the clock first, because every read of the host's word crosses PCIe.
__device__ void await_host(const uint32_t* word, uint32_t value, uint64_t begin, uint64_t ns) {
  while (ptx::global_timer_ns() - begin < ns && ptx::load_of_host(word) < value) ptx::pause_ns(kPollNs);
}

/// Block b reads pieces b, b + blocks, ..., each when its share of `ns` has passed. Then it waits for the host's word.
__global__ void __launch_bounds__(kThreads) hold_kernel(HoldBlocks args, bool aligned) {
  ptx::wait_for_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const Shared<uint32_t> seen(bytes, kThreads);
  const uint64_t begin = ptx::global_timer_ns();
  const int64_t pieces = aligned ? args.size_bytes / kPieceBytes : 0;
  uint32_t sum = 0;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    // In float, because a product of two of these numbers may exceed 64 bits.
    const auto due =
        static_cast<uint64_t>(static_cast<float>(args.ns) * (static_cast<float>(piece) / static_cast<float>(pieces)));
    if (threadIdx.x == 0) await_host(args.release, 1, begin, due);
    __syncthreads();
    ptx::Words words[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      words[i] = ptx::load_16(args.memory + piece * kPieceBytes + (int64_t{i} * kThreads + threadIdx.x) * 16);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum ^= words[i].word[0] ^ words[i].word[1] ^ words[i].word[2] ^ words[i].word[3];
  }
  seen[static_cast<int>(threadIdx.x)] = sum;  // otherwise the compiler removes the reads
  if (threadIdx.x == 0) await_host(args.release, 1, begin, static_cast<uint64_t>(args.limit_ns));
  __syncthreads();  // the other threads keep their registers meanwhile
}

__global__ void await_kernel(AwaitFlag args) {
  ptx::wait_for_earlier_kernels();
  await_host(args.flag, args.value, ptx::global_timer_ns(), static_cast<uint64_t>(args.limit_ns));
}

}  // namespace

void hold_blocks_cuda(LaunchContext& context, const HoldBlocks& args) {
  launch(stream_of(context), hold_kernel, dim3(static_cast<unsigned>(args.blocks)), dim3(kThreads),
         shared_memory_bytes(), args, all_aligned(args.memory));
}

void await_flag_cuda(LaunchContext& context, const AwaitFlag& args) {
  launch(stream_of(context), await_kernel, dim3(1), dim3(1), 0, args);
}

void copy_around_cuda(LaunchContext& context, const CopyAround& args) {
  for (int64_t at = 0; at < args.size_bytes; at += args.staging_bytes) {
    const auto bytes =
        static_cast<size_t>(args.size_bytes - at < args.staging_bytes ? args.size_bytes - at : args.staging_bytes);
    cuda_check(cudaMemcpyAsync(args.staging, args.memory + at, bytes, cudaMemcpyDeviceToHost, stream_of(context)),
               "copying for an emulated link");
    cuda_check(cudaMemcpyAsync(args.scratch, args.staging, bytes, cudaMemcpyHostToDevice, stream_of(context)),
               "copying for an emulated link");
  }
}

void copy_on_device_cuda(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes) {
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), cudaMemcpyDeviceToDevice, stream_of(context)),
             "copying on the device");
}

}  // namespace slipstream::kernels
