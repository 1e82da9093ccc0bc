// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal attention of heads with grouped key-value heads.

#include "models/layers/layer.h"

namespace slipstream::models {

struct AttentionKind {
  Weights qkv;  // one name for all, or the names of q, k and v
  Weights out;
  std::vector<std::string> head_norms = {};  // RMS norms of the heads of q and k, before they are rotated
  bool rotary = false;                       // rotary positions (half-split)
};

LayerKind attention(AttentionKind kind);

}  // namespace slipstream::models
