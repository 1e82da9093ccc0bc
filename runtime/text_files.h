// SPDX-License-Identifier: Apache-2.0
#pragma once
// What belongs to the texts of a model and lies beside its weights: ids, tokenizer, chat template, and the settings of
// generation.

#include <string>
#include <vector>

#include "engine/checkpoint/weights.h"
#include "engine/data/tokenizer.h"
#include "models/hugging_face.h"
#include "runtime/model_folder.h"

namespace slipstream::runtime {

struct TextFiles {
  models::TextIds ids;  // for config.json
  std::vector<checkpoint::ExtraFile> files;
  std::string tokenizer;  // its name; empty: none that this program reads
  std::string problem;    // with which its file was refused
};

/// Blocks. Those of a folder of weights. Files that this program does not read or does not change are copies. Throws:
/// CheckpointError if one cannot be read.
TextFiles text_files_of(const ModelFolder& folder);

/// Blocks. Those of a model that was trained on ids of `tokenizer` and began with the weights of `init`, if that is not
/// empty. The settings of `init` stay if it has the same tokenizer, or if the ids are of a tokenizer that is known by
/// name only. Warns if they cannot be read.
TextFiles text_files_of(const data::Tokenizer& tokenizer, const std::string& init);

/// Blocks. Those in a folder that has nothing else but config.json; none if there is no config.json. Throws:
/// CheckpointError if a file cannot be read.
TextFiles read_text_files(const std::string& dir);

/// Blocks. Ids behind which text generation ends, by config.json and generation_config.json.
std::vector<int32_t> ends_of_text(const ModelFolder& folder);

}  // namespace slipstream::runtime
