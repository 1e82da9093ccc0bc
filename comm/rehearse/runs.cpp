// SPDX-License-Identifier: Apache-2.0
// Names of gates and wires.

#include "comm/rehearse/runs.h"

#include <string_view>

namespace slipstream::comm {

const char* name_of(Gate gate) {
  switch (gate) {
    case Gate::none:
      return "independent";
    case Gate::launch_order:
      return "launch order";
    case Gate::serial:
      return "serial";
  }
  return "?";
}

std::string wire_name(const Channel& channel) {
  std::string_view name = channel.name;
  for (std::string_view suffix : {"_in", "_out"})
    if (name.ends_with(suffix)) return std::string(name.substr(0, name.size() - suffix.size()));
  return channel.name;
}

}  // namespace slipstream::comm
