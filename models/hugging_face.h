// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads and writes config.json of Hugging Face's library transformers.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "models/model.h"

namespace slipstream::models {

/// The ids around a text; -1 and empty: there are none.
struct TextIds {
  int32_t begin_of_text = -1;
  std::vector<int32_t> ends_of_text;
  int32_t padding = -1;
};

/// Returns config.json of the model. The value of a missing id is null, because the library's defaults are those of
/// other models. Pure.
std::string hugging_face_config(const ModelOptions& options, const TextIds& ids = {});

/// Returns generation_config.json. Pure.
std::string hugging_face_generation_config(const TextIds& ids);

struct HuggingFaceModel {
  ModelOptions options;  // sizes and constants, with one sequence of the whole context
  TextIds ids;
  DropoutRates dropout;                 // the rates of its training; `options` has none
  std::string prefix;                   // "transformer." if the tensors of the family may lack this prefix
  std::string table;                    // the tensor that a tied head shares
  std::vector<std::string> notes = {};  // about what the file has and the model ignores
};

/// Reads the ids of a config.json or generation_config.json that are below `vocab`. Pure.
TextIds read_text_ids(const Json& config, int64_t vocab);

/// Reads the config.json at `where`. `tensors` is the number of tensors in the files beside it. Pure.
/// Throws: CheckpointError that names a key that is missing, wrong or unknown, or that asks for arithmetic that the
/// families lack. It also refuses more layers than tensors, because a small folder could otherwise ask for a model that
/// fills the memory.
HuggingFaceModel read_hugging_face_config(const Json& config, const std::string& where, int64_t tensors);

}  // namespace slipstream::models
