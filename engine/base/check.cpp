// SPDX-License-Identifier: Apache-2.0
// Turns a failed assertion into an InternalError that names the property, the file and the line.

#include "engine/base/check.h"

namespace slipstream::detail {

void assertion_failed(const char* expression, const char* file, int line) {
  throw InternalError("[bug] {}:{}: this must hold but does not: {}. Please report it with the run file.", file, line,
                      expression);
}

}  // namespace slipstream::detail
