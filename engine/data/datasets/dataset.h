// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two splits of a run and the tokenizer that made them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/data_format.h"
#include "engine/data/datasets/mixture.h"
#include "engine/data/datasets/shards.h"
#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

struct DatasetOptions {
  std::string train;                 // a text, JSON lines, a token file, standard input ("-"), or a pattern of files
  std::vector<std::string> sources;  // the sources of a mixture, instead of train
  std::vector<double> weights;       // the weights of the sources; empty: equal
  std::string validation;            // like train; empty: the last part of train is held out
  double validation_fraction =
      0.1;  // of train or of every source, in [0, 1); 0 without `validation` means that there is no validation split
  /// "bytes", "chars", a file, or empty: the shards' tokenizer, "bytes" for a text; shards of an external tokenizer
  /// accept any word, and a file with as many ids.
  std::string tokenizer;
  DataFormat format = DataFormat::automatic;
  std::vector<DataFormat> formats;  // the formats of the sources; empty: `format` for all
  std::string text_key = "text";    // for JSON lines
  int64_t vocab_size = 0;           // the model's vocabulary, for files that do not record one; 0: unknown
  int64_t sequence_length = 1;
  int threads = 1;         // the threads that encode JSON lines
  bool documents = false;  // all sources must know their documents
  ShardCheck check = ShardCheck::whole;
};

struct Dataset {
  std::shared_ptr<const TokenSource> train;       // the sources, one after another
  std::vector<int64_t> counts;                    // the tokens of each source in `train`
  Mixture mixture;                                // the order of the sources
  std::shared_ptr<const TokenSource> validation;  // null if there is none
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string hash;            // of the files, in the order train, validation; ranks with equal hashes read equal ids
  int64_t resident_bytes = 0;  // for positions of ids in texts; texts and shards stay on disk
  std::vector<std::string> notes;  // sentences about lines that were skipped and characters that were replaced
};

/// Blocks. Opens the data, checks it, and splits it. A text is encoded when it is read. Every file of a pattern of
/// texts is a document that ends with the tokenizer's end-of-text id. Without `validation` the first floor(N (1 -
/// validation_fraction)) of N tokens are for training, and the rest is for validation. With chars and two texts the
/// vocabulary has the characters of both. Throws: DataError (missing or damaged files, text and shards of different
/// tokenizers, a split shorter than sequence_length + 1 tokens); ConfigError (an unknown tokenizer or vocabulary).
Dataset open_dataset(const DatasetOptions& options);

}  // namespace slipstream::data
