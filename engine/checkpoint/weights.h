// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of final weights: model.safetensors with Hugging Face names, config.json, and what else it takes to use
// them.

#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/checkpoint/safetensors.h"

namespace slipstream::checkpoint {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kConfigFile = "config.json";

/// A file of the folder by its name and its bytes, for instance the tokenizer (data::kTokenizerFile).
using ExtraFile = std::pair<std::string, std::string>;

/// Blocks. Writes the folder as DIR.tmp-PID beside `dir` and gives it the name `dir` when it is on disk. An older
/// folder is exchanged for the new one in one step and then deleted, so `dir` is at every moment whole: the old one or
/// the new one. (Where the file system cannot exchange, the old one is renamed to DIR.old-PID first; a crash between
/// the two renames leaves both folders whole under those names.) Makes the folders above `dir`. One writer at a time.
/// Throws: ResourceError (disk), what a tensor's callback throws; then `dir` is as before and the temporary folder is
/// gone.
void write_final(const std::string& dir, std::vector<TensorToSave> tensors, const std::string& config_json,
                 const std::vector<ExtraFile>& extra_files);

struct FinalWeights {
  SafetensorsFile weights;
  Json config;  // an object
};

/// Blocks. Opens what write_final() wrote, or a folder of one model.safetensors and one config.json from elsewhere.
/// Throws: CheckpointError: no such folder, a missing or damaged file.
FinalWeights read_final(const std::string& dir);

}  // namespace slipstream::checkpoint
