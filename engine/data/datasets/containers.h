// SPDX-License-Identifier: Apache-2.0
#pragma once
// Recognizes containers of data by their first bytes, and unpacks them while they are read.

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/base/files.h"

namespace slipstream::data {

/// The number of first bytes of a file that identify its container.
inline constexpr size_t kFirstBytes = 512;

enum class Packing { none, gzip, zstd };

/// Returns gzip or Zstandard for files whose contents are read instead of the files. Pure.
Packing packing_of(std::string_view first_bytes);

/// Describes a file whose contents are no text, with the command that converts it. Returns an empty text for no known
/// container. Pure.
std::string container_of(std::string_view first_bytes, const std::string& path);

/// Returns a reader of the contents of all gzip members or Zstandard frames that `packed` reads, in their order. `path`
/// names them in errors. The result throws: DataError if they are damaged, truncated, or followed by other bytes;
/// errors of `packed`.
files::ReadBytes unpacked(Packing packing, files::ReadBytes packed, const std::string& path);

}  // namespace slipstream::data
