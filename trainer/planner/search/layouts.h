// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layouts and settings that `plan --search` compares.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/machine.h"
#include "engine/config/resolve.h"

namespace slipstream::planner {

/// The values of one key that a search tries instead of its own choice.
struct SearchedKey {
  std::string key;
  std::vector<std::string> values;
};

/// Parses "overlap.bucket_size=25MiB,100MiB". Throws: ConfigError with the nearest key unless it is KEY=VALUE,... with
/// a key of run files.
SearchedKey parse_searched_key(const std::string& text);

/// Returns arguments of --set, one list for each layout. Pure.
///
/// These are tried, as powers of two and the run file's own value: tensor ranks in a node; pipeline stages, and
/// divisors of the layers; context ranks from 16,384 tokens on; up to 8 virtual stages, also with parts that differ by
/// one layer; for mixtures of experts, no tensor ranks, but ranks that divide the experts, with and without paired
/// passes; micro-batches of up to 64 sequences, and of all sequences of a data rank. In addition: all ZeRO stages,
/// with shards over all ranks or in a node; all kinds of recomputation, full recomputation also in a part of the
/// layers, in steps of an eighth; 1F1B, interleaved and ZB-H1; for ZeRO-3, one or two layers of prefetch; for tensor
/// ranks, one or four chunks of tokens; otherwise buckets of the run file's size and of 100 MiB. Numbers on the wire
/// keep their types, because others change the training (narrower_wires). `keys` replaces the values of one of these
/// keys, or adds a key.
std::vector<std::vector<std::string>> layouts_of(const ResolvedConfig& config, const Machine& machine,
                                                 const std::vector<SearchedKey>& keys, int64_t global_batch);

}  // namespace slipstream::planner
