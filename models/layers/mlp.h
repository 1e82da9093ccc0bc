// SPDX-License-Identifier: Apache-2.0
#pragma once
// An MLP: D -> F -> D, with GELU (tanh), or with SwiGLU, whose first product computes gate and up side by side.

#include "models/layers/layer.h"

namespace slipstream::models {

struct MlpKind {
  Weights up;  // with SwiGLU: gate, then up
  Weights down;
};

LayerKind gelu_mlp(MlpKind kind);
LayerKind swiglu_mlp(MlpKind kind);

}  // namespace slipstream::models
