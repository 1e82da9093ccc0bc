// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files beside weights that concern texts: the tokenizer, the chat template and the settings of generation; and the
// ids around a text.

#include <string>
#include <vector>

#include "engine/checkpoint/weights.h"
#include "engine/data/tokenizers/tokenizer.h"
#include "models/hugging_face.h"
#include "trainer/runtime/weights/model_folder.h"

namespace slipstream::runtime {

struct TextFiles {
  models::TextIds ids;       // for config.json
  DType dtype = DType::f32;  // of the weights, for config.json
  std::vector<checkpoint::ExtraFile> files;
  std::string tokenizer;  // its name; empty: there is none that this program can read
  std::string problem;    // the problem for which its file was refused
};

/// Blocks. Returns the files for a copy of a folder of weights. The tokenizer is written again if this program can read
/// it. All other files are copies, and the ids are those of the folder's config.json, including null. Throws:
/// CheckpointError if a file cannot be read.
TextFiles text_files_of(const ModelFolder& folder);

/// Blocks. Returns the files for a model that was trained on ids of `tokenizer` and began with the weights of `init`
/// (if it is not empty), whose type they keep. The settings of `init` stay if it has the same tokenizer, or if the
/// tokenizer of the ids is known by name only. Warns if they cannot be read.
TextFiles text_files_of(const data::Tokenizer& tokenizer, const std::string& init);

/// Blocks. Returns all files of a folder except config.json, whose ids and type it takes; none if there is no
/// config.json.
/// Throws: CheckpointError if a file cannot be read.
TextFiles read_text_files(const std::string& dir);

/// Blocks. Returns the ids after which text generation ends, by config.json and generation_config.json.
std::vector<int32_t> ends_of_text(const ModelFolder& folder);

}  // namespace slipstream::runtime
