// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a text stops being UTF-8.

#include <cstddef>
#include <string_view>

namespace slipstream {

/// Offset of the first byte that does not begin a well-formed UTF-8 sequence; text.size() when all of it is UTF-8. Pure.
/// Overlong forms, surrogates and code points above U+10FFFF are malformed. Source: Unicode 15, table 3-7.
size_t valid_utf8_prefix(std::string_view text);

}  // namespace slipstream
