// SPDX-License-Identifier: Apache-2.0
// Reads a text file whole.

#include "engine/data/text.h"

#include <limits>

#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream::data {

std::string read_text(const std::string& path) {
  std::string text = files::read_file(path, files::Owner::data, std::numeric_limits<int64_t>::max());
  if (text.empty()) throw DataError("[data] {} is empty, need text. Name a file that has some.", files::shown(path));
  return text;
}

}  // namespace slipstream::data
