// SPDX-License-Identifier: Apache-2.0
#pragma once
// The versions of the program and of the tools that built it.

#include <string>

namespace slipstream::runtime {

/// Returns the version of the project in meson.build, such as "0.1.0". Pure.
std::string version();

/// Returns "GCC 12.2.0". Pure.
std::string compiler();

/// Returns the library of the CPU matrix products: "oneDNN 2.6.3" or "Eigen 3.4.0". Pure.
std::string products_library();

/// Returns the identity of the running program by its code, so that ranks of different builds do not train together. It
/// has 16 hexadecimal digits: a hash of the executable's instructions and constants as they were loaded. A copy or a
/// stripped copy has the same id at any path. Libraries that the program loads do not count. Pure.
const std::string& build_id();

}  // namespace slipstream::runtime
