// SPDX-License-Identifier: Apache-2.0
// Commands of the design that this version refuses, each with what to use instead.

#include "cli/command_line.h"

namespace slipstream::cli {

void add_later(CLI::App& app, Run& chosen) {
  add_missing(app, chosen, "report", "a run as a page of HTML",
              "Read metrics.jsonl of the run folder, and open its trace/*.json in Perfetto.");
  add_missing(app, chosen, "convert", "weights from and to Hugging Face",
              "Final weights are safetensors with Hugging Face names already, in checkpoints/final of the run folder.");
}

}  // namespace slipstream::cli
