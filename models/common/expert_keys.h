// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of a config.json that describe a mixture of experts.

#include <cstdint>
#include <string>

#include "engine/base/expert_options.h"
#include "models/common/config_json.h"
#include "models/model.h"

namespace slipstream::models {

/// The values of a family's keys that a config.json lacks.
struct ExpertDefaults {
  int64_t count = 0;  // 0: the family has no experts
  int64_t top_k = 0;
  bool is_own = false;  // a type of this program, for settings that no class of the library has
};

/// Reads the experts of a Mixtral or Qwen3-MoE, whose other sizes are in `options`. Pure.
/// Throws: CheckpointError that names a wrong key.
ExpertOptions read_expert_keys(ConfigJson& config, const ExpertDefaults& defaults, const ModelOptions& options);

/// Returns true if no class of the library has these settings. Pure.
bool needs_own_class(const ExpertOptions& experts);

/// Returns the keys as lines of a JSON object, each with a comma. Pure.
std::string expert_keys(const ModelOptions& options, bool is_own);

}  // namespace slipstream::models
