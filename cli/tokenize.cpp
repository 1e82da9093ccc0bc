// SPDX-License-Identifier: Apache-2.0
// Runs slipstream tokenize: converts text to token shards.

#include <memory>

#include "cli/command_line.h"
#include "engine/base/check.h"
#include "engine/base/print.h"
#include "engine/data/tokenize.h"

namespace slipstream::cli {
namespace {

struct TokenizeOptions {
  std::string text;
  std::string out;
  std::string tokenizer = "bytes";
};

int tokenize(const TokenizeOptions& options) {
  if (options.out.empty())
    throw ConfigError("[tokenize] the path of the shards is empty. Give one, such as data/text.");
  const data::TokenizeSummary summary =
      data::tokenize({.text = options.text, .out = options.out, .tokenizer = options.tokenizer});
  print_result("{} tokens of {} bytes of text, tokenizer {} with {} ids\n", summary.count, summary.text_bytes,
               summary.tokenizer, summary.vocab_size);
  for (const auto& shard : summary.shards)
    print_result("{}  {} tokens  {} bytes  xxh3 {}\n", shard.path, shard.count, shard.size_bytes, shard.hash);
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "convert text to token shards");
  command->add_option("text", options->text, "text file")->required();
  command->add_option("out", options->out, "path of the shards, without .bin")->required();
  command->add_option("--tokenizer", options->tokenizer, "bytes or chars");
  command->callback(
      [&chosen, options] { chosen = [options] { return alone("tokenize", [&] { return tokenize(*options); }); }; });
}

}  // namespace slipstream::cli
