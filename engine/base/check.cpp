// SPDX-License-Identifier: Apache-2.0
// Throws an InternalError for a failed assertion, with the property, the file and the line.

#include "engine/base/check.h"

namespace slipstream::detail {

void assertion_failed(const char* expression, const char* file, int line) {
  throw InternalError("[bug] {}:{}: assertion failed: {}. Please report it with the run file.", file, line, expression);
}

}  // namespace slipstream::detail
