// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells a test whether it runs a sample of its rows or all of them.

#include <cstdlib>

/// scripts/test.sh --all: every row; otherwise a covering sample.
inline bool test_everything() { return std::getenv("SLIPSTREAM_TEST_ALL") != nullptr; }
