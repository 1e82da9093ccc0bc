// SPDX-License-Identifier: Apache-2.0
// Parses JSON lines.

#include "engine/data/json_text.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"

namespace slipstream::data {

std::string text_of_json_line(std::string_view line, int64_t begin, const std::string& path) {
  try {
    return Json::parse(line, "JSON").at("text").as_string("its \"text\"");
  } catch (const DataError& error) {
    throw DataError(
        "[data] in {} the line at byte {} is no document: {} Need one JSON object with a string \"text\" per line.",
        files::shown(path), begin, error.what());
  }
}

void for_json_texts(const TextFile& lines, const TakePiece& take) {
  std::string rest;
  for (int64_t begin = 0, byte = 0; byte < lines.size_bytes();) {
    const int64_t size = std::min<int64_t>(1 << 20, lines.size_bytes() - byte);
    rest += lines.read(byte, byte + size);
    byte += size;
    std::string_view view = rest;
    for (;;) {
      const size_t end = view.find('\n');
      if (end == std::string_view::npos && (byte < lines.size_bytes() || view.empty())) break;
      const std::string_view line = view.substr(0, end);
      try {
        if (!is_blank_line(line)) take(text_of_json_line(line, begin, lines.path()), begin);
      } catch (const DataError& error) {
        throw_with_path(error, lines.path());
      }
      const size_t used = std::min(view.size(), line.size() + 1);
      begin += static_cast<int64_t>(used);
      view.remove_prefix(used);
    }
    rest.erase(0, rest.size() - view.size());
  }
}

}  // namespace slipstream::data
