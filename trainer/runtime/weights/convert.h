// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies a model to a folder in the Hugging Face format, with other element types and files.

#include <cstdint>
#include <string>

namespace slipstream::runtime {

struct ConvertOptions {
  std::string from;            // a folder of weights, a run folder, a checkpoint, or a checkpoint of llm.c
  std::string to;              // a folder; one that a conversion wrote is replaced
  std::string dtype = "auto";  // float32 | bfloat16 | auto: bfloat16 if all tensors have this type
  int64_t file_bytes = 0;      // the most bytes of a file of weights with more than one tensor; 0: one file
};

struct ConvertSummary {
  std::string model;  // a description
  int64_t tensors = 0, files = 0, size_bytes = 0;
  std::string dtype;
  std::string tokenizer;          // its name; empty: the folder has none that this program can read
  std::string tokenizer_problem;  // the problem for which its file was refused
};

/// Blocks. Checks every tensor of `from` against the model of its config.json and writes `to` complete or not at all:
/// weights under the names of transformers, config.json, and the files that concern texts (text_files.h). Memory holds
/// 1 MiB of the weights, or one matrix of a checkpoint. float32 -> bfloat16 rounds to nearest even, and all other
/// conversions are exact. Throws: CheckpointError (`from`), ConfigError (`to` has files that no conversion wrote, or is
/// `from`), ResourceError (`to`).
ConvertSummary convert(const ConvertOptions& options);

}  // namespace slipstream::runtime
