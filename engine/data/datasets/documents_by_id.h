// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adds documents to token sequences that have no index of them but an id that separates them.

#include <cstdint>
#include <memory>

#include "engine/data/datasets/token_source.h"

namespace slipstream::data {

/// Returns `source` with documents that begin at each `id` (if `begins`) or after each `id` (otherwise).
std::shared_ptr<const TokenSource> documents_by_id(std::shared_ptr<const TokenSource> source, int32_t id, bool begins);

}  // namespace slipstream::data
