// SPDX-License-Identifier: Apache-2.0
// Parses JSON lines.

#include "engine/data/datasets/json_text.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/plural.h"

namespace slipstream::data {
namespace {

constexpr int64_t kPercentSkipped = 1;  // beside the first line, at most this share is skipped

/// Returns the number of the 4 hexadecimal digits after "\u", or 0 if there are none.
uint32_t escaped_at(std::string_view line, size_t at) {
  if (line.size() < at + 6 || line[at] != '\\' || line[at + 1] != 'u') return 0;
  uint32_t value = 0;
  for (size_t i = at + 2; i < at + 6; ++i) {
    const char c = line[i];
    const char low = static_cast<char>(c | 0x20);
    if (!((c >= '0' && c <= '9') || (low >= 'a' && low <= 'f'))) return 0;
    value = 16 * value + static_cast<uint32_t>(c <= '9' ? c - '0' : low - 'a' + 10);
  }
  return value;
}

/// Returns the line with \ufffd in the place of every escaped half of a surrogate pair. Counts them.
std::string without_lone_surrogates(std::string_view line, int64_t& replaced) {
  std::string out(line);
  for (size_t at = 0; at + 1 < out.size(); ++at) {
    if (out[at] != '\\') continue;
    const uint32_t value = escaped_at(out, at);
    const uint32_t next = value >= 0xd800 && value < 0xdc00 ? escaped_at(out, at + 6) : 0;
    if (next >= 0xdc00 && next < 0xe000) {
      at += 11;
    } else if (value >= 0xd800 && value < 0xe000) {
      out.replace(at, 6, "\\ufffd");
      ++replaced;
      at += 5;
    } else {
      ++at;  // the escaped character
    }
  }
  return out;
}

std::string text_of(std::string_view line, const std::string& key, JsonNumbers numbers) {
  const Json root = Json::parse(line, "JSON", numbers);
  const Json& value = root.at(key);
  if (!value.is_string()) throw DataError("its \"{}\" needs a string, got {}.", key, value.type_name());
  return value.as_string();
}

}  // namespace

JsonLine read_json_line(std::string_view line, int64_t begin, const std::string& key) {
  if (begin == 0 && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // the byte-order mark of UTF-8
  try {
    return {.text = text_of(line, key, JsonNumbers::exact)};
  } catch (const DataError&) {  // a second, slower parse accepts what Python's json module writes
  }
  JsonLine read;
  try {
    read.text = text_of(without_lone_surrogates(line, read.replaced), key, JsonNumbers::python);
  } catch (const DataError& error) {
    read.problem = error.what();
  }
  return read;
}

void DocumentCount::add(const JsonLine& line, int64_t begin, const std::string& path) {
  if (line.problem.empty()) {
    ++documents_;
    replaced_ += line.replaced;
    return;
  }
  if (first_problem_.empty())
    first_problem_ =
        fmt::format("in {} the line at byte {} is no document: {}", files::shown(path), begin, line.problem);
  ++skipped_;
  if (skipped_ > 1 && 100 * skipped_ > kPercentSkipped * (documents_ + skipped_))
    throw DataError(
        "[data] {} of the first {} lines are no documents, need less than {} %: {} Need one JSON object per line with "
        "its "
        "document in the string \"text\", or in the one that data.text_key or --text-key names.",
        skipped_, documents_ + skipped_, kPercentSkipped, first_problem_);
}

void DocumentCount::add(const DocumentCount& other) {
  documents_ += other.documents_;
  skipped_ += other.skipped_;
  replaced_ += other.replaced_;
  if (first_problem_.empty()) first_problem_ = other.first_problem_;
}

std::vector<std::string> DocumentCount::notes(const std::string& where) const {
  std::vector<std::string> notes;
  if (skipped_ > 0)
    notes.push_back(fmt::format("{} of {} in {} skipped{}", skipped_, counted(documents_ + skipped_, "line"), where,
                                first_problem_.empty() ? "" : "; the first: " + first_problem_));
  if (replaced_ > 0)
    notes.push_back(fmt::format("{} in {} became U+FFFD: one half of a pair", counted(replaced_, "surrogate"), where));
  return notes;
}

void for_json_texts(const ForPieces& lines, const std::string& path, const std::string& key, const TakePiece& take) {
  std::string rest;
  int64_t begin = 0;  // the position of `rest`
  DocumentCount count;
  const auto take_line = [&](std::string_view line) {
    if (!is_blank_line(line)) {
      const JsonLine read = read_json_line(line, begin, key);
      count.add(read, begin, path);
      if (read.problem.empty()) take(read.text, begin);
    }
    begin += std::ssize(line);
  };
  lines([&](std::string_view piece, int64_t) {
    for (size_t end = 0; (end = piece.find('\n')) != std::string_view::npos; ++begin) {
      rest += piece.substr(0, end);
      piece.remove_prefix(end + 1);
      take_line(rest);
      rest.clear();
    }
    rest += piece;
  });
  if (!rest.empty()) take_line(rest);
}

}  // namespace slipstream::data
