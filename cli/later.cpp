// SPDX-License-Identifier: Apache-2.0
// Commands that this version lacks; each refuses and names the alternative.

#include "cli/command_line.h"

namespace slipstream::cli {

void add_later(CLI::App& app, Run& chosen) {
  add_missing(app, chosen, "convert", "weights from and to Hugging Face",
              "checkpoints/final of a run folder already has safetensors with Hugging Face names.");
}

}  // namespace slipstream::cli
