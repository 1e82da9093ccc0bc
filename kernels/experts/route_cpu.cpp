// SPDX-License-Identifier: Apache-2.0
// The choice of experts on the CPU: threads share the tokens.

#include <algorithm>
#include <limits>

#include "kernels/common/vectors.h"
#include "kernels/experts/route.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline int64_t grain_tokens(int64_t experts) { return 2048 / experts + 1; }

float largest(const float* x, int64_t elems) {
  Vf most = splat(-kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes) most = max(most, load(x + i));
  float result = max(most);
  for (; i < elems; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

/// y = e^(x - shift). Returns the sum, which is not a number if an x is not.
float exponentials(const float* x, float shift, float* y, int64_t elems) {
  Vf total = {};
  for_vectors(0, elems, [&](auto lanes, int64_t i) {
    const Vf e = exp(lanes.load(x + i) - shift);
    lanes.store(y + i, e);
    total += lanes.keep(e);
  });
  return sum(total);
}

float log_sum_exp(const float* x, int64_t elems) {
  const float shift = largest(x, elems);
  Vf total = {};
  for_vectors(0, elems, [&](auto lanes, int64_t i) { total += lanes.keep(exp(lanes.load(x + i) - shift)); });
  return shift + std::log(sum(total));
}

void scores_of(RouterKind router, const float* logits, float* scores, int64_t experts) {
  if (router == RouterKind::sigmoid)
    return for_vectors(0, experts, [&](auto lanes, int64_t i) {
      lanes.store(scores + i, 1.0f / (1.0f + exp(-lanes.load(logits + i))));
    });
  const float inverse = 1.0f / exponentials(logits, largest(logits, experts), scores, experts);
  for_vectors(0, experts, [&](auto lanes, int64_t i) { lanes.store(scores + i, lanes.load(scores + i) * inverse); });
}

/// The scores by which one token chooses. A NaN is the lowest score.
struct Preference {
  const float* scores;
  const float* bias;

  float operator()(int64_t expert) const {
    const float score = bias == nullptr ? scores[expert] : scores[expert] + bias[expert];
    return score == score ? score : -kInfinity;
  }
};

/// The groups whose experts may be chosen, as bits.
uint32_t allowed_groups(const Preference& preference, int64_t experts, int64_t groups, int64_t group_top_k) {
  if (group_top_k == groups) return ~0u;
  const int64_t size = experts / groups;
  float scores[kExpertGroupsMax];
  for (int64_t g = 0; g < groups; ++g) {
    float first = -kInfinity, second = -kInfinity;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      const float score = preference(e);
      if (score > first)
        second = first, first = score;
      else if (score > second)
        second = score;
    }
    scores[g] = size == 1 ? first : first + second;
  }
  uint32_t allowed = 0;
  for (int64_t n = 0; n < group_top_k; ++n) {
    int64_t best = -1;
    for (int64_t g = 0; g < groups; ++g)
      if (!(allowed >> g & 1) && (best < 0 || scores[g] > scores[best])) best = g;
    allowed |= 1u << best;
  }
  return allowed;
}

/// Inserts experts in ascending order in the sorted list of the best ones, so that the lower of equal ones stays ahead.
void choose(const Preference& preference, const RouteForward& args, int32_t* chosen) {
  const uint32_t allowed = allowed_groups(preference, args.experts, args.groups, args.group_top_k);
  const int64_t size = args.experts / args.groups;
  int64_t found = 0;
  float lowest = -kInfinity;  // of the list
  for (int64_t g = 0; g < args.groups; ++g) {
    if (!(allowed >> g & 1)) continue;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      const float score = preference(e);
      if (found == args.top_k && !(score > lowest)) continue;
      int64_t at = found < args.top_k ? found++ : found - 1;
      for (; at > 0 && score > preference(chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
      chosen[at] = static_cast<int32_t>(e);
      lowest = preference(chosen[found - 1]);
    }
  }
}

/// dlogits without the part that comes from the weights of the chosen experts.
void gradient_of_losses(const RouteBackward& args, const float* scores, const float* logits, const float* load,
                        float* dlogits) {
  const int64_t experts = args.experts;
  const bool softmax = args.router == RouterKind::softmax;
  const float rate = args.auxiliary * static_cast<float>(experts) / static_cast<float>(args.top_k * args.sequence);
  const float z = args.z_loss == 0 ? 0.0f : log_sum_exp(logits, experts);
  // The z-loss comes first, because dlogits may be logits.
  if (args.z_loss == 0)
    std::memset(dlogits, 0, static_cast<size_t>(experts) * sizeof(float));
  else
    for_vectors(0, experts, [&](auto lanes, int64_t i) {
      const Vf p = softmax ? lanes.load(scores + i) : exp(lanes.load(logits + i) - z);
      lanes.store(dlogits + i, p * (2.0f * args.z_loss * z));
    });
  if (args.auxiliary == 0) return;
  float total = 0, mean = 0;  // of the scores, and of the loads under the scores
  for (int64_t e = 0; e < experts; ++e) {
    total += scores[e];
    mean += scores[e] * load[e];
  }
  if (softmax) {
    for (int64_t e = 0; e < experts; ++e) dlogits[e] += rate * scores[e] * (load[e] - mean);
  } else {
    const float inverse = 1.0f / total, of_mean = mean * inverse;
    for (int64_t e = 0; e < experts; ++e)
      dlogits[e] += rate * inverse * scores[e] * (1.0f - scores[e]) * (load[e] - of_mean);
  }
}

void add_gradient_of_weights(const RouteBackward& args, const float* scores, const int32_t* chosen,
                             const float* dweights, float* dlogits) {
  float total = kScoreSumEps, weighted = 0;
  for (int64_t j = 0; j < args.top_k; ++j) {
    total += scores[chosen[j]];
    weighted += scores[chosen[j]] * dweights[j];
  }
  const float scale = args.normalize ? args.scale / total : args.scale;
  const float mean = args.normalize ? weighted / total : 0.0f;
  const bool softmax = args.router == RouterKind::softmax;
  float all = 0;  // sum over the chosen of score times gradient of the score
  for (int64_t j = 0; j < args.top_k; ++j) {
    const float score = scores[chosen[j]], slope = score * scale * (dweights[j] - mean);
    dlogits[chosen[j]] += softmax ? slope : slope * (1.0f - score);
    all += slope;
  }
  if (softmax)
    for_vectors(0, args.experts, [&](auto lanes, int64_t i) {
      lanes.store(dlogits + i, lanes.load(dlogits + i) - lanes.load(scores + i) * all);
    });
}

}  // namespace

void route_forward_cpu(LaunchContext& context, const RouteForward& args) {
  context.parallel_for(args.tokens, grain_tokens(args.experts), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      float* const scores = args.scores + token * args.experts;
      int32_t* const chosen = args.chosen + token * args.top_k;
      float* const weights = args.weights + token * args.top_k;
      scores_of(args.router, args.logits + token * args.experts, scores, args.experts);
      choose({scores, args.bias}, args, chosen);
      float total = kScoreSumEps;
      for (int64_t j = 0; j < args.top_k; ++j) total += scores[chosen[j]];
      const float scale = args.normalize ? args.scale / total : args.scale;
      for (int64_t j = 0; j < args.top_k; ++j) weights[j] = scores[chosen[j]] * scale;
    }
  });
}

void route_backward_cpu(LaunchContext& context, const RouteBackward& args) {
  context.parallel_for(args.tokens, grain_tokens(args.experts), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t at = token * args.experts;
      gradient_of_losses(args, args.scores + at, args.z_loss == 0 ? nullptr : args.logits + at,
                         args.auxiliary == 0 ? nullptr : args.load + token / args.sequence * args.experts,
                         args.dlogits + at);
      add_gradient_of_weights(args, args.scores + at, args.chosen + token * args.top_k,
                              args.dweights + token * args.top_k, args.dlogits + at);
    }
  });
}

void route_load_cpu(LaunchContext& context, const RouteLoad& args) {
  const int64_t choices = args.sequence * args.top_k;
  context.parallel_for(args.tokens / args.sequence, 1 + 8192 / choices, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      float* const load = args.load + s * args.experts;
      std::fill_n(load, args.experts, 0.0f);
      for (int64_t i = s * choices; i < (s + 1) * choices; ++i)
        if (const int32_t expert = args.chosen[i]; expert >= 0 && expert < args.experts) ++load[expert];
    }
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
