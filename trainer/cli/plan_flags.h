// SPDX-License-Identifier: Apache-2.0
#pragma once
// The flags that plan and check share.

#include <CLI/CLI.hpp>

#include "trainer/cli/command_line.h"
#include "trainer/planner/forecast/planned.h"

namespace slipstream::cli {

struct PlanFlags : planner::PlanRequest {
  bool json = false;
};

inline void add_plan_flags(CLI::App* command, PlanFlags& flags) {
  add_run_source(command, flags);
  command->add_option("--ranks", flags.ranks, "number of ranks")->check(CLI::Range(1, 1 << 24));
  command->add_option(
      "--machine", flags.machine,
      "machine file: a path or a shipped name, such as h100x8; default: device.machine of the run file, else "
      "this host");
  command->add_option(
      "--as", flags.as,
      "software whose run is predicted: slipstream, megatron, fsdp, llmq, or the path or shipped name of a profile");
  command->add_flag("--json", flags.json, "print JSON");
}

}  // namespace slipstream::cli
