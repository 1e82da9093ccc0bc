// SPDX-License-Identifier: Apache-2.0
#pragma once
// Unpacks gzip and Zstandard while they are read.

#include <string>

#include "engine/base/files.h"
#include "engine/data/datasets/containers.h"

namespace slipstream::data {

/// Returns a reader of the contents of all gzip members or Zstandard frames that `packed` reads, in their order. `path`
/// names them in errors. The result throws: DataError if they are damaged, truncated, or followed by other bytes;
/// errors of `packed`.
files::ReadBytes unpacked(Packing packing, files::ReadBytes packed, const std::string& path);

}  // namespace slipstream::data
