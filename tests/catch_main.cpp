// SPDX-License-Identifier: Apache-2.0
// main() of the test programs under Catch2 2.

#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
