// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token files of other programs: llm.c, nanoGPT and Megatron-LM.
//
// llm.c: a header of 256 int32, then the ids. The header (20240520, 1, count, 0, ..) announces uint16 ids, the header
// (20240801, 7, count, 0, ..) uint32 ids. A document begins with the end-of-text id of GPT-2 or the begin-of-text id of
// Llama 3. Source: github.com/karpathy/llm.c, dev/data/data_common.py.
//
// nanoGPT: only uint16 ids; nanogpt-uint32: only uint32 ids. Source: github.com/karpathy/nanoGPT,
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

/// Blocks. Returns the format of a path of data: `named`, or the format that the name, the files beside it and the
/// first bytes imply. A missing file has the format of its name. TextInput distinguishes JSON lines from other texts.
DataFormat format_of(const std::string& path, DataFormat named);

struct ForeignOptions {
  DataFormat format = DataFormat::llm_c;       // llm_c, nanogpt, nanogpt_uint32 or megatron
  std::shared_ptr<const Tokenizer> tokenizer;  // the tokenizer of a file; null: the tokenizer is known by name
  int64_t vocab_size = 0;                      // without `tokenizer`, the model's vocabulary; 0: that of the format
  ShardCheck check = ShardCheck::whole;        // with `size`, ids are checked when they are read
};

/// Blocks. Opens one file, or all files that a pattern with * or ? matches. For Megatron-LM the path is NAME.bin,
/// NAME.idx or NAME. Reads every byte once to hash it. In nanoGPT files, which have no index, the end-of-text id of
/// `tokenizer` ends a document. Throws: DataError that names the file if it is missing, has another format, has a
/// count, length or offset that does not fit, or has an id outside of the vocabulary; ConfigError without a vocabulary.
Shards open_foreign(const std::string& path, const ForeignOptions& options);

}  // namespace slipstream::data
