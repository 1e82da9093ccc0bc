// SPDX-License-Identifier: Apache-2.0
// Runs slipstream calibrate: describes this machine in a machine file.

#include <memory>

#include "trainer/bench/calibrate.h"
#include "trainer/cli/command_line.h"

namespace slipstream::cli {

void add_calibrate(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<bench::CalibrateOptions>();
  options->out = "machine.toml";
  CLI::App* command =
      app.add_subcommand("calibrate", "measure this machine at the shapes of a run into a machine file");
  add_run_source(command, *options);
  command
      ->add_option("--ranks", options->ranks,
                   "largest number of ranks of this host that plans will have; default: its cores")
      ->check(CLI::Range(1, 64));
  command->add_option("--out", options->out, "path of the machine file; default: machine.toml");
  command
      ->add_option("--seconds", options->seconds,
                   "time for measuring works; transfers take 0.4 of this time in addition")
      ->check(CLI::Range(1.0, 600.0));
  command->callback([&chosen, options] { chosen = [options] { return bench::calibrate(*options); }; });
}

}  // namespace slipstream::cli
