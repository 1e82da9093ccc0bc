// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table [model.experts]: a mixture of experts in place of the MLP of some layers.

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

#include "engine/base/modes.h"

namespace slipstream {

struct ExpertOptions {
  int64_t count = 0;            // routed experts of a layer; 0: the model has none
  int64_t top_k = 2;            // the experts that each token passes
  int64_t shared = 0;           // the experts that every token passes; they are one MLP of width shared x ffn_width
  int64_t ffn_width = 0;        // of one expert; after resolution: model.ffn_width if it was 0
  std::vector<int64_t> layers;  // the layers with experts, ascending; empty: all
  RouterKind router = RouterKind::softmax;
  int64_t groups = 1;       // equal groups of experts; a token chooses experts of group_top_k groups
  int64_t group_top_k = 1;  // a group's score is the sum of its two best scores
  bool normalize = true;    // the weights of a token's experts add up to `scale`
  double scale = 1;
  ExpertBalance balance = ExpertBalance::none;
  double balance_rate = 0.001;  // of the auxiliary loss, or the step of a bias
  double z_loss = 0;            // times the mean square of the log of the sum of the exponentials of a token's logits
  double capacity_factor = 2;   // rows that a rank keeps for its experts / rows of equal loads
  CapacityPolicy capacity = CapacityPolicy::repeat;

  /// Pure.
  bool in_layer(int64_t layer) const {
    return count > 0 && (layers.empty() || std::binary_search(layers.begin(), layers.end(), layer));
  }
  auto operator<=>(const ExpertOptions&) const = default;
};

}  // namespace slipstream
