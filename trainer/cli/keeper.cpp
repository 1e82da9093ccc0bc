// SPDX-License-Identifier: Apache-2.0
// Runs slipstream keeper, which ranks start for themselves. See trainer/runtime/durability/keeper.h.

#include <memory>

#include "trainer/cli/command_line.h"
#include "trainer/runtime/durability/keeper.h"

namespace slipstream::cli {

void add_keeper(CLI::App& app, Run& chosen) {
  struct Options {
    std::string name;
    int64_t idle_seconds = 0;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("keeper", "hold snapshots of a run in memory; train starts it");
  command->group("");  // not in --help
  command->add_option("name", options->name, "name of the keeper")->required();
  command->add_option("idle_seconds", options->idle_seconds, "the keeper ends after this time without ranks")
      ->required();
  command->callback([&chosen, options] {
    chosen = [options] {
      runtime::keep(options->name, options->idle_seconds);
      return 0;
    };
  });
}

}  // namespace slipstream::cli
