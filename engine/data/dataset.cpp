// SPDX-License-Identifier: Apache-2.0
// Opens the paths of a run's data as splits.

#include "engine/data/dataset.h"
#include "engine/data/make_tokenizer.h"

#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/data/text.h"

namespace slipstream::data {

namespace {

/// `cut`: data.validation_fraction of the file belongs to the other split.
void check_length(const TokenSource& split, const char* name, const std::string& path, int64_t sequence_length,
                  bool cut) {
  if (split.count() >= sequence_length + 1) return;
  throw DataError(
      "[data] the {} split of {} has {} tokens, need at least train.sequence_length + 1 = {}. Use more text{} "
      "a shorter sequence_length.",
      name, files::shown(path), split.count(), sequence_length + 1,
      cut ? ", another data.validation_fraction or" : " or");
}

/// `file` is the tokenizer of `wanted` if that is a file.
void check_same(const Tokenizer& shards, const std::string& path, const std::string& wanted, const Tokenizer* file) {
  if (file != nullptr) {
    const bool same =
        shards.name() == file->name() || (!shards.knows_text() && !shards.name().starts_with(kFileTokenizer));
    if (same && shards.vocab_size() == file->vocab_size()) return;
    throw DataError(
        "[data] the shard {} was made with the tokenizer \"{}\" of {} ids, but data.tokenizer = {} is \"{}\" with {}. "
        "Write the shard again with slipstream tokenize, or leave data.tokenizer out.",
        files::shown(path), shards.name(), shards.vocab_size(), files::shown(wanted), file->name(), file->vocab_size());
  }
  const bool default_word = wanted == "bytes" && shards.name().starts_with(kFileTokenizer);
  if (wanted.empty() || wanted == shards.name() || !shards.knows_text() || default_word) return;
  throw DataError(
      "[data] the shard {} was made with the tokenizer \"{}\", but data.tokenizer = {}. Set data.tokenizer = \"{}\", "
      "or write the shard again with slipstream tokenize.",
      files::shown(path), shards.name(), files::shown(wanted), shards.name());
}

/// A path of a run's data: either a text or shards.
struct Input {
  Shards shards;
  std::shared_ptr<const TextFile> text;

  /// The split and its hash, once the tokenizer is known.
  std::shared_ptr<const TokenSource> tokens(const std::shared_ptr<const Tokenizer>& tokenizer, std::string& hash,
                                            int64_t& resident_bytes) const {
    if (!text) {
      hash = shards.hash;
      return shards.tokens;
    }
    const auto tokens = std::make_shared<TextTokens>(tokenizer, text);
    hash = tokens->hash();
    resident_bytes += tokens->resident_bytes();
    return tokens;
  }
};

Input open_input(const std::string& path, const DatasetOptions& options, const Tokenizer* file) {
  if (!names_shards(path)) return {.shards = {}, .text = std::make_shared<TextFile>(path)};
  Input input{.shards = open_shards(path, options.check), .text = nullptr};
  check_same(*input.shards.tokenizer, path, options.tokenizer, file);
  return input;
}

Dataset hold_out(const std::shared_ptr<const TokenSource>& all, std::shared_ptr<const Tokenizer> tokenizer,
                 double fraction) {
  SLIP_ASSERT(fraction >= 0 && fraction < 1);
  // Rounding correction: 30 x (1 - 0.9) is 3, but slightly less in floating point.
  const auto kept =
      static_cast<int64_t>(std::floor(static_cast<double>(all->count()) * (1 - fraction) * (1 + 0x1p-50)));
  Dataset dataset{.train = slice(all, 0, kept), .validation = nullptr, .tokenizer = std::move(tokenizer)};
  if (fraction > 0) dataset.validation = slice(all, kept, all->count() - kept);
  return dataset;
}

}  // namespace

Dataset open_dataset(const DatasetOptions& options) {
  if (options.train.empty())
    throw DataError("[data] data.train is empty. Give the path of a text file or of token shards.");
  const bool one_file = options.validation.empty();
  const std::shared_ptr<const Tokenizer> file =
      names_tokenizer_file(options.tokenizer) ? load_tokenizer_file(options.tokenizer) : nullptr;
  const Input train = open_input(options.train, options, file.get());
  const Input validation = one_file ? Input{} : open_input(options.validation, options, file.get());
  const std::shared_ptr<const Tokenizer>&of_train = train.shards.tokenizer,
                              &of_validation = validation.shards.tokenizer;
  if (of_train && of_validation &&
      (of_train->name() != of_validation->name() || of_train->vocab_size() != of_validation->vocab_size() ||
       of_train->vocabulary() != of_validation->vocabulary()))
    throw DataError(
        "[data] the shards {} and {} have different vocabularies ({} and {} ids). Write the second shard with the "
        "vocabulary of the first.",
        files::shown(options.train), files::shown(options.validation), of_train->vocab_size(),
        of_validation->vocab_size());
  Dataset dataset;
  dataset.tokenizer = file ? file : of_train ? of_train : of_validation;
  if (!dataset.tokenizer) {
    std::vector<ForPieces> texts;
    for (const Input* input : {&train, &validation})
      if (input->text) texts.push_back([text = input->text](const TakePiece& take) { text->for_pieces(take); });
    dataset.tokenizer = make_tokenizer(options.tokenizer.empty() ? "bytes" : options.tokenizer, texts);
  }
  std::string train_hash, validation_hash;
  int64_t resident_bytes = 0;
  dataset.train = train.tokens(dataset.tokenizer, train_hash, resident_bytes);
  if (one_file)
    dataset = hold_out(dataset.train, dataset.tokenizer, options.validation_fraction);
  else
    dataset.validation = validation.tokens(dataset.tokenizer, validation_hash, resident_bytes);
  dataset.hash = train_hash + "+" + validation_hash;
  if (dataset.tokenizer->name().starts_with(kFileTokenizer)) dataset.hash += "+" + dataset.tokenizer->name();
  dataset.resident_bytes = resident_bytes;
  const bool cut = one_file && dataset.validation;
  check_length(*dataset.train, "training", options.train, options.sequence_length, cut);
  if (dataset.validation)
    check_length(*dataset.validation, "validation", one_file ? options.train : options.validation,
                 options.sequence_length, cut);
  return dataset;
}

}  // namespace slipstream::data
