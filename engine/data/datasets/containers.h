// SPDX-License-Identifier: Apache-2.0
#pragma once
// Containers of data, told by their first bytes, and unpacked while they are read.

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/base/files.h"

namespace slipstream::data {

/// How many first bytes of a file tell its container.
inline constexpr size_t kFirstBytes = 512;

enum class Packing { none, gzip, zstd };

/// Gzip or Zstandard, whose contents are read in their place. Pure.
Packing packing_of(std::string_view first_bytes);

/// What a file holds that is no text, and the command that converts it; empty: nothing that is known. Pure.
std::string container_of(std::string_view first_bytes, const std::string& path);

/// The contents of all gzip members or Zstandard frames that `packed` reads, one behind another. `path` names them in
/// errors. The result throws: DataError if they are damaged, cut, or followed by other bytes; errors of `packed`.
files::ReadBytes unpacked(Packing packing, files::ReadBytes packed, const std::string& path);

}  // namespace slipstream::data
