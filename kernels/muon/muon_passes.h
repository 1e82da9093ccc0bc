// SPDX-License-Identifier: Apache-2.0
#pragma once
// The element-wise passes of Muon around its products. muon.cpp determines their order.

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"
#include "kernels/muon/muon.h"

namespace slipstream::kernels {

/// momentum = mu · momentum + (1 - mu) · clip · gradient; direction = the u of muon.h. In a skipped step the momentum
/// stays and direction = 0, so that the products compute with finite numbers.
struct MuonMomentum {
  const float* gradient = nullptr;
  float* momentum = nullptr;
  float* direction = nullptr;
  int64_t elems = 0;
  const MuonScalars* scalars = nullptr;
  float mu = 0.0f;
  bool nesterov = false;
};

/// x = direction / max(sqrt(*sum_squares), eps).
struct MuonNormalize {
  const float* direction = nullptr;
  const double* sum_squares = nullptr;
  void* x = nullptr;
  int64_t elems = 0;
  float eps = 0.0f;
  DType dtype = DType::f32;  // of x
};

/// square = a I + b gram + c square, all [k, k].
struct MuonPolynomial {
  const void* gram = nullptr;
  void* square = nullptr;
  int64_t k = 0;
  float a = 0.0f, b = 0.0f, c = 0.0f;
  DType dtype = DType::f32;
};

/// updated = decay · parameters - learning_rate · scale · x, or the parameters in a skipped step. If `working` is set,
/// it receives the bf16 copy.
struct MuonStep {
  const float* parameters = nullptr;
  float* updated = nullptr;  // may be `parameters`
  bfloat16* working = nullptr;
  const void* x = nullptr;
  int64_t elems = 0;
  const MuonScalars* scalars = nullptr;
  float scale = 1.0f;
  DType dtype = DType::f32;  // of x
};

// Block. Sizes must be at least 1.
SLIP_DECLARE_PER_ISA(void muon_momentum_cpu(LaunchContext& context, const MuonMomentum& args);
                     void muon_normalize_cpu(LaunchContext& context, const MuonNormalize& args);
                     void muon_polynomial_cpu(LaunchContext& context, const MuonPolynomial& args);
                     void muon_step_cpu(LaunchContext& context, const MuonStep& args);)

// Enqueue. Throw: ResourceError if a launch is refused.
void muon_momentum_cuda(LaunchContext& context, const MuonMomentum& args);
void muon_normalize_cuda(LaunchContext& context, const MuonNormalize& args);
void muon_polynomial_cuda(LaunchContext& context, const MuonPolynomial& args);
void muon_step_cuda(LaunchContext& context, const MuonStep& args);

}  // namespace slipstream::kernels
