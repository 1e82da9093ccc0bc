// SPDX-License-Identifier: Apache-2.0
// Opens the paths of a run's data as splits.

#include "engine/data/dataset.h"

#include <array>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/data/hash.h"
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

void check_same(const Tokenizer& shards, const std::string& path, const std::string& wanted) {
  if (wanted.empty() || wanted == shards.name() || !shards.knows_text()) return;
  throw DataError(
      "[data] the shard {} was made with the tokenizer \"{}\", but data.tokenizer = {}. Set data.tokenizer = \"{}\", "
      "or write the shard again with slipstream tokenize.",
      files::shown(path), shards.name(), files::shown(wanted), shards.name());
}

std::shared_ptr<const TokenSource> tokens_of(const std::shared_ptr<const Tokenizer>& tokenizer, std::string text,
                                             const std::string& path) {
  try {
    return tokens_of_text(tokenizer, std::move(text));
  } catch (const DataError& error) {
    throw DataError("{} (in {})", error.what(), files::shown(path));
  }
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
  const bool train_is_shards = names_shards(options.train);
  const bool validation_is_shards = !one_file && names_shards(options.validation);
  Shards train_shards, validation_shards;
  std::string train_text, validation_text;
  if (train_is_shards) {
    train_shards = open_shards(options.train, options.check);
    check_same(*train_shards.tokenizer, options.train, options.tokenizer);
  } else {
    train_text = read_text(options.train);
  }
  if (validation_is_shards) {
    validation_shards = open_shards(options.validation, options.check);
    check_same(*validation_shards.tokenizer, options.validation, options.tokenizer);
  } else if (!one_file) {
    validation_text = read_text(options.validation);
  }

  const auto hash_of_text = [](const std::string& text) {
    return text.empty() ? "" : xxh3_128_hex(text.data(), std::ssize(text));
  };
  const std::string hash =
      train_shards.hash + hash_of_text(train_text) + "+" + validation_shards.hash + hash_of_text(validation_text);
  Dataset dataset;
  dataset.tokenizer = train_is_shards ? train_shards.tokenizer : validation_shards.tokenizer;
  if (train_is_shards && validation_is_shards &&
      (train_shards.tokenizer->name() != validation_shards.tokenizer->name() ||
       train_shards.tokenizer->vocab_size() != validation_shards.tokenizer->vocab_size() ||
       train_shards.tokenizer->vocabulary() != validation_shards.tokenizer->vocabulary()))
    throw DataError(
        "[data] the shards {} and {} have different vocabularies ({} and {} ids). Write the second shard with the "
        "vocabulary of the first.",
        files::shown(options.train), files::shown(options.validation), train_shards.tokenizer->vocab_size(),
        validation_shards.tokenizer->vocab_size());
  if (!dataset.tokenizer) {
    const std::string name = options.tokenizer.empty() ? "bytes" : options.tokenizer;
    const std::array<std::string_view, 2> texts = {train_text, validation_text};
    try {
      dataset.tokenizer = make_tokenizer(name, std::span<const std::string_view>(texts));
    } catch (const DataError& error) {
      throw DataError("{} (in {}{}{})", error.what(), files::shown(options.train), one_file ? "" : " or ",
                      one_file ? "" : files::shown(options.validation));
    }
  }

  const int64_t text_bytes = std::ssize(train_text) + std::ssize(validation_text);
  dataset.train =
      train_is_shards ? train_shards.tokens : tokens_of(dataset.tokenizer, std::move(train_text), options.train);
  if (one_file)
    dataset = hold_out(dataset.train, dataset.tokenizer, options.validation_fraction);
  else
    dataset.validation = validation_is_shards
                             ? validation_shards.tokens
                             : tokens_of(dataset.tokenizer, std::move(validation_text), options.validation);
  dataset.hash = hash;
  dataset.resident_bytes = text_bytes;
  const bool cut = one_file && dataset.validation;
  check_length(*dataset.train, "training", options.train, options.sequence_length, cut);
  if (dataset.validation)
    check_length(*dataset.validation, "validation", one_file ? options.train : options.validation,
                 options.sequence_length, cut);
  return dataset;
}

}  // namespace slipstream::data
