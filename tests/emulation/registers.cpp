// SPDX-License-Identifier: Apache-2.0
// Registers that warpgroups give up and take (setmaxnreg): 65536 for all threads of a block.

#include <fmt/core.h>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

constexpr size_t kGroup = 128;

/// Gives waiting warpgroups their registers while there are enough.
void grant_registers() {
  const size_t groups = m.threads / kGroup;
  int used = 0;
  for (size_t g = 0; g < groups; ++g) used += 128 * a.groups[g].registers;
  for (size_t g = 0; g < groups; ++g) {
    Warpgroup& group = a.groups[g];
    const int more = 128 * (a.of[kGroup * g].wanted_registers - group.registers);
    if (more <= 0 || used + more > 65536) continue;
    used += more;
    group.registers = a.of[kGroup * g].wanted_registers;
    for (size_t t = kGroup * g; t < kGroup * (g + 1); ++t)
      if (m.fibers[t].state == State::at_registers) m.fibers[t].state = State::ready;
  }
}

}  // namespace

void registers_change(int registers, bool raise, const std::source_location& at) {
  const char* const operation = raise ? "registers_raise" : "registers_lower";
  require_hopper(operation, at);
  Warpgroup& group = a.groups[m.current / kGroup];
  a.of[m.current].wanted_registers = registers;
  meet_group(operation, at, [&] {
    if (group.registers_known && (raise ? registers < group.registers : registers > group.registers))
      fail(fmt::format("{} at {} to {} registers: each thread of the warpgroup has {}", operation, file_of(at),
                       registers, group.registers));
    group.registers_known = true;
    if (registers < group.registers) group.registers = registers;
    grant_registers();
  });
  if (group.registers < registers) wait_at(State::at_registers, operation, at);
}

}  // namespace slipstream::emulation
