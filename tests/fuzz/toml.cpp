// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of run files, of machine files and of `--set`.

#include "engine/config/toml.h"

#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "tests/fuzz/targets.h"

namespace slipstream::fuzz {

Outcome toml(std::string_view input) {
  static const std::string run_file = input_file("valid.toml", "[data]\ntrain = \"text\"\n");
  const std::string path = input_file("input.toml", input);
  return first_of({outcome_of(input.size(), [&] { load_run_config(path); }),
                   outcome_of(input.size(), [&] { load_machine(path); }),
                   outcome_of(input.size(), [&] { load_run_config(run_file, {std::string(input)}); })});
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::toml);
