// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files that tokenize writes under OUT: their names, and the files that earlier commands left.

#include <cstdint>
#include <string>

#include "engine/data/datasets/tokenize_options.h"

namespace slipstream::data {

/// Returns the path of a shard without ".bin". Pure.
std::string name_of_shard(const TokenizeOptions& options, int64_t number);
/// Returns the path of OUT.progress.json, which exists while shards are being written. Pure.
std::string progress_path(const TokenizeOptions& options);

/// Blocks. Returns the file, if any, with which the command, writing at most `shards` shards, would replace `path`.
/// Empty: none.
std::string written_as(const TokenizeOptions& options, int64_t shards, const std::string& path);

/// Blocks. Removes half-written files that killed commands of this host with the same OUT have left.
void remove_abandoned(const TokenizeOptions& options);

/// Blocks. Removes the shards of earlier commands with the same OUT, because a pattern would read them, too: all but
/// the first `written`, and OUT.bin if the command writes numbered shards. Files that are no shards by name and
/// sidecar, the texts and the tokenizer stay. Returns the number of removed shards.
int64_t remove_earlier_shards(const TokenizeOptions& options, int64_t written);

}  // namespace slipstream::data
