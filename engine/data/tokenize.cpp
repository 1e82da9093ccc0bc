// SPDX-License-Identifier: Apache-2.0
// Passes over a text, encodes it and writes its shards.

#include "engine/data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/data/shards.h"
#include "engine/data/text.h"
#include "engine/data/tokenizer.h"

namespace slipstream::data {

TokenizeSummary tokenize(const TokenizeOptions& options) {
  SLIP_ASSERT(options.shard_tokens >= 0);
  const TextFile text(options.text);
  const int64_t per_shard = options.shard_tokens > 0 ? options.shard_tokens : text.size_bytes();
  const auto name_of = [&](int64_t shard) {
    return options.shard_tokens > 0 ? fmt::format("{}-{:05}", options.out, shard) : options.out;
  };
  // A text has at most as many ids as bytes.
  for (int64_t shard = 0; shard * per_shard < text.size_bytes(); ++shard)
    for (const char* end : {".bin", ".json"}) {
      std::error_code error;
      if (std::filesystem::equivalent(options.text, name_of(shard) + end, error))
        throw ConfigError(
            "[data] {} would be overwritten: it is the text, and the command writes {}. Give the shards another name.",
            files::shown(options.text), files::shown(name_of(shard) + end));
    }
  const ForPieces pieces = [&](const TakePiece& take) { text.for_pieces(take); };
  const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(options.tokenizer, std::span(&pieces, 1));
  TokenizeSummary summary{.tokenizer = tokenizer->name(),
                          .vocab_size = tokenizer->vocab_size(),
                          .text_bytes = text.size_bytes(),
                          .shards = {}};
  std::string name;
  std::unique_ptr<ShardWriter> writer;
  const auto finish = [&] {
    std::string hash = writer->finish();
    summary.shards.push_back(
        {.path = name + ".bin", .count = writer->count(), .size_bytes = writer->size_bytes(), .hash = std::move(hash)});
    writer.reset();
  };
  const auto append = [&](std::span<const int32_t> ids) {
    while (!ids.empty()) {
      if (!writer) {
        name = name_of(std::ssize(summary.shards));
        writer = std::make_unique<ShardWriter>(name, tokenizer);
      }
      const int64_t taken = std::min(std::ssize(ids), per_shard - writer->count());
      writer->append(ids.first(static_cast<size_t>(taken)));
      ids = ids.subspan(static_cast<size_t>(taken));
      summary.count += taken;
      if (writer->count() == per_shard) finish();
    }
  };
  text.for_pieces([&](std::string_view piece, int64_t begin) { tokenizer->encode_pieces(piece, append, begin); });
  if (writer) finish();
  return summary;
}

}  // namespace slipstream::data
