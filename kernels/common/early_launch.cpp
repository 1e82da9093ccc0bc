// SPDX-License-Identifier: Apache-2.0
// Reads SLIPSTREAM_EARLY_LAUNCH.

#include "kernels/common/early_launch.h"

#include <cstdlib>
#include <string_view>

#include "engine/base/check.h"

namespace slipstream::kernels {

static bool is_allowed() {
  const char* asked = std::getenv("SLIPSTREAM_EARLY_LAUNCH");
  if (!asked || asked == std::string_view("on")) return true;
  if (asked == std::string_view("off")) return false;
  throw ConfigError("[device] SLIPSTREAM_EARLY_LAUNCH={} is unknown, need on or off.", asked);
}

bool early_launch(int capability) { return is_allowed() && capability >= 90; }

void require_early_launch() { is_allowed(); }

}  // namespace slipstream::kernels
