// SPDX-License-Identifier: Apache-2.0
#pragma once
// What this program is and what it was built with.

#include <string>

namespace slipstream::runtime {

/// The version of the project in meson.build, such as "0.1.0". Pure.
std::string version();

/// "GCC 12.2.0". Pure.
std::string compiler();

/// What multiplies matrices on the CPU: "oneDNN 2.6.3" or "Eigen 3.4.0". Pure.
std::string products_library();

}  // namespace slipstream::runtime
