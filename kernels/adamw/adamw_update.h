// SPDX-License-Identifier: Apache-2.0
#pragma once
// The update task of a plan as AdamW on shards.

#include <functional>

#include "engine/plan/update_shards.h"

namespace slipstream::kernels {

/// The work of an update, with one launch for every shard. Copies what it needs of `job`.
std::function<void(LaunchContext&)> adamw_update(const Job& job, const Item& item, const UpdateOptions& update);

}  // namespace slipstream::kernels
