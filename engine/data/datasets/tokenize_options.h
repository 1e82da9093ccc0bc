// SPDX-License-Identifier: Apache-2.0
#pragma once
// The options of tokenize, and the summary of its result.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/data_format.h"

namespace slipstream::data {

struct TokenizeOptions {
  std::vector<std::string> texts;  // paths of texts or JSON lines, patterns of them, or "-"
  std::string out;                 // path of the shards without ".bin"
  std::string tokenizer = "bytes";
  int64_t shard_tokens = 0;  // 0: one shard OUT.bin; otherwise the tokens per shard OUT-00000.bin, OUT-00001.bin, ..
  DataFormat format = DataFormat::automatic;  // or text or jsonl; the format of all texts
  std::string text_key = "text";              // for JSON lines
  std::string separator;                      // ends each document of a text; empty: the text is one document
  bool end_of_text = true;  // the tokenizer's end-of-text id, which it must have, follows each of several documents
  int threads = 1;
  bool resume = false;  // continue after the last complete shard of an interrupted command
  /// Packed bytes count as packed; 0: the size is unknown.
  std::function<void(int64_t done_bytes, int64_t size_bytes)> progress;
};

struct TokenizeSummary {
  struct Shard {
    std::string path;  // the path of the .bin
    int64_t count = 0;
    int64_t size_bytes = 0;
    std::string hash;
    std::string hash_beside;  // the hash of its .json and its .documents; empty if there is only one shard
  };
  std::string tokenizer;
  int32_t vocab_size = 0;
  int64_t text_bytes = 0;
  int64_t count = 0;      // the tokens of all shards
  int64_t documents = 0;  // in JSON lines, with a separator, or in several texts
  int64_t removed = 0;    // the removed shards of earlier commands with the same `out`
  std::vector<Shard> shards;
  std::vector<std::string> notes;  // sentences about lines that were skipped and characters that were replaced
};

}  // namespace slipstream::data
