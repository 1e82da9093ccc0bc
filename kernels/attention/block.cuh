// SPDX-License-Identifier: Apache-2.0
#pragma once
// The block of keys that an attention kernel computes, for the kernels on tensor cores.
//
// With kWhole the block is all of causal attention, which is known at compile time: that kernel has no spare registers
// for the state that other blocks carry.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention/attention.h"

namespace slipstream::kernels {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kInfinity = __builtin_inff();

/// `Args` is the struct of a kernel's arguments, or a reference to it. With a reference, the compiler reads fields from
/// the parameters at each use; a copy saves instructions and may cost spilled registers.
template <bool kWhole, typename Args>
struct Block {
  Args args;

  __device__ __forceinline__ int64_t first_query() const { return kWhole ? 0 : args.block.first_query; }
  __device__ __forceinline__ int64_t queries() const { return kWhole ? args.all.tokens : args.block.queries; }
  __device__ __forceinline__ int64_t first_key() const { return kWhole ? 0 : args.block.first_key; }
  __device__ __forceinline__ int64_t keys() const { return kWhole ? args.all.tokens : args.block.keys; }
  __device__ __forceinline__ bool causal() const { return kWhole || args.block.causal; }
  __device__ __forceinline__ bool first() const { return kWhole || args.first; }
  __device__ __forceinline__ bool last() const { return kWhole || args.last; }

  /// The number of keys that rows [begin, begin + rows) of the queries see together.
  __device__ __forceinline__ int64_t seen_by(int64_t begin, int64_t rows) const {
    return causal() && begin + rows < keys() ? begin + rows : keys();
  }
};

}  // namespace slipstream::kernels
