// SPDX-License-Identifier: Apache-2.0
#pragma once
// Unpacks gzip and Zstandard while they are read.

#include <string>

#include "engine/base/files.h"
#include "engine/data/datasets/containers.h"

namespace slipstream::data {

/// The contents of all gzip members or Zstandard frames that `packed` reads, one behind another. `path` names them in
/// errors. The result throws: DataError if they are damaged, cut, or followed by other bytes; errors of `packed`.
files::ReadBytes unpacked(Packing packing, files::ReadBytes packed, const std::string& path);

}  // namespace slipstream::data
