// SPDX-License-Identifier: Apache-2.0
// Decides by driver version and environment.

#include "comm/nccl/launch_order.h"

#include <cstdlib>
#include <string_view>

namespace slipstream::comm {

bool nccl_serialises(int driver, bool captured) {
  const char* implicit = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (implicit && std::string_view(implicit) == "0") return false;
  return driver > 0 && driver < (captured ? kConcurrentCaptures : kConcurrentLaunches);
}

}  // namespace slipstream::comm
