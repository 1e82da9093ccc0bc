// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts in JSON lines. Every line is an object with a document in one of its strings, "text" unless another one is
// named.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

/// Returns true for a line without a document. Pure.
inline bool is_blank_line(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

/// A line of a file.
struct JsonLine {
  std::string text;
  int64_t replaced = 0;  // halves of surrogate pairs, each replaced by U+FFFD
  std::string problem;   // why the line is no document; empty if it is one
};

/// Returns the document in the member `key` of a line that begins at byte `begin`. Pure.
JsonLine read_json_line(std::string_view line, int64_t begin, const std::string& key);

/// Counts documents, and lines that are no documents. Such lines are skipped as long as they are rare.
class DocumentCount {
 public:
  DocumentCount() = default;
  DocumentCount(int64_t documents, int64_t skipped, int64_t replaced)
      : documents_(documents), skipped_(skipped), replaced_(replaced) {}
  /// Adds the counts of other lines. Pure.
  void add(const DocumentCount& other);

  /// Counts a line. Throws: DataError with the first line that is no document, if more than one line is none and these
  /// lines are more than 1 % of all. Pure.
  void add(const JsonLine& line, int64_t begin, const std::string& path);

  int64_t documents() const { return documents_; }
  int64_t skipped() const { return skipped_; }
  int64_t replaced() const { return replaced_; }
  /// Returns what a user must know about the lines of `where`, or nothing if all are documents without replacements.
  /// Pure.
  std::vector<std::string> notes(const std::string& where) const;
  /// Returns the first line that is no document, and why; empty if there is no such line. Pure.
  const std::string& first_problem() const { return first_problem_; }

 private:
  int64_t documents_ = 0, skipped_ = 0, replaced_ = 0;
  std::string first_problem_;
};

/// Blocks. Passes on the text of every document in `lines`, which are the pieces of the text at `path`. The second
/// argument of `take` is the byte at which its line begins. Throws: as DocumentCount::add, `lines` and `take`.
void for_json_texts(const ForPieces& lines, const std::string& path, const std::string& key, const TakePiece& take);

}  // namespace slipstream::data
