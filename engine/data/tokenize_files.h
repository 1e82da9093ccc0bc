// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files that tokenize writes under OUT: their names, and those that earlier commands left.

#include <cstdint>
#include <string>

#include "engine/data/tokenize.h"

namespace slipstream::data {

/// The path of a shard without ".bin". Pure.
std::string name_of_shard(const TokenizeOptions& options, int64_t number);
/// OUT.progress.json, while shards are being written. Pure.
std::string progress_path(const TokenizeOptions& options);

/// Blocks. Removes what killed commands of this host with the same OUT left half written.
void remove_abandoned(const TokenizeOptions& options);

}  // namespace slipstream::data
