// SPDX-License-Identifier: Apache-2.0
// Blocks that hold their multiprocessor, and copies for the copy engines.

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/entry_points.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 512;
// Two blocks never share a multiprocessor of sm_80 (164 KiB) or sm_90 (228 KiB), and no product's block fits beside one.
constexpr size_t kSharedBytes = 160 * 1024;
constexpr int64_t kPieceBytes = int64_t{kThreads} * 16;
constexpr uint64_t kPollNs = 1000;

/// Block b reads pieces b, b + blocks, ..., each when its share of `ns` has passed; then it waits for the host's word.
__global__ void __launch_bounds__(kThreads) hold_kernel(HoldBlocks args, bool aligned) {
  SLIP_DYNAMIC_SHARED(bytes);
  const Shared<uint32_t> seen(bytes, kThreads);
  const uint64_t begin = ptx::global_timer_ns();
  const int64_t pieces = aligned ? args.size_bytes / kPieceBytes : 0;
  uint32_t sum = 0;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    // In float: a product of two of these numbers may be larger than 64 bits hold.
    const auto due = static_cast<uint64_t>(static_cast<float>(args.ns) * (static_cast<float>(piece) / static_cast<float>(pieces)));
    while (ptx::global_timer_ns() - begin < due) {
      if (ptx::load_of_host(args.release) != 0) break;
      ptx::pause_ns(kPollNs);
    }
    const ptx::Words words = ptx::load_16(args.memory + piece * kPieceBytes + int64_t{threadIdx.x} * 16);
    sum ^= words.word[0] ^ words.word[1] ^ words.word[2] ^ words.word[3];
  }
  seen[static_cast<int>(threadIdx.x)] = sum;  // or the reads are not needed
  while (ptx::load_of_host(args.release) == 0 && ptx::global_timer_ns() - begin < static_cast<uint64_t>(args.limit_ns)) ptx::pause_ns(kPollNs);
}

}  // namespace

void hold_blocks_cuda(LaunchContext& context, const HoldBlocks& args) {
  launch(stream_of(context), hold_kernel, dim3(static_cast<unsigned>(args.blocks)), dim3(kThreads), kSharedBytes, args, all_aligned(args.memory));
}

void copy_around_cuda(LaunchContext& context, const CopyAround& args) {
  for (int64_t at = 0; at < args.size_bytes; at += args.staging_bytes) {
    const auto bytes = static_cast<size_t>(args.size_bytes - at < args.staging_bytes ? args.size_bytes - at : args.staging_bytes);
    cuda_check(cudaMemcpyAsync(args.staging, args.memory + at, bytes, cudaMemcpyDeviceToHost, stream_of(context)), "copying for an emulated link");
    cuda_check(cudaMemcpyAsync(args.scratch, args.staging, bytes, cudaMemcpyHostToDevice, stream_of(context)), "copying for an emulated link");
  }
}

void copy_on_device_cuda(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes) {
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), cudaMemcpyDeviceToDevice, stream_of(context)), "copying on the device");
}

}  // namespace slipstream::kernels
