// SPDX-License-Identifier: Apache-2.0
// Reads a text file whole.

#include "engine/data/text.h"

#include <limits>

#include "engine/base/check.h"
#include "engine/data/files.h"

namespace slipstream::data {

std::string read_text(const std::string& path) {
  std::string text = read_file(path, Owner::data, std::numeric_limits<int64_t>::max());
  if (text.empty()) throw DataError("[data] {} is empty, need text. Name a file that has some.", shown(path));
  return text;
}

}  // namespace slipstream::data
