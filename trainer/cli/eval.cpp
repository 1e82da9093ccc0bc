// SPDX-License-Identifier: Apache-2.0
// The flags of slipstream eval.

#include <memory>

#include "trainer/cli/command_line.h"
#include "trainer/runtime/text/score.h"

namespace slipstream::cli {

void add_eval(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<runtime::EvalOptions>();
  CLI::App* command = app.add_subcommand("eval", "perplexity of a text, or answers to multiple-choice questions");
  command->add_option("checkpoint", options->checkpoint, "folder of weights, run folder, or checkpoint")->required();
  command->add_option("--text", options->text, "text file, or - for standard input; the command prints the perplexity");
  command
      ->add_option("--choices", options->choices,
                   "JSON lines of HellaSwag or ARC: prints the share of questions whose answer is the likeliest ending")
      ->excludes("--text");
  add_text_format(*command, options->format);
  command->add_option("--context", options->context, "tokens of a sequence; 0: the model's context")
      ->check(whole_numbers(1 << 24));
  command
      ->add_option("--stride", options->stride,
                   "tokens between the beginnings of sequences of the text; 0: as --context")
      ->check(whole_numbers(1 << 24));
  command->add_option("--batch", options->batch, "sequences at a time")->check(CLI::Range(1, 4096));
  command->add_option("--device", options->device, "device: auto, cpu or cuda; auto: a GPU if available")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([&chosen, options] {
    chosen = [options] { return alone("eval", [&] { return runtime::evaluate(*options); }); };
  });
}

}  // namespace slipstream::cli
