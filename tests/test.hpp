// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one include of every test: hides Catch2 2 against 3.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
namespace Catch {  // as Catch2 2 calls it
inline auto Contains(const std::string& text) { return Matchers::ContainsSubstring(text); }
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#endif
