// SPDX-License-Identifier: Apache-2.0
#pragma once
// Opens texts and JSON lines, and reads them once from the begin to the end.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/data_format.h"
#include "engine/base/files.h"

namespace slipstream::data {

/// True if `path` is standard input: "-" or "/dev/stdin". Pure.
inline bool names_standard_input(std::string_view path) { return path == "-" || path == "/dev/stdin"; }

/// The bytes of a text one after another. A gzip or Zstandard file, told by its first bytes, is unpacked meanwhile.
class TextInput {
 public:
  /// Blocks. Opens a file or standard input and looks at its first bytes. `named` is data.format: text takes any bytes
  /// as they are, jsonl or automatic neither a container nor a JSON array.
  /// Throws: DataError as files::InputFile; if the text is empty; for a container or an array, with the command that
  /// converts it.
  explicit TextInput(const std::string& path, DataFormat named = DataFormat::automatic);
  TextInput(TextInput&&) noexcept;
  TextInput& operator=(TextInput&&) = delete;
  ~TextInput();

  /// The path, or "standard input". Pure.
  const std::string& path() const;
  /// text or jsonl: as named, by the name, or by the first bytes. Pure.
  DataFormat format() const;
  /// True if all bytes are allowed, because the format was named: NUL, and what is not UTF-8. Pure.
  bool takes_any_bytes() const;

  /// Blocks. The next bytes, as files::ReadBytes. Throws: DataError if the disk fails or the packed data is damaged.
  int64_t read(char* out, int64_t size_bytes);
  /// `bytes` are read next, again.
  void put_back(std::string bytes);

  /// Bytes of the file that have been read, and of the whole file, packed as they lie; 0 for all of standard input.
  /// Pure.
  int64_t file_bytes_read() const;
  int64_t file_bytes() const;
  /// True if the bytes of the file are those of the text. Pure.
  bool is_plain_file() const;

  /// Blocks. All bytes, from the begin, as a file: itself, or a copy without a name. Call it before any other read.
  files::InputFile as_file() &&;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Throws: DataError if `text`, which follows `begin` other bytes, has a NUL, or if `utf8` and it is not UTF-8. A
/// character that `text` cuts at its end is allowed unless it `ends` there. Pure.
void require_text(std::string_view text, int64_t begin, bool utf8, bool ends);

}  // namespace slipstream::data
