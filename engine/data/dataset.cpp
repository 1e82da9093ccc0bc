// SPDX-License-Identifier: Apache-2.0
// Opens the paths of a run's data as splits.

#include "engine/data/dataset.h"
#include "engine/data/make_tokenizer.h"

#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/data/documents_by_id.h"
#include "engine/data/foreign_tokens.h"
#include "engine/data/json_lines.h"
#include "engine/data/json_text.h"
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

/// The advice for a data.tokenizer that does not fit a shard, whose default accepts the tokenizers of files.
std::string remedy_for(const Tokenizer& shards) {
  const bool is_word = shards.knows_text() && !shards.name().starts_with(kFileTokenizer);
  return is_word ? fmt::format("set data.tokenizer = \"{}\"", shards.name()) : "leave data.tokenizer out";
}

/// `file` is the tokenizer of `wanted` if that is a file.
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

/// A path of a run's data: a text, JSON lines or ids.
struct Input {
  DataFormat format = DataFormat::slipstream;
  Shards shards;
  std::shared_ptr<const TextFile> text;

  /// The split and its hash, once the tokenizer is known.
  std::shared_ptr<const TokenSource> tokens(const std::shared_ptr<const Tokenizer>& tokenizer, int threads,
                                            bool documents, std::string& hash, int64_t& resident_bytes) const {
    const int32_t end_of_text = tokenizer->special().end_of_text;
    if (format == DataFormat::jsonl) {
      if (end_of_text < 0 && !documents)
        log_warn(
            "[data] the documents of {} follow each other without a separator: the tokenizer {} has no end-of-text "
            "token. Set data.document_mask = true to keep them apart, or use another tokenizer.",
            files::shown(text->path()), tokenizer->name());
      const auto tokens = std::make_shared<JsonLineTokens>(tokenizer, text, threads);
      hash = "jsonl" + tokens->hash();
      resident_bytes += tokens->resident_bytes();
      return tokens;
    }
    std::shared_ptr<const TokenSource> source = shards.tokens;
    hash = shards.hash;
    if (text) {
      const auto tokens = std::make_shared<TextTokens>(tokenizer, text);
      hash = tokens->hash();
      resident_bytes += tokens->resident_bytes();
      source = tokens;
    }
    resident_bytes += shards.resident_bytes;
    return source->has_documents() || end_of_text < 0 ? source : documents_by_id(source, end_of_text, false);
  }

  void for_pieces(const TakePiece& take) const {
    if (format == DataFormat::jsonl)
      for_json_texts(*text, take);
    else
      text->for_pieces(take);
  }
};

Input open_input(const std::string& path, DataFormat format, const DatasetOptions& options,
                 const std::shared_ptr<const Tokenizer>& file) {
  Input input{.format = format_of(path, format), .shards = {}, .text = nullptr};
  switch (input.format) {
    case DataFormat::text:
    case DataFormat::jsonl:
      input.text = std::make_shared<TextFile>(path);
      break;
    case DataFormat::llm_c:
    case DataFormat::nanogpt:
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

/// Tokens for training. Rounding correction: 30 x (1 - 0.9) is 3, but slightly less in floating point.
int64_t kept_of(int64_t count, double fraction) {
  SLIP_ASSERT(fraction >= 0 && fraction < 1);
  return static_cast<int64_t>(std::floor(static_cast<double>(count) * (1 - fraction) * (1 + 0x1p-50)));
}

/// Ids of different tokenizers must not meet.
void check_same_vocabulary(const Input& first, const std::string& first_path, const Input& second,
                           const std::string& second_path) {
  const std::shared_ptr<const Tokenizer>&ours = first.shards.tokenizer, &theirs = second.shards.tokenizer;
  if (ours->name() == theirs->name() && ours->vocab_size() == theirs->vocab_size() &&
      ours->vocabulary() == theirs->vocabulary())
    return;
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
    if (inputs[i].text) texts.push_back([&input = inputs[i]](const TakePiece& take) { input.for_pieces(take); });
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
  const bool cut = holds_out && options.validation_fraction > 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::string hash;
    const auto all =
        inputs[i].tokens(dataset.tokenizer, options.threads, options.documents, hash, dataset.resident_bytes);
    dataset.hash += (i > 0 ? "+" : "") + hash;
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
