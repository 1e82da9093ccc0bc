// SPDX-License-Identifier: Apache-2.0
#pragma once
// Identity of the running program by its code, so that ranks of different builds do not train together.

#include <string>

namespace slipstream::runtime {

/// 16 hexadecimal digits: a hash of the executable's instructions and constants as they were loaded. A copy or a
/// stripped copy has the same id at any path. Libraries that the program loads do not count. Pure.
const std::string& build_id();

}  // namespace slipstream::runtime
