// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files that tokenize writes under OUT: their names, and those that earlier commands left.

#include <cstdint>
#include <string>

#include "engine/data/datasets/tokenize_options.h"

namespace slipstream::data {

/// The path of a shard without ".bin". Pure.
std::string name_of_shard(const TokenizeOptions& options, int64_t number);
/// OUT.progress.json, while shards are being written. Pure.
std::string progress_path(const TokenizeOptions& options);

/// Blocks. The file that the command writes, with at most `shards` shards, in the place of `path`; empty: none.
std::string written_as(const TokenizeOptions& options, int64_t shards, const std::string& path);

/// Blocks. Removes what killed commands of this host with the same OUT left half written.
void remove_abandoned(const TokenizeOptions& options);

/// Blocks. Removes the shards of earlier commands with the same OUT, which a pattern would read, too: all but the first
/// `written`, and OUT.bin if the command writes numbered shards. Files that are no shards by name and sidecar, the
/// texts and the tokenizer stay. Returns the number of shards.
int64_t remove_earlier_shards(const TokenizeOptions& options, int64_t written);

}  // namespace slipstream::data
