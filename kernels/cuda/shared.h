// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view of shared memory. It is a bare pointer here, and the emulated file of the same name checks every element.

#include <cuda_runtime.h>

namespace slipstream::kernels {

/// A view of an array in shared memory, `__shared__ float storage[N]`, or of a part of dynamic shared memory.
template <typename T>
class Shared {
 public:
  template <int kElems>
  __device__ explicit Shared(T (&storage)[kElems]) : data_(storage) {}
  __device__ Shared(unsigned char* dynamic, int /*elems*/) : data_(reinterpret_cast<T*>(dynamic)) {}
  __device__ T& operator[](int i) const { return data_[i]; }
  /// The address of an element, for ldmatrix, cp.async and 16-byte accesses.
  __device__ T* at(int i) const { return data_ + i; }

 private:
  T* data_;
};

}  // namespace slipstream::kernels

/// Declares `name`, the bytes of the block's dynamic shared memory, aligned to 16.
#define SLIP_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
