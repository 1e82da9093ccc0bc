// SPDX-License-Identifier: Apache-2.0
#pragma once
// Documents of token sequences that have no index of them, but an id that separates them.

#include <cstdint>
#include <memory>

#include "engine/data/datasets/token_source.h"

namespace slipstream::data {

/// `source` with documents that begin at each `id` (`begins`) or behind each (otherwise).
std::shared_ptr<const TokenSource> documents_by_id(std::shared_ptr<const TokenSource> source, int32_t id, bool begins);

}  // namespace slipstream::data
