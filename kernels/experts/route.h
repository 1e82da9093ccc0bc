// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choice of each token's experts and of their weights, its gradient, and the loads of the experts.
//
// T is the number of tokens, E the number of experts and K = top_k the number of experts that each token passes. A
// token is computed alone, so that the bits are the same for any number of threads.

#include <cstdint>

#include "engine/base/modes.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// The most groups of experts. A set of groups is one word.
constexpr int64_t kExpertGroupsMax = 32;
/// Is added to the sum of the chosen scores before a division by it.
constexpr float kScoreSumEps = 1e-20f;

/// scores = softmax(logits), or 1 / (1 + e^(-logits)); chosen = the K experts with the highest score + bias;
/// weights[t, j] = scale · scores[t, chosen[t, j]], divided by (the sum of the chosen scores + 1e-20) if `normalize`.
///
///   Choices are in the order of falling score + bias, and the lower of equal experts comes first. The bias has an
///   effect on the choice alone.
///   groups > 1: experts form that many equal groups of consecutive numbers. The score of a group is the sum of its two
///   highest (score + bias), or its only one. Experts outside the group_top_k groups with the highest scores cannot be
///   chosen; of equal groups the lower one stays.
///   A score that is not a number is chosen last. Whatever the logits, every choice is an expert, and all are
///   different.
///
/// Shapes:  logits, scores [T, E]; bias [E]; chosen, weights [T, K]
/// Types:   f32; chosen i32
/// Alias:   scores may be logits
/// Cost:    21·T·E flops (the exponential is 17 of them); 8·T·E + 8·T·K bytes, and 4·E more with a bias
/// Errors:  ShapeError if T < 0, K is not in 1..E, groups is not in 1..32 or does not divide E, group_top_k is not in
///          1..groups, its groups have fewer than K experts, or an operand but bias is null
/// Source:  Shazeer et al. 2017, arXiv:1701.06538, section 2.1; DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2
struct RouteForward {
  const float* logits = nullptr;
  const float* bias = nullptr;  // optional
  float* scores = nullptr;
  int32_t* chosen = nullptr;
  float* weights = nullptr;
  int64_t tokens = 0, experts = 0, top_k = 0, groups = 1, group_top_k = 1;
  RouterKind router = RouterKind::softmax;
  bool normalize = true;
  float scale = 1;
};

/// dlogits = the gradient, with the choices held constant, of
///   sum(dweights · weights)
///   + auxiliary · sum over sequences s of E · sum_e load[s, e] / (K · sequence) · sum over the tokens of s of p[t, e],
///     where p = scores for softmax, and scores divided by the sum of the token's scores for sigmoid; load is constant
///   + z_loss · sum over tokens of log(sum_e e^logits[t, e])^2.
///
/// Shapes:  scores, logits, dlogits [T, E]; chosen, dweights [T, K]; load [T / sequence, E]
/// Types:   f32; chosen i32
/// Alias:   dlogits may be logits
/// Cost:    8·T·E flops, and 21·T·E more with z_loss; 8·T·E + 8·T·K bytes, 4·T·E more with z_loss, and
///          4·E·T / sequence more with auxiliary
/// Errors:  ShapeError if T < 0, K is not in 1..E, sequence < 1 or does not divide T, or an operand is null (logits
///          only with z_loss, load only with auxiliary)
/// Source:  the gradient of RouteForward; Fedus et al. 2021, arXiv:2101.03961, eq. 4; DeepSeek-AI 2024,
///          arXiv:2412.19437, eqs. 17 to 20; Zoph et al. 2022, arXiv:2202.08906, eq. 5
struct RouteBackward {
  const float* scores = nullptr;
  const int32_t* chosen = nullptr;
  const float* dweights = nullptr;
  const float* logits = nullptr;  // only with z_loss
  const float* load = nullptr;    // only with auxiliary
  float* dlogits = nullptr;
  int64_t tokens = 0, sequence = 1, experts = 0, top_k = 0;
  RouterKind router = RouterKind::softmax;
  bool normalize = true;
  float scale = 1;
  float auxiliary = 0;
  float z_loss = 0;
};

/// load[s, e] = the number of choices of expert e by the tokens of sequence s. Choices outside 0..E-1 are not counted.
///
/// Shapes:  chosen [T, K]; load [T / sequence, E]
/// Types:   chosen i32; load f32, which is exact up to 2^24
/// Alias:   none
/// Cost:    0 flops; 4·T·K + 4·E·T / sequence bytes
/// Errors:  ShapeError if T < 0, K < 1, E < 1, sequence < 1 or does not divide T, or an operand is null
/// Source:  elementary
struct RouteLoad {
  const int32_t* chosen = nullptr;
  float* load = nullptr;
  int64_t tokens = 0, sequence = 1, experts = 0, top_k = 0;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError, ResourceError (no kernel for the device).
void route_forward(LaunchContext& context, const RouteForward& args);
void route_backward(LaunchContext& context, const RouteBackward& args);
void route_load(LaunchContext& context, const RouteLoad& args);

/// Pure. Pointers may be null, but a bias counts if it is not.
Cost route_forward_cost(const RouteForward& args);
Cost route_backward_cost(const RouteBackward& args);
Cost route_load_cost(const RouteLoad& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void route_forward_cpu(LaunchContext& context, const RouteForward& args);
                     void route_backward_cpu(LaunchContext& context, const RouteBackward& args);
                     void route_load_cpu(LaunchContext& context, const RouteLoad& args);)
void route_forward_cuda(LaunchContext& context, const RouteForward& args);
void route_backward_cuda(LaunchContext& context, const RouteBackward& args);
void route_load_cuda(LaunchContext& context, const RouteLoad& args);

}  // namespace slipstream::kernels
