// SPDX-License-Identifier: Apache-2.0
// The flags of slipstream generate.

#include <memory>
#include <sstream>
#include <string>

#include "trainer/cli/command_line.h"
#include "trainer/runtime/text/generate.h"

namespace slipstream::cli {

void add_generate(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<runtime::GenerateOptions>();
  const auto prompt_ids = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("generate", "continue a prompt with trained weights");
  command->add_option("checkpoint", options->checkpoint, "folder of weights, run folder, or checkpoint")->required();
  command->add_option("--prompt", options->prompt, "text to continue");
  command->add_option("--prompt-ids", *prompt_ids, "token ids to continue, for instance 15496,995; prints ids")
      ->check(whole_numbers(INT32_MAX))
      ->type_name("ID,...")
      ->excludes("--prompt");
  command->add_option("--prompts", options->prompts_file, "file with one prompt per line; prints JSON lines")
      ->excludes("--prompt")
      ->excludes("--prompt-ids");
  add_text_format(*command, options->prompts_format);
  command->add_option("--batch", options->batch, "number of prompts of --prompts at a time")
      ->check(CLI::Range(1, 4096));
  command->add_option("--tokens", options->tokens, "number of tokens to generate")->check(CLI::Range(1, 1000000));
  runtime::SamplingOptions& sampling = options->sampling;
  command->add_option("--temperature", sampling.temperature, "sampling temperature; 0: always the most likely token")
      ->check(CLI::Range(0.0, 10.0));
  command->add_option("--top-k", sampling.top_k, "sample among the K most likely tokens; 0: all tokens");
  command->add_option("--top-p", sampling.top_p,
                      "sample among the fewest tokens that have this probability together; 1: all tokens");
  command->add_option("--min-p", sampling.min_p,
                      "sample among tokens that are at least this times as likely as the likeliest; 0: all tokens");
  command->add_option("--repetition-penalty", sampling.repetition_penalty,
                      "factor by which earlier tokens become less likely; 1: none");
  command->add_option("--stop", options->stops, "text before which the output ends; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->excludes("--prompt-ids");
  command->add_option("--seed", options->seed, "seed of the sampling")->check(whole_numbers(INT64_MAX));
  command
      ->add_option("--device", options->device,
                   "device: auto, cpu or cuda; auto: a GPU if available, the CPU for several ranks")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command
      ->add_option("--dtype", options->dtype,
                   "weights, keys and values in memory: float32, bfloat16 or auto, as in the folder")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}));
  command->add_flag("--bound", options->bound, "also measure how fast the CPU reads memory, and print the share of it");
  command->callback([&chosen, options, prompt_ids] {
    chosen = [options, prompt_ids] {
      std::istringstream ids(*prompt_ids);
      for (std::string id; std::getline(ids, id, ',');) options->prompt_ids.push_back(std::stoi(id));
      return runtime::generate(*options);
    };
  });
}

}  // namespace slipstream::cli
