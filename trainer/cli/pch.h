// SPDX-License-Identifier: Apache-2.0
// The precompiled header of the commands. CLI11 is one header of 10,000 lines.

#include <CLI/CLI.hpp>
