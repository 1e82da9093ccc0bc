// SPDX-License-Identifier: Apache-2.0
// Reads a text, encodes it and writes its shards.

#include "engine/data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/data/shards.h"
#include "engine/data/text.h"
#include "engine/data/tokenizer.h"

namespace slipstream::data {

TokenizeSummary tokenize(const TokenizeOptions& options) {
  SLIP_ASSERT(options.shard_tokens >= 0);
  const std::string text = read_text(options.text);
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> ids;
  try {
    tokenizer = make_tokenizer(options.tokenizer, text);
    ids = tokenizer->encode(text);
  } catch (const DataError& error) {
    throw DataError("{} (in {})", error.what(), files::shown(options.text));
  }
  TokenizeSummary summary{.tokenizer = tokenizer->name(),
                          .vocab_size = tokenizer->vocab_size(),
                          .text_bytes = static_cast<int64_t>(text.size()),
                          .count = static_cast<int64_t>(ids.size()),
                          .shards = {}};
  const size_t per_shard = options.shard_tokens > 0 ? static_cast<size_t>(options.shard_tokens) : ids.size();
  const auto name_of = [&](size_t shard) {
    return options.shard_tokens > 0 ? fmt::format("{}-{:05}", options.out, shard) : options.out;
  };
  for (size_t shard = 0; shard * per_shard < ids.size(); ++shard)
    for (const char* end : {".bin", ".json"}) {
      std::error_code error;
      if (std::filesystem::equivalent(options.text, name_of(shard) + end, error))
        throw ConfigError(
            "[data] {} would be overwritten: it is the text, and the command writes {}. Give the shards another name.",
            files::shown(options.text), files::shown(name_of(shard) + end));
    }
  for (size_t begin = 0; begin < ids.size(); begin += per_shard) {
    const std::string name = name_of(summary.shards.size());
    ShardWriter writer(name, tokenizer);
    writer.append(std::span(ids).subspan(begin, std::min(per_shard, ids.size() - begin)));
    std::string hash = writer.finish();
    summary.shards.push_back(
        {.path = name + ".bin", .count = writer.count(), .size_bytes = writer.size_bytes(), .hash = std::move(hash)});
  }
  return summary;
}

}  // namespace slipstream::data
