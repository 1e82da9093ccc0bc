// SPDX-License-Identifier: Apache-2.0
// Opens the paths of a run's data as splits.

#include "engine/data/datasets/dataset.h"
#include "engine/data/tokenizers/make_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/data/datasets/foreign_tokens.h"
#include "engine/data/datasets/json_lines.h"
#include "engine/data/datasets/json_text.h"
#include "engine/data/datasets/text.h"
#include "engine/data/datasets/token_source.h"

namespace slipstream::data {

namespace {

/// `cut` is true if data.validation_fraction of the file belongs to the other split.
void check_length(const TokenSource& split, const char* name, const std::string& path, int64_t sequence_length,
                  bool cut) {
  if (split.count() >= sequence_length + 1) return;
  throw DataError(
      "[data] the {} split of {} has {} tokens, need at least train.sequence_length + 1 = {}. Use more text{} "
      "a shorter sequence_length.",
      name, files::shown(path), split.count(), sequence_length + 1,
      cut ? ", another data.validation_fraction or" : " or");
}

/// Returns the advice for a data.tokenizer that does not fit a shard. The default of that key accepts the tokenizers of
/// files.
std::string remedy_for(const Tokenizer& shards) {
  const bool is_word = shards.knows_text() && !shards.name().starts_with(kFileTokenizer);
  return is_word ? fmt::format("set data.tokenizer = \"{}\"", shards.name()) : "leave data.tokenizer out";
}

/// `file` is the tokenizer of `wanted` if `wanted` names a file.
void check_same(const Tokenizer& shards, const std::string& path, const std::string& wanted, const Tokenizer* file) {
  if (file != nullptr) {
    const bool same =
        shards.name() == file->name() || (!shards.knows_text() && !shards.name().starts_with(kFileTokenizer));
    if (same && shards.vocab_size() == file->vocab_size()) return;
    throw DataError(
        "[data] the shard {} was made with the tokenizer \"{}\" of {} ids, but data.tokenizer = {} is \"{}\" with {}. "
        "Write the shard again with slipstream tokenize, or {}.",
        files::shown(path), shards.name(), shards.vocab_size(), files::shown(wanted), file->name(), file->vocab_size(),
        remedy_for(shards));
  }
  const bool default_word = wanted == "bytes" && shards.name().starts_with(kFileTokenizer);
  if (wanted.empty() || wanted == shards.name() || !shards.knows_text() || default_word) return;
  throw DataError(
      "[data] the shard {} was made with the tokenizer \"{}\", but data.tokenizer = {}. Write the shard "
      "again with slipstream tokenize, or {}.",
      files::shown(path), shards.name(), files::shown(wanted), remedy_for(shards));
}

/// One path of a run's data. It has texts, JSON lines or ids.
struct Input {
  DataFormat format = DataFormat::slipstream;
  Shards shards;
  std::vector<std::shared_ptr<const TextFile>> texts;
  std::string text_key;

  /// Returns the split once the tokenizer is known. Adds its memory and notes to `dataset`. `hash` is the hash of this
  /// input.
  std::shared_ptr<const TokenSource> tokens(const std::shared_ptr<const Tokenizer>& tokenizer, int threads,
                                            bool documents, std::string& hash, Dataset& dataset) const {
    const int32_t end_of_text = tokenizer->special().end_of_text;
    const auto is_json = [](const auto& text) { return text->format() == DataFormat::jsonl; };
    if (end_of_text < 0 && !documents && (texts.size() > 1 || std::any_of(texts.begin(), texts.end(), is_json)))
      log_warn(
          "[data] the documents of {} follow each other without a separator: the tokenizer {} has no end-of-text "
          "token. Set data.document_mask = true to keep them apart, or use another tokenizer.",
          files::shown(texts.front()->path()), tokenizer->name());
    dataset.resident_bytes += shards.resident_bytes;
    hash = shards.hash;
    std::vector<std::shared_ptr<const TokenSource>> parts;
    for (const auto& text : texts) {
      std::string own_hash;
      std::shared_ptr<const TokenSource> part = tokens_of(text, tokenizer, threads, own_hash, dataset);
      hash += (hash.empty() ? "" : ",") + own_hash;
      if (texts.size() > 1 && !part->has_documents()) part = document_of(std::move(part), end_of_text);
      parts.push_back(std::move(part));
    }
    if (texts.size() > 1) hash = "texts" + xxh3_128_hex(hash.data(), std::ssize(hash));
    const std::shared_ptr<const TokenSource> source = parts.empty() ? shards.tokens : chain(std::move(parts));
    return source->has_documents() || end_of_text < 0 ? source : documents_by_id(source, end_of_text, false);
  }

  void for_pieces(const TakePiece& take) const {
    for (const auto& text : texts) {
      const ForPieces pieces = [&](const TakePiece& next) { text->for_pieces(next); };
      text->format() == DataFormat::jsonl ? for_json_texts(pieces, text->path(), text_key, take) : pieces(take);
    }
  }

 private:
  std::shared_ptr<const TokenSource> tokens_of(const std::shared_ptr<const TextFile>& text,
                                               const std::shared_ptr<const Tokenizer>& tokenizer, int threads,
                                               std::string& hash, Dataset& dataset) const {
    if (text->format() == DataFormat::text) {
      auto tokens = std::make_shared<TextTokens>(tokenizer, text);
      hash = tokens->hash();
      dataset.resident_bytes += tokens->resident_bytes();
      return tokens;
    }
    auto tokens = std::make_shared<JsonLineTokens>(tokenizer, text, threads, text_key);
    hash = "jsonl" + (text_key == "text" ? "" : ":" + text_key + ":") + tokens->hash();
    dataset.resident_bytes += tokens->resident_bytes();
    for (std::string& note : tokens->documents().notes(files::shown(text->path())))
      dataset.notes.push_back(std::move(note));
    return tokens;
  }
};

Input open_input(const std::string& path, DataFormat format, const DatasetOptions& options,
                 const std::shared_ptr<const Tokenizer>& file) {
  Input input{.format = format_of(path, format), .shards = {}, .texts = {}, .text_key = options.text_key};
  switch (input.format) {
    case DataFormat::text:
    case DataFormat::jsonl:
      for (const std::string& one : matching_files(path))
        input.texts.push_back(std::make_shared<TextFile>(one, format));
      break;
    case DataFormat::llm_c:
    case DataFormat::nanogpt:
    case DataFormat::nanogpt_uint32:
    case DataFormat::megatron:
      input.shards = open_foreign(
          path, {.format = input.format, .tokenizer = file, .vocab_size = options.vocab_size, .check = options.check});
      break;
    default:
      input.shards = open_shards(path, options.check);
      check_same(*input.shards.tokenizer, path, options.tokenizer, file.get());
  }
  return input;
}

/// Returns the number of tokens for training. The correction is for rounding: 30 x (1 - 0.9) is 3, but slightly less in
/// floating point.
int64_t kept_of(int64_t count, double fraction) {
  SLIP_ASSERT(fraction >= 0 && fraction < 1);
  return static_cast<int64_t>(std::floor(static_cast<double>(count) * (1 - fraction) * (1 + 0x1p-50)));
}

/// Refuses a mixture of ids from different tokenizers.
void check_same_vocabulary(const Input& first, const std::string& first_path, const Input& second,
                           const std::string& second_path) {
  const std::shared_ptr<const Tokenizer>&ours = first.shards.tokenizer, &theirs = second.shards.tokenizer;
  if (ours->name() == theirs->name() && ours->vocab_size() == theirs->vocab_size() &&
      ours->vocabulary() == theirs->vocabulary())
    return;
  const auto records_tokenizer = [](const Input& input) {
    return input.format == DataFormat::slipstream || input.format == DataFormat::llm_c;
  };
  if (!records_tokenizer(first) || !records_tokenizer(second))
    throw DataError(
        "[data] {} ({}) and {} ({}) do not both record their tokenizer, so their ids may have different meanings. Set "
        "data.tokenizer to the tokenizer file of both.",
        files::shown(first_path), files::printable(ours->name(), 80), files::shown(second_path),
        files::printable(theirs->name(), 80));
  if (ours->name() != theirs->name())
    throw DataError(
        "[data] the shards {} and {} have ids of different tokenizers, {} and {}. Write the second shard with the "
        "tokenizer of the first.",
        files::shown(first_path), files::shown(second_path), files::printable(ours->name(), 80),
        files::printable(theirs->name(), 80));
  if (ours->vocab_size() == theirs->vocab_size())
    throw DataError(
        "[data] the shards {} and {} have different vocabularies: {} ids each, but of different characters. Write the "
        "second shard with the vocabulary of the first.",
        files::shown(first_path), files::shown(second_path), ours->vocab_size());
  throw DataError(
      "[data] the shards {} and {} have different vocabularies ({} and {} ids). Write the second shard with the "
      "vocabulary of the first.",
      files::shown(first_path), files::shown(second_path), ours->vocab_size(), theirs->vocab_size());
}

std::shared_ptr<const Tokenizer> tokenizer_of(const std::vector<Input>& inputs, const std::vector<std::string>& paths,
                                              const DatasetOptions& options, std::shared_ptr<const Tokenizer> file) {
  size_t known = inputs.size();
  std::vector<ForPieces> texts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].texts.empty())
      texts.push_back([&input = inputs[i]](const TakePiece& take) { input.for_pieces(take); });
    if (!inputs[i].shards.tokenizer) continue;
    if (known == inputs.size()) known = i;
    check_same_vocabulary(inputs[known], paths[known], inputs[i], paths[i]);
  }
  if (file) return file;
  if (known < inputs.size()) return inputs[known].shards.tokenizer;
  return make_tokenizer(options.tokenizer.empty() ? "bytes" : options.tokenizer, texts);
}

}  // namespace

Dataset open_dataset(const DatasetOptions& options) {
  SLIP_ASSERT(options.formats.empty() || options.formats.size() == options.sources.size());
  std::vector<std::string> paths = options.sources;
  if (paths.empty()) paths = {options.train};
  const size_t sources = paths.size();
  const bool holds_out = options.validation.empty();
  if (!holds_out) paths.push_back(options.validation);
  for (const std::string& path : paths)
    if (path.empty())
      throw DataError("[data] data.{} is empty. Give the path of a text file or of token shards.",
                      options.sources.empty() ? "train" : "sources has a path that");
  const std::shared_ptr<const Tokenizer> file =
      names_tokenizer_file(options.tokenizer) ? load_tokenizer_file(options.tokenizer) : nullptr;
  std::vector<Input> inputs;
  for (size_t i = 0; i < paths.size(); ++i) {
    const bool own_format = i < options.formats.size();
    inputs.push_back(open_input(paths[i], own_format ? options.formats[i] : options.format, options, file));
  }
  Dataset dataset;
  dataset.tokenizer = tokenizer_of(inputs, paths, options, file);
  std::vector<std::shared_ptr<const TokenSource>> train, validation;
  std::vector<std::string> hashes;
  const bool cut = holds_out && options.validation_fraction > 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::string hash;
    const auto all = inputs[i].tokens(dataset.tokenizer, options.threads, options.documents, hash, dataset);
    dataset.hash += (i > 0 ? "+" : "") + hash;
    if (const auto same = std::find(hashes.begin(), hashes.end(), hash); i == sources && same != hashes.end())
      dataset.notes.push_back(
          fmt::format("data.validation = {} has the content of the training data {}, so val_loss does not tell how "
                      "the model does on other data",
                      files::shown(paths[i]), files::shown(paths[static_cast<size_t>(same - hashes.begin())])));
    hashes.push_back(hash);
    if (options.documents && !all->has_documents())
      throw DataError(
          "[data] data.document_mask needs documents, but {} has no index of them, and its tokenizer {} has no "
          "end-of-text token. Use JSON lines or slipstream tokenize with --separator, or set document_mask = false.",
          files::shown(paths[i]), dataset.tokenizer->name());
    const int64_t kept = i == sources ? 0 : kept_of(all->count(), holds_out ? options.validation_fraction : 0);
    if (i < sources) {
      train.push_back(kept == all->count() ? all : slice(all, 0, kept));
      dataset.counts.push_back(kept);
      check_length(*train.back(), "training", paths[i], options.sequence_length, cut);
    }
    if (kept == all->count() && !(i < sources && cut)) continue;
    validation.push_back(kept == 0 ? all : slice(all, kept, all->count() - kept));
    if (sources == 1) check_length(*validation.back(), "validation", paths[i], options.sequence_length, cut);
  }
  if (holds_out) dataset.hash += "+";
  if (dataset.tokenizer->name().starts_with(kFileTokenizer)) dataset.hash += "+" + dataset.tokenizer->name();
  dataset.train = chain(std::move(train));
  if (!validation.empty()) {
    dataset.validation = chain(std::move(validation));
    check_length(*dataset.validation, "validation", holds_out ? paths.front() : options.validation,
                 options.sequence_length, cut);
  }
  if (sources > 1) {
    const std::vector<double> equal(sources, 1);
    dataset.mixture = Mixture(options.weights.empty() ? equal : options.weights);
  }
  return dataset;
}

}  // namespace slipstream::data
