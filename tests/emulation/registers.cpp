// SPDX-License-Identifier: Apache-2.0
// Registers that warpgroups give up and take (setmaxnreg): those that the block was launched with.

#include <fmt/core.h>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

constexpr size_t kGroup = 128;
int compiled_registers = 0;

/// Gives waiting warpgroups their registers while there are enough. Source: PTX ISA, setmaxnreg, whose pool is that of
/// the CTA; CUTLASS issue 2007: 2 x 232 and 24 of 3 x 168.
void grant_registers() {
  const size_t groups = m.threads / kGroup;
  const int pool = static_cast<int>(m.threads) * launch_registers(m.threads);
  int used = 0;
  for (size_t g = 0; g < groups; ++g) used += 128 * a.groups[g].registers;
  for (size_t g = 0; g < groups; ++g) {
    Warpgroup& group = a.groups[g];
    const int more = 128 * (a.of[kGroup * g].wanted_registers - group.registers);
    if (more <= 0 || used + more > pool) continue;
    used += more;
    group.registers = a.of[kGroup * g].wanted_registers;
    for (size_t t = kGroup * g; t < kGroup * (g + 1); ++t)
      if (m.fibers[t].state == State::at_registers) m.fibers[t].state = State::ready;
  }
}

}  // namespace

int launch_registers(size_t threads) {
  const int each =
      compiled_registers > 0 ? compiled_registers : kernels::hopper::registers_at_launch(static_cast<int>(threads));
  return (each + 7) / 8 * 8;
}
void set_compiled_registers(int registers) { compiled_registers = registers; }

void registers_change(int registers, bool raise, const std::source_location& at) {
  const char* const operation = raise ? "registers_raise" : "registers_lower";
  require_hopper(operation, at);
  Warpgroup& group = a.groups[m.current / kGroup];
  a.of[m.current].wanted_registers = registers;
  meet_group(operation, at, [&] {
    if (group.registers_known && (raise ? registers < group.registers : registers > group.registers))
      fail(source::kSetmaxnreg, fmt::format("{} at {} to {} registers: each thread of the warpgroup has {}", operation,
                                            file_of(at), registers, group.registers));
    group.registers_known = true;
    if (registers < group.registers) group.registers = registers;
    grant_registers();
  });
  if (group.registers < registers) wait_at(State::at_registers, operation, at);
}

}  // namespace slipstream::emulation
