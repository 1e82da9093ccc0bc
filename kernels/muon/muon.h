// SPDX-License-Identifier: Apache-2.0
#pragma once
// One Muon step on one whole weight matrix: momentum, orthogonalization by Newton-Schulz steps, and decoupled weight
// decay.
//
//   g = clip · gradient;  m = mu m + (1 - mu) g;  u = nesterov ? mu m + (1 - mu) g : m
//   X = u / max(|u|, eps), |u| the Frobenius norm
//   `steps` times: X = a X + b (X Xᵀ) X + c (X Xᵀ)² X
//   p = decay · p - learning_rate · scale · X
// A skipped step leaves parameters and momentum as they are, and `updated` and `working` receive the parameters.
// Five steps move every singular value of u that is at least 0.2 % of |u| into [0.68, 1.21]; singular vectors stay.
// With rows > cols the steps compute X (a I + b XᵀX + c (XᵀX)²). This is the same X by smaller products, without a
// transpose.
//
// Shapes:  gradient, momentum, parameters, updated, working [rows, cols]; workspace muon_workspace_bytes() bytes
// Types:   float; `working` is the bf16 copy with which the model computes. The operands and results of the products
//          are `product_dtype`, and their sums are float. bf16, which torch.optim.Muon always takes, moves X by up to
//          3e-2 of its largest element. On cuda, bf16 uses the tensor cores, and float does not.
// Alias:   none; `workspace` holds nothing between calls
// Cost:    with n = rows · cols, k = min(rows, cols), t = size_of(product_dtype):
//          11 n + steps (4 k n + 2 k³ + 3 k²) flops;
//          (32 + 2 t) n + steps t (3 n + 7 k²) bytes, 2 n more with `working`, and 8 steps k² more in bf16 if
//          rows > cols                                                            <- equals muon_cost()
// Bits:    those of kernels/matmul for the products, which depend on the number of threads, the instruction set and the
//          library. The norm and the element-wise passes have the same bits for any number of threads
// Errors:  ShapeError (negative size or steps, null operand, product_dtype, small workspace), ResourceError (device)
// Source:  Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Liu et al. 2025, "Muon is
//          scalable for LLM training", arXiv:2502.16982; both as torch.optim.Muon computes them

#include <cstdint>
#include <functional>

#include "engine/base/dtype.h"
#include "engine/base/update_options.h"
#include "engine/device/work.h"

namespace slipstream {
struct Item;
struct Job;
}  // namespace slipstream

namespace slipstream::kernels {

/// Values that change from step to step. They are in device memory, so that a captured or queued step reads the newest
/// ones.
struct MuonScalars {
  float learning_rate = 0.0f;
  float decay = 1.0f;  // factor on the parameters: 1 - learning_rate · weight_decay
  float clip = 1.0f;   // the factor on the gradient; 1: no clipping, below 0: the step is skipped
};

struct Muon {
  float* parameters = nullptr;
  float* momentum = nullptr;
  const float* gradient = nullptr;
  bfloat16* working = nullptr;  // optional: receives the rounded parameters
  int64_t rows = 0, cols = 0;
  const MuonScalars* scalars = nullptr;
  void* workspace = nullptr;  // aligned to 64 bytes
  int64_t workspace_bytes = 0;
  MuonScaling scaling = MuonScaling::match_rms_adamw;
  DType product_dtype = DType::f32;  // or bf16
  float mu = 0.95f;
  bool nesterov = true;
  int steps = 5;
  float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  float eps = 1e-7f;
  float* updated = nullptr;  // optional: receives the parameters, which then stay as they are
};

/// Enqueues on cuda, blocks on cpu. Does nothing with an empty matrix. Throws: as in Errors.
void muon(LaunchContext& context, const Muon& args);

/// The bytes of workspace for the shape and type of `args`: at most (4 + t) n + (2 t + 4) k² and 1.5 KiB of padding, in
/// the letters of Cost. Pointers may be null. Throws: ShapeError. Pure.
int64_t muon_workspace_bytes(const Muon& args);

/// The cost as in Cost. Pointers may be null. Pure.
Cost muon_cost(const Muon& args);

/// The update task of a plan as Muon on the matrices of its shards, one after the other. Copies what it needs of `job`.
std::function<void(LaunchContext&)> muon_update(const Job& job, const Item& item, const UpdateOptions& update);

/// The factor of the scaling. Sizes must be at least 1. Pure.
double muon_scale(MuonScaling scaling, int64_t rows, int64_t cols);

}  // namespace slipstream::kernels
