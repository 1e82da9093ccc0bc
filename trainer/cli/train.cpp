// SPDX-License-Identifier: Apache-2.0
// The flags of slipstream train.

#include <memory>

#include "trainer/cli/command_line.h"
#include "trainer/runtime/loop/train.h"

namespace slipstream::cli {

void add_train(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<runtime::TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "train the model of a run file; mpirun starts more ranks");
  add_run_source(command, *options);
  CLI::Option* const resume = command->add_flag(
      "--resume", options->resume, "continue from the newest valid checkpoint; begin at step 1 if there is none");
  command
      ->add_flag("--ignore-memory", options->ignore_memory,
                 "with --resume: continue from a checkpoint on disk, not from a snapshot in the memory of hosts")
      ->needs(resume);
  command
      ->add_option(
          "--replay", options->replayed_step,
          "with --resume: run from a checkpoint before this step up to it, run it twice, and compare all bits; "
          "writes no file")
      ->check(whole_numbers(INT64_MAX))
      ->needs(resume)
      ->type_name("STEP");
  command->add_flag("--dry-run", options->dry_run,
                    "print the plan and the memory table and write plan.json, without training");
  command
      ->add_option("--inject-delays", options->delay_seed,
                   "seed of random pauses before works, which must not change results")
      ->check(whole_numbers(INT64_MAX))
      ->type_name("SEED");
  command->add_flag("--paced", options->paced,
                    "sleep for the planned time of every work instead of computing, to time transfers alone; CPU only, "
                    "and the weights stay untrained");
  command->add_flag("--check-hazards", options->check_hazards,
                    "stop at the first work that accesses another work's bytes without an event between them");
  command->callback([&chosen, options] { chosen = [options] { return runtime::train(*options); }; });
}

}  // namespace slipstream::cli
