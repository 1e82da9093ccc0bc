// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizers that a run file names, and the numbers of their rules that it sets.

#include <cstdint>

#include "engine/base/modes.h"

namespace slipstream {

/// optimizer.name, in the order of optimizers() (engine/plan/optimizer.h).
enum class OptimizerName : uint8_t { adamw, muon };
template <>
inline constexpr std::array<const char*, 2> kWords<OptimizerName>{"adamw", "muon"};

/// optimizer.schedule: how the learning rate changes after the warm-up.
enum class RateSchedule : uint8_t { cosine, linear, warmup_stable_decay, constant };
template <>
inline constexpr std::array<const char*, 4> kWords<RateSchedule>{"cosine", "linear", "warmup_stable_decay", "constant"};

/// Returns true if the optimizer updates whole matrices, so that no rank may hold only a part of one. Pure.
constexpr bool updates_matrices(OptimizerName name) { return name == OptimizerName::muon; }

/// How the step of a matrix depends on its shape. The names are those of torch.optim.Muon.
enum class MuonScaling : uint8_t {
  match_rms_adamw,  // Moonshot: 0.2 max(rows, cols)^0.5, the size of an AdamW step at the same learning rate
  original,         // Jordan: max(1, rows / cols)^0.5
};
template <>
inline constexpr std::array<const char*, 2> kWords<MuonScaling>{"match_rms_adamw", "original"};

/// The options that update rules read.
struct UpdateOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;  // largest norm of all gradients; 0: no clipping
  double momentum = 0.95;
  double adamw_learning_rate = 0;  // for the parameters that muon leaves to AdamW; default: learning_rate
  MuonScaling muon_scaling = MuonScaling::match_rms_adamw;

  auto operator<=>(const UpdateOptions&) const = default;
};

}  // namespace slipstream
