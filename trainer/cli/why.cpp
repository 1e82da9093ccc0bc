// SPDX-License-Identifier: Apache-2.0
// Runs slipstream why: names the rank and the task that stopped a run.

#include <memory>

#include "comm/flight.h"
#include "comm/verdict.h"
#include "engine/base/print.h"
#include "trainer/cli/command_line.h"

namespace slipstream::cli {

void add_why(CLI::App& app, Run& chosen) {
  const auto folder = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("why", "name the rank and the task that stopped a run, from its flight records");
  command->add_option("run", *folder, "folder of the run (output.dir)")->required();
  command->callback([&chosen, folder] {
    chosen = [folder] {
      return alone("why", [&] {
        const std::vector<comm::FlightRecord> records = comm::read_flight(*folder + "/flight");
        print_result("{}\n{}", comm::judge(records).sentence, comm::flight_lines(records));
        return 0;
      });
    };
  });
}

}  // namespace slipstream::cli
