// SPDX-License-Identifier: Apache-2.0
#pragma once
// Generates text from trained weights, one token at a time.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/data_format.h"
#include "kernels/sample/sample.h"

namespace slipstream::runtime {

using kernels::SamplingOptions;

struct GenerateOptions {
  std::string checkpoint;  // a folder of weights, or a run folder
  std::string prompt;
  std::vector<int32_t> prompt_ids;  // replace the prompt; the continuation is printed as ids, too
  std::string prompts_file;         // replaces the prompt: one prompt per line; JSON lines are printed
  DataFormat prompts_format = DataFormat::automatic;  // text: any bytes, and JSON as it is
  int batch = 8;                                      // the prompts of the file that are continued at once
  int tokens = 200;                                   // the tokens to generate
  SamplingOptions sampling;
  std::vector<std::string> stops;  // the text ends before the first of these
  uint64_t seed = 1;
  std::string device = "auto";  // auto | cpu | cuda
  std::string dtype = "auto";   // for weights, keys and values in memory: auto | float32 | bfloat16
  bool bound = false;           // also measure the speed of memory, and print the share of it
};

/// Blocks. Collective: the ranks that mpirun started share the model. Prints the prompt and its continuation to stdout.
/// Returns the exit code. Throws: ConfigError, CheckpointError, ResourceError.
int generate(const GenerateOptions& options);

/// Pure. Throws: ConfigError that names the flag that is out of range.
void check_sampling(const SamplingOptions& options);

}  // namespace slipstream::runtime
