// SPDX-License-Identifier: Apache-2.0
#pragma once
// Several texts that are read once, one after another, with a hash of what was read.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/data_format.h"
#include "engine/base/hash.h"
#include "engine/data/datasets/text_input.h"

namespace slipstream::data {

class TextSequence {
 public:
  struct Text {
    std::string path;
    DataFormat format = DataFormat::text;
    int64_t file_bytes = 0;  // packed bytes count as packed; 0: unknown
    bool is_plain_file = true;
    bool is_standard_input = false;
  };

  /// Blocks. Reads the first bytes of every text, so that problems with them are reported before anything is written.
  /// `hashes` is false if hash() is never called. Throws: DataError as TextInput.
  TextSequence(const std::vector<std::string>& paths, DataFormat named, bool hashes);

  const std::vector<Text>& texts() const { return texts_; }
  /// Blocks. Goes to the beginning of text `index` after all texts before it have been read. Throws: DataError as
  /// TextInput.
  const TextInput& open(int64_t index);
  /// Blocks. Goes to byte `byte` of text `index`. Hashes the first `hashed_bytes` of all texts, which are at least the
  /// bytes up to this position. Returns false if the texts end before it.
  bool go_to(int64_t index, int64_t byte, int64_t hashed_bytes);
  /// Blocks. Reads the next bytes of the open text, as files::ReadBytes.
  int64_t read(char* out, int64_t size_bytes);

  /// Adds all of the open text before `byte` to the hash. Pure.
  void take(int64_t byte) { taken_ = byte; }
  /// Returns XXH3-128 of all texts up to the last take(), and the number of these bytes. Pure.
  std::string hash();
  int64_t hashed_bytes() const { return hashed_bytes_; }
  /// Returns the bytes of all texts that were read. Pure.
  int64_t text_bytes() const { return text_bytes_; }
  /// Return the bytes of the files that are done, and those of all files. Packed bytes count as packed; 0: unknown.
  /// Pure.
  int64_t file_bytes_done() const;
  int64_t file_bytes() const;

 private:
  void update_hash();

  DataFormat named_;
  bool hashes_;
  std::vector<Text> texts_;
  std::optional<TextInput> standard_input_;  // standard input can be opened once
  std::optional<TextInput> input_;
  int64_t index_ = -1;
  Xxh3 hash_;
  std::string waiting_;                         // bytes of the open text that were read for the first time
  int64_t waiting_done_ = 0;                    // the bytes of `waiting_` that are hashed
  int64_t hashed_ = 0, taken_ = 0, again_ = 0;  // bytes of the open text: hashed, to be hashed, and read twice
  int64_t hashed_bytes_ = 0, text_bytes_ = 0, files_done_bytes_ = 0;
};

}  // namespace slipstream::data
