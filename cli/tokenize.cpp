// SPDX-License-Identifier: Apache-2.0
// slipstream tokenize: text to token shards.

#include <cstdio>

#include <fmt/core.h>

#include "cli/commands.h"
#include "engine/base/check.h"
#include "engine/data/tokenize.h"

namespace slipstream::cli {

int tokenize(const TokenizeCommand& command) {
  if (command.out.empty())
    throw ConfigError("[tokenize] the path of the shards is empty. Name one, such as data/text.");
  const data::TokenizeSummary summary =
      data::tokenize({.text = command.text, .out = command.out, .tokenizer = command.tokenizer});
  fmt::print("{} tokens of {} bytes of text, tokenizer {} with {} ids\n", summary.count, summary.text_bytes,
             summary.tokenizer, summary.vocab_size);
  for (const auto& shard : summary.shards)
    fmt::print("{}  {} tokens  {} bytes  xxh3 {}\n", shard.path, shard.count, shard.size_bytes, shard.hash);
  return 0;
}

}  // namespace slipstream::cli
