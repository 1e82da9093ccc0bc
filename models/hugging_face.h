// SPDX-License-Identifier: Apache-2.0
#pragma once
// config.json of Hugging Face's library transformers, in and out.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "models/model.h"

namespace slipstream::models {

/// Ids around a text; -1 and empty: none.
struct TextIds {
  int32_t begin_of_text = -1;
  std::vector<int32_t> ends_of_text;
  int32_t padding = -1;
};

/// config.json of the model. Without an id the value is null, because the library's defaults are those of other models.
/// Pure.
std::string hugging_face_config(const ModelOptions& options, const TextIds& ids = {});

/// generation_config.json. Pure.
std::string hugging_face_generation_config(const TextIds& ids);

struct HuggingFaceModel {
  ModelOptions options;  // sizes and constants; one sequence of the whole context
  TextIds ids;
  DropoutRates dropout;                 // of its training; `options` has none
  std::string prefix;                   // "transformer." where the tensors of a family may lack it
  std::string table;                    // the tensor that a tied head is
  std::vector<std::string> notes = {};  // on what the file has and the model ignores
};

/// Ids of a config.json or generation_config.json that are below `vocab`. Pure.
TextIds read_text_ids(const Json& config, int64_t vocab);

/// Reads the config.json at `where`. `tensors`: the number in the files beside it. Pure.
/// Throws: CheckpointError naming a key that is missing, wrong, unknown, or asks for arithmetic that the families lack,
/// and for more layers than tensors: without this limit, a small folder could promise a model that fills the memory.
HuggingFaceModel read_hugging_face_config(const Json& config, const std::string& where, int64_t tensors);

}  // namespace slipstream::models
