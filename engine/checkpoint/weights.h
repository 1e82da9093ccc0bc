// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of final weights: model.safetensors with Hugging Face names, config.json and files such as the tokenizer.

#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/weights_folder.h"

namespace slipstream::checkpoint {

/// A file of the folder: its name and its bytes. An example is the tokenizer (data::kTokenizerFile).
using ExtraFile = std::pair<std::string, std::string>;

/// Blocks. Writes the folder as DIR.tmp-PID beside `dir` and renames it to `dir` once it is on disk. An older folder is
/// exchanged in one step and then deleted, so `dir` is always complete. If the file system cannot exchange folders, the
/// old one is renamed to DIR.old-PID first; a crash between the two renames leaves both folders complete under those
/// names. Creates the parent folders of `dir`. One writer at a time.
/// Throws: ResourceError (disk), errors of a tensor's callback. Then `dir` is unchanged and the temporary folder is
/// removed.
///
/// `file_bytes` has the meaning that it has in write_weights().
SavedFolder write_final(const std::string& dir, std::vector<TensorToSave> tensors, const std::string& config_json,
                        const std::vector<ExtraFile>& extra_files, int64_t file_bytes = 0);

struct FinalWeights {
  SafetensorsFile weights;
  Json config;  // an object
};

/// Blocks. Opens a folder from write_final(), or another folder with one model.safetensors and one config.json.
/// Throws: CheckpointError if the folder does not exist, or if a file is missing or damaged.
FinalWeights read_final(const std::string& dir);

}  // namespace slipstream::checkpoint
