// SPDX-License-Identifier: Apache-2.0
#pragma once
// The readers of untrusted bytes, one per format.

#include "tests/fuzz/trial.h"

namespace slipstream::fuzz {

/// A file of weights. An accepted one must hold the bytes of all tensors, without holes.
Outcome safetensors(std::string_view input);
/// The manifest of a checkpoint, unchanged and with the hash of its content corrected. An accepted one must be read
/// back from its own text.
Outcome manifest(std::string_view input);
/// A flight record. An accepted one must be read back from its own text and have a verdict.
Outcome flight(std::string_view input);
/// TOML as a run file; also as a machine file and as a `--set`.
Outcome toml(std::string_view input);
/// A token shard: its sidecar, a NUL byte, its ids. The ids of an accepted one must be in its vocabulary.
Outcome shards(std::string_view input);
/// A token file of llm.c; also as one of nanoGPT. The ids of an accepted one must be in its vocabulary.
Outcome llm_c(std::string_view input);
/// A token file of Megatron-LM: the bytes of its index as uint16, the index, the ids. The ids of an accepted one must
/// be in its vocabulary, and its documents must ascend.
Outcome megatron(std::string_view input);
/// JSON lines, as bytes. An accepted file must be read again as it was counted.
Outcome json_lines(std::string_view input);
/// A tokenizer.json. An accepted one must encode a text to ids of its vocabulary, and decode these.
Outcome tokenizer(std::string_view input);
/// A tiktoken file: the JSON beside it, a NUL byte, the ranks. An accepted one must encode a text to ids of its
/// vocabulary, and decode these.
Outcome ranks(std::string_view input);

struct Target {
  const char* name;  // of its folder in tests/fuzz/corpus
  Outcome (*run)(std::string_view input);
};
inline constexpr Target kTargets[] = {
    {"safetensors", safetensors}, {"manifest", manifest},    {"flight", flight}, {"toml", toml},
    {"shards", shards},           {"tokenizer", tokenizer},  {"ranks", ranks},   {"llm_c", llm_c},
    {"megatron", megatron},       {"json_lines", json_lines}};

}  // namespace slipstream::fuzz
