// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token files of other programs: llm.c, nanoGPT and Megatron-LM.
//
// llm.c: 256 int32 (20240520, 1, count, 0, ..), then uint16; or (20240801, 7, count, 0, ..), then uint32. A document
// begins with the end-of-text id of GPT-2 or the begin-of-text id of Llama 3.
// Source: github.com/karpathy/llm.c, dev/data/data_common.py.
//
// nanoGPT: uint16 and nothing else; nanogpt-uint32: uint32 and nothing else. Source: github.com/karpathy/nanoGPT,
// data/openwebtext/prepare.py.
//
// Megatron-LM: NAME.bin has ids of one type. NAME.idx has "MMIDIDX" and two zero bytes, uint64 version 1, uint8 type,
// uint64 sequences, uint64 documents + 1, then for each sequence an int32 count of ids and an int64 offset in bytes,
// and for each document and the end an int64 index of a sequence.
// Source: github.com/NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py.

#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/data_format.h"
#include "engine/data/datasets/shards.h"

namespace slipstream::data {

/// Blocks. The format of a path of data: `named`, or what the name, the files beside it and the first bytes tell. A
/// missing file has the format of its name. TextInput tells JSON lines from other texts.
DataFormat format_of(const std::string& path, DataFormat named);

struct ForeignOptions {
  DataFormat format = DataFormat::llm_c;       // llm_c, nanogpt, nanogpt_uint32 or megatron
  std::shared_ptr<const Tokenizer> tokenizer;  // of a file; null: known by name
  int64_t vocab_size = 0;                      // without `tokenizer`: of the model; 0: that of the format
  ShardCheck check = ShardCheck::whole;        // `size`: ids are checked when they are read
};

/// Blocks. Opens one file, or all that a pattern with * or ? matches; of Megatron-LM NAME.bin, NAME.idx or NAME. Reads
/// every byte once to hash it. Without an index, the end-of-text id of `tokenizer` ends documents of nanoGPT.
/// Throws: DataError naming the file: missing, of another format, a count, length or offset that does not fit, an id
/// outside of the vocabulary; ConfigError without a vocabulary.
Shards open_foreign(const std::string& path, const ForeignOptions& options);

}  // namespace slipstream::data
