// SPDX-License-Identifier: Apache-2.0
// Commands that this version lacks; each refuses and names the alternative.

#include "cli/command_line.h"

namespace slipstream::cli {

void add_later(CLI::App& app, Run& chosen) {
  add_missing(app, chosen, "convert", "weights from and to Hugging Face",
              "Final weights already are safetensors with Hugging Face names, in checkpoints/final of the run folder.");
}

}  // namespace slipstream::cli
