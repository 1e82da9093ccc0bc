// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where each rule of the emulated device is written. Every error names the source of its rule (emulation::Error), every
// refusal of a library has one, and tidy_cuda_test.py checks both and this table. Sections have their titles, as their
// numbers change with each release.

namespace slipstream::emulation {

struct Source {
  const char* text;
};

namespace source {

// Parallel Thread Execution ISA 8.0 to 9.0: barriers
constexpr Source kMbarrier{"PTX ISA, Parallel Synchronization and Communication Instructions: mbarrier"};
constexpr Source kMbarrierInit{"PTX ISA, mbarrier.init"};
constexpr Source kMbarrierSize{"PTX ISA, Size and alignment of mbarrier object"};
constexpr Source kMbarrierContents{"PTX ISA, Contents of the mbarrier object"};
constexpr Source kMbarrierLifecycle{"PTX ISA, Lifecycle of the mbarrier object"};
constexpr Source kMbarrierPhases{"PTX ISA, Phase of the mbarrier object"};
constexpr Source kMbarrierArrive{"PTX ISA, mbarrier.arrive"};
constexpr Source kMbarrierTransactions{"PTX ISA, Tracking asynchronous operations by the mbarrier object"};
constexpr Source kMbarrierWait{"PTX ISA, mbarrier.test_wait, mbarrier.try_wait"};
constexpr Source kMbarrierFence{"PTX ISA, membar, fence: .mbarrier_init"};
constexpr Source kNamedBarrier{"PTX ISA, bar, barrier"};
// memory
constexpr Source kMemoryModel{"PTX ISA, Memory Consistency Model"};
constexpr Source kAsyncProxy{"PTX ISA, Async Proxy"};
constexpr Source kAlignment{"PTX ISA, Addresses as Operands"};
// copies
constexpr Source kCopyAsync{"PTX ISA, cp.async"};
constexpr Source kCopyAsyncWait{"PTX ISA, cp.async.wait_group"};
constexpr Source kTensorCopy{"PTX ISA, cp.async.bulk.tensor"};
constexpr Source kTensorCopyWait{"PTX ISA, cp.async.bulk.wait_group"};
constexpr Source kAsyncCompletion{"PTX ISA, Completion Mechanisms for Asynchronous Copy Operations"};
constexpr Source kSwizzle{"PTX ISA, Tensors: Swizzling Modes"};
// products and registers
constexpr Source kLdmatrix{"PTX ISA, ldmatrix"};
constexpr Source kMma{"PTX ISA, mma"};
constexpr Source kWgmma{"PTX ISA, wgmma.mma_async"};
constexpr Source kWgmmaFence{"PTX ISA, wgmma.fence"};
constexpr Source kWgmmaWait{"PTX ISA, wgmma.wait_group"};
constexpr Source kMatrixDescriptor{"PTX ISA, Matrix Descriptor Format"};
constexpr Source kSetmaxnreg{"PTX ISA, setmaxnreg"};

// CUDA C++ Programming Guide
constexpr Source kSyncthreads{"CUDA C++ Programming Guide, Synchronization Functions"};
constexpr Source kShuffle{"CUDA C++ Programming Guide, Warp Shuffle Functions"};
constexpr Source kSharedVariables{"CUDA C++ Programming Guide, __shared__"};
constexpr Source kOrderOfBlocks{"CUDA C++ Programming Guide, Thread Hierarchy"};
constexpr Source kEarlyLaunch{"CUDA C++ Programming Guide, Programmatic Dependent Launch"};
constexpr Source kCapabilities{"CUDA C++ Programming Guide, Technical Specifications per Compute Capability"};
// other manuals
constexpr Source kOutOfBounds{"Compute Sanitizer, Memcheck Tool"};
constexpr Source kProductTypes{"cuBLAS, cublasLtMatmul"};
constexpr Source kProductAttributes{"cuBLAS, cublasLtMatmulDescAttributes_t"};
constexpr Source kEpilogues{"cuBLAS, cublasLtEpilogue_t"};
constexpr Source kTensorMaps{"CUDA driver API, cuTensorMapEncodeTiled"};

// Contracts of this project, and what the emulated device does not have
constexpr Source kSharedView{"kernels/cuda/shared.h"};
constexpr Source kHopper{"kernels/cuda/hopper.h"};
constexpr Source kLaunch{"kernels/cuda/launch.h"};
constexpr Source kEmulator{"a limit of the emulator"};

}  // namespace source

}  // namespace slipstream::emulation
