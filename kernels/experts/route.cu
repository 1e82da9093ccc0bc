// SPDX-License-Identifier: Apache-2.0
// The choice of experts on CUDA: a warp per token, whose lane l has the experts l, l + 32 and so on.

#include "kernels/cuda/common.cuh"
#include "kernels/experts/route.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr float kInfinity = __builtin_inff();

__device__ __forceinline__ float warp_largest(float value) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const float other = __shfl_xor_sync(kWholeWarp, value, bits);
    value = other > value ? other : value;
  }
  return value;
}

/// An expert or a group with the score by which it is chosen.
struct Candidate {
  float score = -kInfinity;
  int index = 0x7fffffff;

  /// Comes before the other one in the order of choices.
  __device__ __forceinline__ bool precedes(const Candidate& other) const {
    return score > other.score || (score == other.score && index < other.index);
  }
};
__device__ __forceinline__ Candidate first_of_warp(Candidate mine) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const Candidate other = {__shfl_xor_sync(kWholeWarp, mine.score, bits),
                             __shfl_xor_sync(kWholeWarp, mine.index, bits)};
    if (other.precedes(mine)) mine = other;
  }
  return mine;
}

/// The maximum of the logits and the sum of e^(logit - maximum).
struct Exponentials {
  float top, total;

  __device__ Exponentials(const float* logits, int experts, int lane) : top(-kInfinity), total(0.0f) {
    for (int e = lane; e < experts; e += kWarp) top = logits[e] > top ? logits[e] : top;
    top = warp_largest(top);
    for (int e = lane; e < experts; e += kWarp) total += expf(logits[e] - top);
    total = warp_sum(total);
  }
};

/// The scores by which one token chooses. A NaN is the lowest score.
struct Preference {
  const float* scores;
  const float* bias;

  __device__ __forceinline__ float operator()(int expert) const {
    const float score = bias == nullptr ? scores[expert] : scores[expert] + bias[expert];
    return score == score ? score : -kInfinity;
  }
};

/// The groups whose experts may be chosen, as bits. Lane g has group g.
__device__ __forceinline__ unsigned allowed_groups(const Preference& preference, const RouteForward& args, int lane) {
  const int groups = static_cast<int>(args.groups), size = static_cast<int>(args.experts) / groups;
  if (args.group_top_k == groups) return kWholeWarp;
  float first = -kInfinity, second = -kInfinity;
  for (int e = lane * size; lane < groups && e < (lane + 1) * size; ++e) {
    const float score = preference(e);
    if (score > first)
      second = first, first = score;
    else if (score > second)
      second = score;
  }
  const Candidate mine = {size == 1 ? first : first + second, lane};
  int before = 0;  // groups that come first
  for (int g = 0; g < groups; ++g) {
    const Candidate other = {__shfl_sync(kWholeWarp, mine.score, g), g};
    before += other.precedes(mine) ? 1 : 0;
  }
  return __ballot_sync(kWholeWarp, lane < groups && before < args.group_top_k);
}

__global__ void __launch_bounds__(kThreads) forward_kernel(RouteForward args) {
  ptx::after_earlier_kernels();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (token >= args.tokens) return;  // the whole warp
  const int experts = static_cast<int>(args.experts), top_k = static_cast<int>(args.top_k);
  const float* const logits = args.logits + token * experts;
  float* const scores = args.scores + token * experts;
  if (args.router == RouterKind::sigmoid) {
    for (int e = lane; e < experts; e += kWarp) scores[e] = sigmoid(logits[e]);
  } else {
    const Exponentials all(logits, experts, lane);
    const float inverse = 1.0f / all.total;
    for (int e = lane; e < experts; e += kWarp) scores[e] = expf(logits[e] - all.top) * inverse;
  }
  __syncwarp();  // lanes read the scores of others
  const Preference preference = {scores, args.bias};
  const unsigned allowed = allowed_groups(preference, args, lane);
  const int size = experts / static_cast<int>(args.groups);
  float* const weights = args.weights + token * top_k;
  Candidate last = {kInfinity, -1};
  float total = kScoreSumEps;
  for (int j = 0; j < top_k; ++j) {
    Candidate best;
    for (int e = lane; e < experts; e += kWarp) {
      const Candidate candidate = {preference(e), e};
      if ((allowed >> e / size & 1) && last.precedes(candidate) && candidate.precedes(best)) best = candidate;
    }
    last = first_of_warp(best);
    const float score = scores[last.index];
    total += score;
    if (lane == j % kWarp) {
      args.chosen[token * top_k + j] = last.index;
      weights[j] = score;
    }
  }
  const float scale = args.normalize ? args.scale / total : args.scale;
  for (int j = lane; j < top_k; j += kWarp) weights[j] *= scale;
}

__global__ void __launch_bounds__(kThreads) backward_kernel(RouteBackward args) {
  ptx::after_earlier_kernels();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (token >= args.tokens) return;  // the whole warp
  const int experts = static_cast<int>(args.experts), top_k = static_cast<int>(args.top_k);
  const bool softmax = args.router == RouterKind::softmax;
  const float* const scores = args.scores + token * experts;
  const int32_t* const chosen = args.chosen + token * top_k;
  const float* const dweights = args.dweights + token * top_k;
  float* const dlogits = args.dlogits + token * experts;

  float total = 0.0f, weighted = 0.0f;
  for (int j = lane; j < top_k; j += kWarp) {
    total += scores[chosen[j]];
    weighted += scores[chosen[j]] * dweights[j];
  }
  total = warp_sum(total) + kScoreSumEps, weighted = warp_sum(weighted);
  const float scale = args.normalize ? args.scale / total : args.scale;
  const float mean = args.normalize ? weighted / total : 0.0f;
  // A score times its gradient.
  const auto slope_of = [&](int j) { return scores[chosen[j]] * scale * (dweights[j] - mean); };
  float all = 0.0f;
  for (int j = lane; j < top_k; j += kWarp) all += slope_of(j);
  all = softmax ? warp_sum(all) : 0.0f;

  const float* const load = args.auxiliary == 0.0f ? nullptr : args.load + token / args.sequence * experts;
  float rate = 0.0f, mean_load = 0.0f;
  if (load) {
    rate = args.auxiliary * static_cast<float>(experts) / static_cast<float>(args.top_k * args.sequence);
    float sum = 0.0f;
    for (int e = lane; e < experts; e += kWarp) {
      mean_load += scores[e] * load[e];
      sum += scores[e];
    }
    mean_load = warp_sum(mean_load), sum = warp_sum(sum);
    if (!softmax) rate /= sum, mean_load /= sum;
  }
  float log_sum = 0.0f;
  const float* const logits = args.z_loss == 0.0f ? nullptr : args.logits + token * experts;
  if (logits) {
    const Exponentials of_token(logits, experts, lane);
    log_sum = of_token.top + logf(of_token.total);
  }
  for (int e = lane; e < experts; e += kWarp) {
    const float score = scores[e];
    float gradient = -score * all;
    if (logits) gradient += 2.0f * args.z_loss * log_sum * (softmax ? score : expf(logits[e] - log_sum));
    if (load) gradient += rate * score * (softmax ? 1.0f : 1.0f - score) * (load[e] - mean_load);
    dlogits[e] = gradient;
  }
  __syncwarp();  // lanes add to the gradients of others
  for (int j = lane; j < top_k; j += kWarp)
    dlogits[chosen[j]] += slope_of(j) * (softmax ? 1.0f : 1.0f - scores[chosen[j]]);
}

/// A thread per choice. The sums of whole numbers do not depend on the order of the threads.
__global__ void __launch_bounds__(kThreads) load_kernel(RouteLoad args) {
  ptx::after_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.tokens * args.top_k) return;
  const int32_t expert = args.chosen[i];
  if (expert >= 0 && expert < args.experts)
    atomicAdd(args.load + i / (args.top_k * args.sequence) * args.experts + expert, 1.0f);
}

dim3 grid_of_tokens(int64_t tokens) { return dim3(static_cast<unsigned>(blocks_for(tokens, kWarps))); }

}  // namespace

void route_forward_cuda(LaunchContext& context, const RouteForward& args) {
  launch(stream_of(context), forward_kernel, grid_of_tokens(args.tokens), dim3(kThreads), 0, args);
}

void route_backward_cuda(LaunchContext& context, const RouteBackward& args) {
  launch(stream_of(context), backward_kernel, grid_of_tokens(args.tokens), dim3(kThreads), 0, args);
}

void route_load_cuda(LaunchContext& context, const RouteLoad& args) {
  const int64_t loads = args.tokens / args.sequence * args.experts;
  cuda_check(cudaMemsetAsync(args.load, 0, static_cast<size_t>(bytes_of(loads, DType::f32)), stream_of(context)),
             "clearing the loads of experts");
  launch(stream_of(context), load_kernel, dim3(static_cast<unsigned>(blocks_for(args.tokens * args.top_k, kThreads))),
         dim3(kThreads), 0, args);
}

}  // namespace slipstream::kernels
