// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arguments of norms, and the layout of sums over rows between their two stages.

#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {

constexpr int kNormWarps = 4;  // of a block; more if a row needs more

template <typename T>
struct NormForward {
  const T* x;
  const T* delta;
  T* sum;
  const T* weight;
  const T* bias;
  T* y;
  float* mean;
  float* inv;
  int64_t rows, width;
  float eps;
};

template <typename T>
struct NormBackward {
  const T* dy;
  const T* x;
  const T* weight;
  const float* mean;
  const float* inv;
  const T* residual;
  T* dx;
  float* dweight;
  float* dbias;
  float* dx_sums;  // optional, with a layer norm
  int64_t rows, width;
  bool accumulate;
};

/// The sums over rows of dweight, dbias and dx, by place. Element i of pack p is at i * packs + p, so that neighbouring
/// lanes use neighbouring banks. The sums of dbias follow all of dweight's, and those of dx all of dbias's.
template <bool kCentre, typename T>
struct NormSums {
  int64_t packs;  // of a row; the last one may be partial
  bool has_dx;
  __host__ __device__ constexpr explicit NormSums(const NormBackward<T>& args)
      : packs((args.width + kPack<T> - 1) / kPack<T>), has_dx(kCentre && args.dx_sums) {}
  __host__ __device__ constexpr int64_t of_weight() const { return packs * kPack<T>; }
  __host__ __device__ constexpr int64_t before_dx() const { return of_weight() * (kCentre ? 2 : 1); }
  __host__ __device__ constexpr int64_t floats() const { return before_dx() + (has_dx ? of_weight() : 0); }
};

}  // namespace slipstream::kernels
