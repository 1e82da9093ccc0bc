// SPDX-License-Identifier: Apache-2.0
#pragma once
// Opens texts and JSON lines, and reads them once from the beginning to the end.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/data_format.h"
#include "engine/base/files.h"

namespace slipstream::data {

/// Returns true if `path` is standard input: "-" or "/dev/stdin". Pure.
inline bool names_standard_input(std::string_view path) { return path == "-" || path == "/dev/stdin"; }

/// The bytes of a text in their order. A gzip or Zstandard file, recognized by its first bytes, is unpacked while it is
/// read.
class TextInput {
 public:
  /// Blocks. Opens a file or standard input and looks at its first bytes. `named` is data.format: text accepts any
  /// bytes as they are, jsonl and automatic accept neither a container nor a JSON array. Throws: DataError as
  /// files::InputFile; if the text is empty; for a container or an array, with the command that converts it.
  explicit TextInput(const std::string& path, DataFormat named = DataFormat::automatic);
  TextInput(TextInput&&) noexcept;
  TextInput& operator=(TextInput&&) = delete;
  ~TextInput();

  /// Returns the path, or "standard input". Pure.
  const std::string& path() const;
  /// Returns text or jsonl: as named, by the name of the file, or by its first bytes. Pure.
  DataFormat format() const;
  /// Returns true if all bytes are allowed, even NUL and what is not UTF-8, because the format was named. Pure.
  bool takes_any_bytes() const;

  /// Blocks. Reads the next bytes, as files::ReadBytes. Throws: DataError if the disk fails or the packed data is
  /// damaged.
  int64_t read(char* out, int64_t size_bytes);
  /// Makes `bytes` the next bytes that read() returns.
  void put_back(std::string bytes);

  /// Return the bytes of the file that have been read, and those of the whole file. Packed bytes count as packed. Both
  /// are 0 for standard input. Pure.
  int64_t file_bytes_read() const;
  int64_t file_bytes() const;
  /// Returns true if the bytes of the file are those of the text. Pure.
  bool is_plain_file() const;

  /// Blocks. Returns all bytes from the beginning as a file: the file itself, or a copy without a name. It must be
  /// called before any other read.
  files::InputFile as_file() &&;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Throws: DataError if `text`, which follows `begin` other bytes, has a NUL, or if `utf8` is true and it is not UTF-8.
/// The end of `text` may split a character unless `ends` is true. Pure.
void require_text(std::string_view text, int64_t begin, bool utf8, bool ends);

}  // namespace slipstream::data
