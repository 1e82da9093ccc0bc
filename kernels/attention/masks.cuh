// SPDX-License-Identifier: Apache-2.0
#pragma once
// The masks of an attention kernel beyond the diagonal: hidden keys and dropped weights, chosen at compile time. A
// kernel without masks has an empty argument, and neither registers nor instructions for them.

#include <type_traits>

#include "kernels/attention/hidden_keys.cuh"
#include "kernels/attention/weight_dropout.cuh"

namespace slipstream::kernels {

/// Replaces HiddenKeys and WeightDropout in a kernel without them.
struct NothingHidden {
  template <typename Args>
  explicit NothingHidden(const Args&) {}
  __device__ __forceinline__ static int64_t before(int64_t, int64_t) { return 0; }
  template <int kKeys>
  __device__ __forceinline__ static int64_t keys_begin(int64_t, int64_t) {
    return 0;
  }
};
struct NothingDropped {
  template <typename Args>
  explicit NothingDropped(const Args&) {}
  __device__ __forceinline__ static float factor(int64_t, int64_t, int64_t, int64_t) { return 1.0f; }
};

/// kHides: a window or documents may hide keys. kDrops: weights are dropped. A kernel that drops also hides, because a
/// kernel that only drops would save little and would have to be compiled as well.
template <bool kHides_, bool kDrops_>
struct Masks {
  static constexpr bool kHides = kHides_, kDrops = kDrops_;
  static_assert(kHides || !kDrops);
  std::conditional_t<kHides, HiddenKeys, NothingHidden> hidden;
  std::conditional_t<kDrops, WeightDropout, NothingDropped> dropout;

  /// Takes the arguments of AttentionBlockForward or AttentionBlockBackward.
  template <typename Args>
  explicit Masks(const Args& args) : hidden(args), dropout(args.all) {}
};

/// Calls body(Masks) with the masks of a block.
template <typename Args, typename Body>
void for_masks(const Args& args, const Body& body) {
  if (args.all.dropout != nullptr)
    body(Masks<true, true>(args));
  else if (args.all.window > 0 || args.all.document_begins != nullptr)
    body(Masks<true, false>(args));
  else
    body(Masks<false, false>(args));
}

}  // namespace slipstream::kernels
