// SPDX-License-Identifier: Apache-2.0
#pragma once
// The minimum effort of a work, and the shapes of its kernels for prices that depend on them.

#include <cstdint>
#include <vector>

namespace slipstream {

/// The resource that bounds a kernel on a GPU.
enum class KernelKind : uint8_t {
  moved,    // memory bandwidth
  product,  // matrix units; results [rows, cols] are sums over `depth`
  scores,   // attention: `count` heads of [rows, cols] scores with a head dimension of `depth`
};

/// One kernel of a work.
struct KernelCost {
  KernelKind kind = KernelKind::moved;
  bool backward = false;  // for scores: the kernel computes the gradient
  bool in_layer = false;  // for products: a product of a layer, whose operands fp8 training holds in fp8
  int64_t flops = 0, bytes = 0;
  int64_t rows = 0, cols = 0, depth = 0, count = 1;
  bool operator==(const KernelCost&) const = default;
};

/// Floating-point operations, and bytes moved to or from memory.
struct Cost {
  int64_t flops = 0;
  int64_t bytes = 0;
  std::vector<KernelCost> kernels = {};  // their costs add up to the above; empty: one memory-bound kernel

  Cost& operator+=(const Cost& other) {
    if (kernels.empty() && (flops > 0 || bytes > 0)) kernels.push_back({.flops = flops, .bytes = bytes});
    flops += other.flops;
    bytes += other.bytes;
    kernels.insert(kernels.end(), other.kernels.begin(), other.kernels.end());
    if (other.kernels.empty() && (other.flops > 0 || other.bytes > 0))
      kernels.push_back({.flops = other.flops, .bytes = other.bytes});
    return *this;
  }
};

}  // namespace slipstream
