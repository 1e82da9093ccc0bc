// SPDX-License-Identifier: Apache-2.0
// Names of gates.

#include "comm/rehearse/runs.h"

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

}  // namespace slipstream::comm
